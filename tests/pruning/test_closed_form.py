"""The closed forms of a config's use equal the numbers read off its lowered TIR, for every family."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence, Set

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from romou.base.space import Config
from romou.compiler.operators.algorithms.algorithm import TF32X3
from romou.compiler.operators.analysis.form import columns_of, combinations
from romou.compiler.operators.costs.criteria import choices_of
from romou.compiler.operators.families.batch_matmul import BatchMatmul
from romou.compiler.operators.families.conv2d_backward_filter import training_passes
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d, Conv3d
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import MemoryKind, set_image
from romou.devices.hardware import load_device
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.pruning import BOUNDED, KernelUsage, Rules, judge
from support.kernels.kernel_usage import read_usage
from support.kernels.operators import conv, conv_transpose, matmul, pair_of, relax_tasks, target_of, task_of
from support.kernels.streams import OPERATORS, WITH_SCALARS
from support.kernels.tensor_core_works import FILLED, FIRST, PLAIN
from support.suite.exhaustive import exhaustive, few

TARGET = Target("opencl -device=adreno640")
DEVICES = ("adreno630", "adreno640", "mali_g76", "nvidia_h200", "host")
# Computed from registers and multiply-adds, for which the formula is a bound.
ROUGH = {"estimate"}


@st.composite
def operators(draw: st.DrawFn) -> Conv2d | Dense | BatchMatmul:
    dtype = draw(st.sampled_from(["float32", "float16"]))
    size = (draw(st.integers(3, 20)), draw(st.integers(3, 20)))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (7, 1), (1, 7), (2, 3)]))
    pad = draw(st.sampled_from([0, 1, 2]))
    padding = (kernel[0] // 2, kernel[1] // 2, kernel[0] // 2, kernel[1] // 2) if pad else (0, 0, 0, 0)
    size = tuple(max(s, k) for s, k in zip(size, kernel, strict=True))  # type: ignore[assignment]
    stride = draw(st.sampled_from([(1, 1), (2, 2)]))
    batch = draw(st.sampled_from([1, 1, 2]))
    match draw(
        st.sampled_from(
            ["conv2d", "whole texels", "depthwise", "group_conv2d", "dense", "batch_matmul", "conv2d_transpose"]
        )
    ):
        case "conv2d":
            channels, outputs, groups = draw(st.integers(1, 40)), draw(st.integers(1, 40)), 1
        case "whole texels":
            channels = outputs = 8 * (groups := draw(st.sampled_from([2, 3])))
        case "depthwise":
            channels = outputs = groups = draw(st.integers(2, 40))
        case "group_conv2d":
            groups = draw(st.integers(2, 6))
            channels, outputs = 3 * groups, 2 * groups
        case "conv2d_transpose":
            groups = draw(st.sampled_from([1, 1, 12]))
            channels, outputs = (12, 12) if groups > 1 else (draw(st.integers(1, 20)), draw(st.integers(1, 12)))
            size, stride = (size[0] // 3 + 1, size[1] // 3 + 1), draw(st.sampled_from([(1, 1), (2, 2), (3, 2)]))
            cut = draw(st.sampled_from([(0, 0, 0, 0), (1, 0, 0, 1)])) if min(kernel) > 1 else (0, 0, 0, 0)
            return conv_transpose(
                channels, size, outputs, kernel, dtype, padding=cut, stride=stride, groups=groups, batch=batch
            )
        case "batch_matmul":
            extents = [draw(st.integers(1, most)) for most in (20, 96, 60)]
            return matmul(draw(st.sampled_from([(), (2,), (2, 3)])), *extents, dtype, is_transposed=draw(st.booleans()))
        case _:
            return Dense(
                m=draw(st.integers(1, 20)), k=draw(st.integers(1, 96)), n=draw(st.integers(1, 60)), dtype=dtype
            )
    return conv(channels, size, outputs, kernel, dtype, padding=padding, stride=stride, groups=groups, batch=batch)


@st.composite
def volumes(draw: st.DrawFn, dtype: str) -> Conv3d:
    groups, inputs, outputs = draw(st.sampled_from([(1, 3, 6), (1, 9, 5), (2, 16, 8), (6, 6, 6), (3, 6, 9)]))
    kernel = draw(st.sampled_from([(3, 3, 3), (3, 1, 1), (2, 3, 1), (4, 1, 2)]))
    pads = draw(st.sampled_from([(0, 0, 0, 0, 0, 0), (1, 0, 0, 1, 0, 0), (0, 1, 1, 1, 1, 0), (1, 1, 1, 1, 1, 1)]))
    padding = tuple(pad if extent > 1 else 0 for pad, extent in zip(pads, kernel * 2, strict=True))
    size = (draw(st.integers(4, 7)), draw(st.integers(5, 11)), draw(st.integers(5, 11)))
    stride = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 2)]))
    batch = draw(st.sampled_from([1, 1, 2]))
    return Conv3d(
        batch=batch,
        in_channels=inputs,
        in_dhw=size,
        out_channels=outputs,
        kernel=kernel,
        stride=stride,
        padding=padding,
        groups=groups,
        dtype=dtype,  # type: ignore[arg-type]
    )


def usage_of(task: TunableTask, config: Config, target: Target = TARGET) -> KernelUsage:
    scheduled = task.schedule(config, target)["main"]

    kernels = inspect_function(scheduled, target)
    usage = read_usage([kernel.lowered for kernel in kernels], task.template, config)
    if not any(" += " in kernel.source for kernel in kernels):
        return usage
    # Registers are counted in the kernel with advancing pointers, but addresses can only be read if they are indices.
    kernels = inspect_function(scheduled, target, without=["read_odd_sums", "advance_pointers"])
    indexed = read_usage([kernel.lowered for kernel in kernels], task.template, config)
    return dataclasses.replace(
        indexed,
        registers=usage.registers,
        needed_registers=usage.needed_registers,
        registers_as_written=usage.registers_as_written,
    )


def row(usage: KernelUsage, index: int, count: int) -> KernelUsage:
    """Return one config's numbers from columns."""

    def pick(value: object) -> object:
        return np.broadcast_to(np.asarray(value), count)[index].item()

    fields = {f.name: getattr(usage, f.name) for f in dataclasses.fields(usage)}
    images = {name: pick(value) for name, value in fields.pop("images").items()}
    return KernelUsage(images=images, **{name: pick(value) for name, value in fields.items()})


def each_target(opencl: int, cuda: int) -> pytest.MarkDecorator:
    """Repeat a test with `opencl` random examples on OpenCL and `cuda` on CUDA, and with ten times the number."""
    found = [(TARGET, opencl), (target_of("cuda"), cuda)]
    more = [pytest.param(target, 10 * examples, marks=exhaustive) for target, examples in found]
    return pytest.mark.parametrize(
        ("target", "examples"), [*found, *more], ids=["opencl", "cuda", "opencl-more", "cuda-more"]
    )


@each_target(4, 1)
def test_closed_form_and_tir_agree(target: Target, examples: int) -> None:
    @given(operators(), st.integers(0, 2**31))
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(work: Conv2d | Dense | BatchMatmul, seed: int) -> None:
        task = task_of(work).with_free_images()
        closed_form_and_tir_agree(target, task, task.space(target).sample(np.random.default_rng(seed), 2))

    check()


@each_target(4, 1)
def test_closed_form_and_tir_agree_on_volumes(target: Target, examples: int) -> None:
    @given(st.sampled_from(["float32", "float16"]).flatmap(volumes), st.integers(0, 2**31))
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(work: Conv3d, seed: int) -> None:
        task = task_of(work).with_free_images()
        closed_form_and_tir_agree(target, task, task.space(target).sample(np.random.default_rng(seed), 2))

    check()


def test_closed_form_and_tir_agree_on_a_matrix_in_an_image() -> None:
    task = task_of(Dense(m=7, k=96, n=60, dtype="float32")).with_free_images()
    sampled = task.space(TARGET).sample(np.random.default_rng(1), 40)
    drawn = [config for config in sampled if config["data"] == MemoryKind.IMAGE]
    closed_form_and_tir_agree(TARGET, task, drawn[:4])


@pytest.mark.parametrize(
    ("work", "variant"),
    [
        (conv(13, (9, 11), 18, (3, 3), padding=(1, 1, 1, 1)), "conv_simd_buffered"),
        (Dense(m=13, k=24, n=37, dtype="float16"), "SGEMM_buffered"),
    ],
)
def test_closed_form_and_tir_agree_on_outputs_in_local_memory(work: Conv2d | Dense, variant: str) -> None:
    target, task = TARGET.with_options(variant=variant), task_of(work).with_free_images()
    configs = task.space(target).sample(np.random.default_rng(5), 3)
    closed_form_and_tir_agree(target, task, configs)
    assert all(task.template.form(target.limits).usage(columns_of(configs)).local_memory_bytes > 0)


@pytest.mark.parametrize("accumulate", ["float16", "float32"])
def test_closed_form_and_tir_agree_on_fp16_ahead(accumulate: str) -> None:
    """Data that is loaded ahead from buffers is held as bits, two elements in a register."""
    task = task_of(conv(21, (7, 9), 40, (1, 1), "float16")).with_free_images()
    rng, where = np.random.default_rng(3), {"accumulate": accumulate, "local_buffers": 2}
    configs = task.space(TARGET).sample(rng, 3, where=where)
    assert len(configs) == 3
    closed_form_and_tir_agree(TARGET, task, configs)


IN_FP16 = [
    PLAIN,
    conv(144, (9, 10), 37, (3, 3), "float16", stride=(2, 1), padding=(0, 1, 1, 0), batch=3),
    FILLED,
    FIRST,
    Dense(m=33, k=256, n=130, dtype="float16"),
]


@pytest.mark.parametrize(
    "work",
    few(
        [
            *IN_FP16,
            conv(144, (9, 10), 37, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0), batch=3),
            conv(20, (9, 9), 37, (3, 1), padding=(1, 0, 1, 0)),
            Dense(m=33, k=256, n=130, dtype="float32"),
        ],
        1,
        3,
        4,
        6,
    ),
    ids=lambda w: f"{w.name}_{w.dtype}",
)
def test_closed_form_and_tir_agree_on_tensor_cores(work: Conv2d | Dense) -> None:
    target, task = target_of("cuda").with_options(tf32="allow"), task_of(work)
    configs = [c for c in task.space(target).sample(np.random.default_rng(3), 600) if c["multiply_add"] != "fma"]
    ahead = [c for c in configs if c["local"]]
    closed_form_and_tir_agree(target, task, [c for c in configs if not c["local"]][:2] + ahead[:2], devices=())


def test_closed_form_and_tir_agree_on_split_floats() -> None:
    target, task = target_of("cuda"), task_of(Dense(m=33, k=256, n=130, dtype="float32"))
    space, rng = task.space(target), np.random.default_rng(3)
    drawn = [space.sample(rng, 40, where={"algorithm": TF32X3, "local": local}) for local in (0, 8)]
    assert all(drawn)
    closed_form_and_tir_agree(target, task, [config for configs in drawn for config in configs[:2]], devices=())


@pytest.mark.parametrize(
    "work",
    few(
        IN_FP16,
        1,
        4,
    ),
    ids=lambda w: w.name,
)
def test_closed_form_and_tir_agree_on_cooperative_matrices(work: Conv2d | Dense) -> None:
    target, task = Target("vulkan -device=nvidia_h200"), task_of(work)
    configs = task.space(target).sample(
        np.random.default_rng(3), 40, where={"algorithm": "direct", "multiply_add": "coopmat"}
    )
    assert configs
    closed_form_and_tir_agree(target, task, configs[:3], devices=())


@each_target(2, 1)
def test_closed_form_and_tir_agree_on_winograd(target: Target, examples: int) -> None:
    sizes, channels = st.tuples(st.integers(6, 20), st.integers(6, 20)), st.integers(4, 40)

    kinds = st.tuples(
        st.sampled_from([(3, 3), (5, 5)]), st.sampled_from(["float32", "float16"]), st.integers(1, 2), st.integers(0, 1)
    )

    @given(sizes, channels, channels, st.integers(0, 2), st.integers(1, 2), kinds, st.integers(0, 2**31))
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(
        size: tuple[int, int],
        inputs: int,
        outputs: int,
        pad: int,
        batch: int,
        kind: tuple[tuple[int, int], str, int, int],
        seed: int,
    ) -> None:
        kernel, dtype, stride, place = kind
        work = conv(inputs, size, outputs, kernel, dtype, padding=(pad,) * 4, stride=(stride,) * 2, batch=batch)
        task = task_of(training_passes(work)[place]).with_free_images()
        drawn = [
            c
            for c in task.space(target).sample(np.random.default_rng(seed), 400)
            if str(c.get("algorithm")).startswith("winograd")
        ]
        # CUDA multiplies fp16 only on tensor cores.
        assume(drawn)
        closed_form_and_tir_agree(target, task, drawn[:2])

    check()


@pytest.mark.parametrize(
    "settings", [{"inputs": 10}, {"inputs": 18, "groups": 18}, {"inputs": 12, "groups": 3}], ids=str
)
def test_closed_form_and_tir_agree_on_bytes(settings: dict[str, int]) -> None:
    """Operands of one byte an element, which kernels read as floats."""
    types = {"weight_type": "uint8", "weight_zero": 9, "data_type": "int8", "data_zero": -3}
    inputs, groups = settings["inputs"], settings.get("groups", 1)
    work = conv(inputs, (9, 10), 18, (3, 3), padding=(1,) * 4, groups=groups, has_integers=True, **types)
    for name in ("opencl -device=adreno640", "cuda -device=nvidia_h200"):
        target, task = Target(name), task_of(work)
        closed_form_and_tir_agree(target, task, list(task.space(target).sample(np.random.default_rng(3), 4)))


@each_target(2, 1)
def test_closed_form_and_tir_agree_on_depthwise_and_pointwise(target: Target, examples: int) -> None:
    # With two rows in total, TVM writes conditions into addresses, and taps that are not read coincide.
    sizes, kernels, few = (
        st.tuples(st.integers(8, 20), st.integers(8, 20)),
        st.sampled_from([(3, 3), (3, 3), (2, 3), (5, 5)]),
        st.integers(1, 2),
    )
    dtypes = st.sampled_from(["float32", "float16"])

    @given(
        sizes,
        kernels,
        st.integers(2, 40),
        st.integers(1, 40),
        st.integers(0, 2),
        few,
        few,
        dtypes,
        st.integers(0, 2**31),
    )
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(
        size: tuple[int, int],
        kernel: tuple[int, int],
        channels: int,
        outputs: int,
        pad: int,
        stride: int,
        batch: int,
        dtype: str,
        seed: int,
    ) -> None:
        task = pair_of(
            channels, size, outputs, dtype, kernel=kernel, padding=(pad,) * 4, stride=(stride,) * 2, batch=batch
        ).with_free_images()
        closed_form_and_tir_agree(target, task, task.space(target).sample(np.random.default_rng(seed), 2))

    check()


@pytest.mark.parametrize("rows", [1, 40])
def test_combinations_stand_where_the_columns_have_them(rows: int) -> None:
    """A table finds the combinations of many rows, a sort the combinations of few."""
    rng = np.random.default_rng(4)
    columns = [
        rng.integers(7, size=(rows, 1)),
        np.asarray(["flat", "rows"])[rng.integers(2, size=(1, 5))],
        rng.integers(3, size=(rows, 5)) > 0,
    ]
    found, places = combinations(*columns)
    assert len(set(found)) == len(found)
    assert places.shape == (rows, 5)
    assert [found[place] for place in places.ravel()] == list(
        zip(*(np.broadcast_to(c, (rows, 5)).ravel().tolist() for c in columns), strict=True)
    )
    assert set(np.unique(places)) == set(range(len(found)))


@pytest.mark.parametrize("groups", [1, 10])
def test_formulas_of_filter_gradients_agree_with_tir(groups: int) -> None:
    """All but the bytes of data agree. The tap decides which steps of the sum are padding, and the formulas take the
    tap in the middle.
    """
    work = conv(10, (13, 14), 10, (3, 3), padding=(2, 0, 1, 2), stride=(2, 1), batch=7, groups=groups)
    task = task_of(training_passes(work)[2], has_epilogue=False).with_free_images()
    configs = task.space(TARGET).sample(np.random.default_rng(3), 2)
    columns = task.template.form(TARGET.limits).usage(columns_of(configs))
    for index, config in enumerate(configs):
        exact, formula = usage_of(task, config), row(columns, index, len(configs))
        for field in dataclasses.fields(exact):
            found, told = getattr(exact, field.name), getattr(formula, field.name)
            if field.name in ("registers", "needed_registers", "registers_as_written"):
                assert told <= found, (field.name, config)
            elif field.name not in ("buffer_bytes", "unshared_buffer_bytes"):
                assert told == pytest.approx(found), (field.name, config)


def closed_form_and_tir_agree(
    target: Target, task: TunableTask, configs: list[Config], devices: Sequence[str] = DEVICES
) -> None:
    space = task.space(target)
    form = task.template.form(target.limits)
    columns, choices = (
        form.usage(columns_of(configs)),
        {device: choices_of(form, space, load_device(device)) for device in devices},
    )
    for index, config in enumerate(configs):
        exact, formula = usage_of(task, config, target), row(columns, index, len(configs))
        # The formula of windows counts all rows, though a kernel that reads buffers may keep the loop over them.
        most = 3 if "depthwise" in task.name and "buffer" in (config["data"], config["weight"]) else 1
        assert formula.registers <= most * exact.registers + 1e-6, config
        assert formula.needed_registers <= most * exact.needed_registers + 1e-6, config
        assert formula.registers_as_written <= exact.registers_as_written, config
        assert formula.padding == pytest.approx(exact.padding), config
        # If a tile's place in its row is known, TVM leaves out products with padding.
        assert 0.5 * formula.multiply_adds <= exact.multiply_adds <= formula.multiply_adds, config
        rough = {
            name: getattr(exact, name)
            for name in ("registers", "needed_registers", "registers_as_written", "padding", "multiply_adds")
        }
        sides, split = [int(config.get(name, 1)) for name in ("tile_o", "tile_h", "tile_w")], config.get("split_k", 1)
        if math.prod(sides) % split or all(side % split and side & (side - 1) for side in sides):
            # TVM bounds the pieces of an uneven deal by up to twice their size, and few texels by one for each piece.
            most = max(2.0, split / math.prod(sides)) * formula.local_memory_bytes
            assert formula.local_memory_bytes <= exact.local_memory_bytes <= most, config
            rough["local_memory_bytes"] = exact.local_memory_bytes
        if config.get("data") == MemoryKind.IMAGE and exact.padding > 0:
            # Work-items without results return early. The formulas count what they would read outside of the image.
            assert exact.image_bytes <= formula.image_bytes, config
            rough |= {name: getattr(exact, name) for name in ("image_bytes", "reread_image_bytes")}
        same = dataclasses.replace(formula, **rough)
        assert same == exact, config
        for device in devices:
            spec = load_device(device)
            for rules in (Rules(), Rules(count_per_work_item=True)):
                by_tir, by_form = (
                    judge(usage, spec, rules=rules, choices=choices[device]) for usage in (exact, formula)
                )
                assert by_tir.keys() == by_form.keys()
                for name, verdict in by_tir.items():
                    is_bound = name in ROUGH or (name in BOUNDED and not verdict.keep)
                    assert by_form[name].keep == verdict.keep or is_bound, (device, config, str(verdict))


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (2, 2)])
def test_registers_of_depthwise_windows_count_what_is_loaded_ahead(stride: int, dilation: int) -> None:
    """A formula that counted only the sums would give a tenth of the registers of a small tile."""
    pads, strides, dilations = (dilation,) * 4, (stride, stride), (dilation, dilation)
    work = conv(48, (28, 28), 48, (3, 3), groups=48, padding=pads, stride=strides, dilation=dilations)
    task = task_of(work).with_free_images()
    drawn = task.space(TARGET).sample(np.random.default_rng(0), 2000)
    in_images = [config for config in drawn if config["data"] == config["weight"] == MemoryKind.IMAGE]
    configs = [config for config in in_images if config["tile_w"] < 4][:4]
    assert len(configs) == 4
    usage = task.template.form(TARGET.limits).usage(columns_of(configs))
    for index, config in enumerate(configs):
        exact, formula = usage_of(task, config, TARGET), row(usage, index, len(configs))
        assert 0.3 * exact.needed_registers <= formula.needed_registers <= exact.needed_registers, config


def test_the_mesh_says_what_single_configs_say() -> None:
    """Columns that broadcast give the numbers of columns that list configs."""
    task = task_of(conv(8, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1))).with_free_images()
    space = task.space(TARGET)
    form = task.template.form(TARGET.limits)
    axes = range(len(space.knobs))
    mesh = {
        name: np.asarray(c).reshape([-1 if i == axis else 1 for i in axes])
        for axis, (name, c) in enumerate(space.knobs.items())
    }
    whole = form.usage(mesh)
    configs = space.sample(np.random.default_rng(0), 200)
    listed = form.usage(columns_of(configs))
    shape = tuple(len(choices) for choices in space.knobs.values())
    for index, config in enumerate(configs):
        place = np.unravel_index(space.index_of(config), shape)
        for field in dataclasses.fields(whole):
            if field.name != "images":
                in_mesh = np.broadcast_to(getattr(whole, field.name), shape)[place]
                assert in_mesh == np.broadcast_to(getattr(listed, field.name), len(configs))[index], (
                    field.name,
                    config,
                )


KINDS = list(itertools.product(OPERATORS, ["opencl", "cuda"]))


# Two of three operators, for one kind of device each.
@pytest.mark.parametrize(("operator", "kind"), few(KINDS, *range(0, len(KINDS), 6)))
def test_without_a_contraction_formulas_and_tir_agree(operator: str, kind: str) -> None:
    target = TARGET if kind == "opencl" else target_of(kind)
    for dtype in ("float32", "float16") if kind == "opencl" else ("float32",):
        for task in relax_tasks(*OPERATORS[operator], dtype=dtype):
            drawn = task.space(target).sample(np.random.default_rng(5), 1)
            stream_formulas_agree(target, task, [task.default_config(target), *drawn], copies={"has_copies"})


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("operator", ["global maximum", "sum of a long row"])
def test_formulas_know_the_tails_of_odd_rows(operator: str, threads: int) -> None:
    """A vector that ends with the row reads its last elements."""
    (task,) = relax_tasks(*OPERATORS[operator])
    drawn = task.space(TARGET).sample(np.random.default_rng(5), 3, where={"vector_width": 4, "threads": threads})
    assert drawn
    stream_formulas_agree(TARGET, task, drawn)


@pytest.mark.parametrize(("operator", "dtype"), [("texels", "float32"), ("rows", "float16"), ("packed", "float32")])
def test_formulas_follow_images_and_scalars(operator: str, dtype: str) -> None:
    """The knobs of Listing 4: the bytes read from images and from buffers, and copied scalars."""
    (task,) = relax_tasks(*WITH_SCALARS[operator], dtype=dtype)
    task = task.with_free_images()
    space, rng = task.space(TARGET), np.random.default_rng(5)
    places = ({"output": "image", "autobroadcast": True}, {"output": "image"}, {"output": "buffer"}, {})
    configs = [config for where in places for config in space.sample(rng, 2, where=where)]
    assert {config["autobroadcast"] for config in configs} == {False, True}
    stream_formulas_agree(TARGET, task, [task.default_config(TARGET), *configs])


def stream_formulas_agree(
    target: Target, task: TunableTask, configs: list[Config], copies: Set[str] = frozenset()
) -> None:
    """Compare all numbers but registers, and `copies`, which formulas do not know without the knob `autobroadcast`."""
    form = task.template.form(target.limits)
    columns = form.usage(columns_of(configs))
    choices = {device: choices_of(form, task.space(target), load_device(device)) for device in DEVICES}
    roughly = {*ROUGH, *BOUNDED, *(["broadcast"] if copies else [])}
    for index, config in enumerate(configs):
        exact, formula = usage_of(task, config, target), row(columns, index, len(configs))
        # In straight-line code a number that is read in two passes is read once.
        assert exact.local_loads <= formula.local_loads, config
        assert bool(exact.local_loads) == bool(formula.local_loads), config
        rough = {"registers", "needed_registers", "registers_as_written", "local_loads", *copies}
        same = dataclasses.replace(formula, **{name: getattr(exact, name) for name in rough})
        assert same == exact, config
        for device in DEVICES:
            by_tir, by_form = (
                judge(u, load_device(device), rules=Rules(), choices=choices[device]) for u in (exact, formula)
            )
            assert by_tir.keys() == by_form.keys()
            for name, verdict in by_tir.items():
                assert by_form[name].keep == verdict.keep or name in roughly, (device, config, str(verdict))


@pytest.mark.parametrize("operator", ["max pool", "average pool", "average pool, pads counted"])
def test_what_an_image_gives_as_zero_counts(operator: str) -> None:
    func = relax_tasks(*OPERATORS[operator])[0].func
    task = TunableTask.of(set_image(func, str(func.params[0].name), "global.texture"))
    assert task is not None
    configs = [task.default_config(TARGET), *task.space(TARGET).sample(np.random.default_rng(1), 3)]
    found = task.template.form(TARGET.limits).usage(columns_of(configs))
    for index, config in enumerate(configs):
        exact, formula = usage_of(task, config), row(found, index, len(configs))
        assert (exact.image_bytes, exact.unshared_image_bytes) == (formula.image_bytes, formula.unshared_image_bytes), (
            config
        )
