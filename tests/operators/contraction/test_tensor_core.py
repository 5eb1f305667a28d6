"""Contractions on tensor cores: their numbers, run as CUDA on a GPU or else as the kernel's text on the CPU, the
targets that offer them, and their use of the device.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm import tirx

from romou.base.errors import BuildError, UsageError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.contraction.tensor_core import MMA, TF32, TF32X3
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.passes.async_copies import copy_asynchronously
from romou.compiler.passes.tensor_cores import use_tensor_cores
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import TENSOR_CORES
from romou.devices.backends.cuda import dialect
from romou.devices.backends.opencl import backend as opencl
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels import cuda_on_cpu, operators
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.tensor_core_works import DENSE, FILLED, FIRST, HALF, ODD, PLAIN, POINTWISE, warp_config
from support.suite.exhaustive import few

# It changes nothing for fp16.
TARGET = operators.target_of("cuda").with_options(tf32="allow")
# Without leave to round floats.
SPLIT = operators.target_of("cuda")
SEED = 20
# Of kernels with float factors: two rounded factors are off by 2.8e-4 of a product in the root mean square.
LIMITS = {"float16": 1e-3, "float32": 5e-4}
SHAPES = [
    PLAIN,
    ODD,
    POINTWISE,
    operators.conv(16, (11, 11), 32, (5, 5), padding=(2, 2, 2, 2), **HALF),
    DENSE,
    FILLED,
    FIRST,
    operators.conv(20, (9, 9), 37, (3, 1), padding=(1, 0, 1, 0), **HALF),
]


# Pairs of its pixels and of its output channels are copied together. The last pairs are beyond the ends.
EVEN = operators.conv(64, (6, 7), 40, (1, 1), **HALF)
FLOAT_SHAPES = [dataclasses.replace(work, dtype="float32") for work in SHAPES]


def tensor_core_config(task: TunableTask, **knobs: int | str) -> Config:
    """Return a config of one warp with the smallest tile, except for `knobs`."""
    choice = MMA if task.template.workload.dtype == "float16" else TF32
    return warp_config(task, TARGET, **{"multiply_add": choice, "tile_w": 2, **knobs})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels", [4, 8])
def test_default_configs_of_one_and_two_texels_of_outputs(channels: int, dtype: str) -> None:
    task = operators.task_of(Dense(m=16, k=32, n=channels, dtype=dtype))
    config = task.default_config(SPLIT)
    arrays = operators.random_arrays(task, np.random.default_rng(SEED))
    found = run_on_cpu(task, config, arrays, SPLIT)
    assert operators.error_of(found, operators.reference(task, arrays)) < LIMITS[dtype]


def error_of_text(task: TunableTask, config: Config) -> float:
    arrays = operators.random_arrays(task, np.random.default_rng(SEED))
    return operators.error_of(run_on_cpu(task, config, arrays, TARGET), operators.reference(task, arrays))


@pytest.mark.parametrize(
    ("work", "knobs"),
    few(
        [
            (PLAIN, {"tile_o": 2, "tile_w": 4, "split_k": 2, "wg_w": 8}),
            (PLAIN, {"steps": 2, "unroll": "window", "pixels": "rows"}),
            (PLAIN, {"local": 4, "tile_w": 8, "wg_w": 8, "wg_o": 16, "steps": 2}),
            (ODD, {"tile_w": 4, "wg_w": 16}),
            (ODD, {"local": 4, "wg_w": 8}),
            (ODD, {"unroll": "taps", "split_k": 2, "tile_w": 8}),
            (SHAPES[2], {"split_k": 4, "tile_o": 4, "tile_w": 2, "wg_o": 8}),
            (SHAPES[3], {"tile_w": 8}),
            (SHAPES[4], {"split_k": 8}),
            (SHAPES[4], {"steps": 4, "tile_o": 2, "tile_w": 8, "split_k": 2}),
            (SHAPES[5], {"tile_w": 8, "split_k": 2, "steps": 2}),
            (SHAPES[6], {"tile_w": 4, "tile_o": 2, "split_k": 4}),
            (SHAPES[7], {"tile_w": 8, "steps": 2}),
            (EVEN, {"local": 4, "tile_w": 4, "steps": 2}),
            (DENSE, {"local": 8, "tile_w": 4, "steps": 4}),
            (FLOAT_SHAPES[0], {"local": 8, "tile_w": 4, "steps": 4, "pixels": "rows"}),
            (FLOAT_SHAPES[1], {"unroll": "taps", "steps": 2, "tile_w": 8}),
            (FLOAT_SHAPES[4], {"steps": 4, "tile_o": 4, "split_k": 4}),
            (FLOAT_SHAPES[7], {"tile_w": 4, "tile_o": 2}),
        ],
        0,
        5,
        9,
        13,
        14,
        15,
    ),
    ids=str,
)
def test_numbers_of_the_text(work: Conv2d | Dense, knobs: dict[str, int | str]) -> None:
    """Tiles have the layout of the PTX ISA's fragments. Every output is written, and nothing else."""
    task = operators.task_of(work)
    assert error_of_text(task, tensor_core_config(task, **knobs)) < LIMITS[work.dtype]


@pytest.mark.parametrize(
    ("work", "name"), [(PLAIN, "tensor_core_fma"), (FLOAT_SHAPES[0], "tensor_core_fma_tf32")], ids=["fp16", "fp32"]
)
def test_the_emulation_knows_wrong_kernels(work: Conv2d, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = operators.task_of(work)
    right = dialect._FUNCTIONS[name]
    swapped = right.replace('"+f"(c[4]), "+f"(c[1])', '"+f"(c[1]), "+f"(c[4])')
    assert swapped != right
    monkeypatch.setitem(dialect._FUNCTIONS, name, swapped)
    assert error_of_text(task, tensor_core_config(task)) > 0.1


def test_the_emulation_knows_what_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    task = operators.task_of(PLAIN)
    config = tensor_core_config(task, local=4, steps=2)
    assert error_of_text(task, config) < 1e-3
    # An iteration waits for the copies of all iterations but the next one.
    right = "async_wait_group_1() { wait_for_copies(1); }"
    assert right in cuda_on_cpu._PRELUDE
    monkeypatch.setattr(cuda_on_cpu, "_PRELUDE", cuda_on_cpu._PRELUDE.replace(right, right.replace("(1)", "(2)")))
    assert not error_of_text(task, config) < 0.1


@pytest.mark.parametrize("work", [PLAIN, FLOAT_SHAPES[4]], ids=lambda w: w.name)
def test_the_search_begins_with_a_config_of_each_kind(work: Conv2d | Dense) -> None:
    task = operators.task_of(work)
    starts = task.starts(TARGET)
    assert starts[0] == task.default_config(TARGET)
    assert sorted(start["local"] > 0 for start in starts) == [False, True]
    for start in starts:
        assert start["multiply_add"] != "fma"
        assert task.space(TARGET).is_valid(start)


def test_an_iteration_of_copies_ahead_has_one_barrier() -> None:
    task = operators.task_of(PLAIN)
    source = build_task(task, tensor_core_config(task, local=4, steps=4), TARGET).imports[0].inspect_source()
    (iteration,) = re.findall(r"\n  for \(int .*?\n  }\n", source[source.index("main_kernel") :], re.DOTALL)
    assert iteration.count("__syncthreads();") == 1
    assert (
        iteration.index("wait_for_copies(3)")
        < iteration.index("__syncthreads();")
        < iteration.index("tensor_core_fma(")
        < iteration.index("copy_texel_async(")
    )


def test_neighbouring_texels_are_one_copy() -> None:
    task = operators.task_of(EVEN)
    config = tensor_core_config(task, local=4, tile_w=4, steps=2)
    source = build_task(task, config, TARGET).imports[0].inspect_source()
    assert set(re.findall(r"copy_\w+_async", source)) == {"copy_texel_pair_async"}


def test_only_whole_texels_are_copied_ahead() -> None:
    buffer, shared = (
        tirx.decl_buffer([8], "float32", "data"),
        tirx.decl_buffer([8], "float32", "staged", scope="shared"),
    )
    store = tirx.BufferStore(shared, tirx.BufferLoad(buffer, [tirx.const(0, "int32")]), [tirx.const(0, "int32")])
    body = tirx.AttrStmt(tirx.const(0, "int32"), "async_scope", tirx.const(1, "int32"), store)
    with pytest.raises(BuildError, match="only whole texels are copied past the registers"):
        copy_asynchronously(tvm.IRModule({"main": tirx.PrimFunc([], body)}))


def split_config(task: TunableTask, **knobs: int | str) -> Config:
    """Return a valid config with floats that are split."""
    (config, *_) = (c for c in task.starts(SPLIT) if c["algorithm"] == TF32X3)
    config = config.replace(**knobs)
    assert task.space(SPLIT).is_valid(config)
    return config


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((196, 384, 1152), (1, 4, 4)),
        ((3136, 96, 288), (1, 8, 1)),
        ((49, 3072, 768), (1, 4, 16)),
        ((1024, 1024, 1024), (2, 8, 2)),
    ],
)
def test_split_products_start_with_the_fastest_tile(sizes: Sequence[int], tile: Sequence[int]) -> None:
    """The fastest of some 40 configs on an NVIDIA H100."""
    config = split_config(operators.task_of(Dense(**dict(zip("mkn", sizes, strict=True))), has_epilogue=False))
    assert tuple(config[name] for name in ("tile_o", "tile_w", "split_k")) == tile


def split_error(task: TunableTask, config: Config, arrays: list[np.ndarray]) -> float:
    return operators.error_of(run_on_cpu(task, config, arrays, SPLIT), operators.reference(task, arrays))


@pytest.mark.parametrize(
    ("work", "knobs"),
    few(
        [
            (FLOAT_SHAPES[0], {"local": 8, "tile_w": 4, "steps": 4, "pixels": "rows"}),
            (FLOAT_SHAPES[1], {"unroll": "taps", "steps": 2, "tile_w": 8, "split_k": 1}),
            (FLOAT_SHAPES[2], {"split_k": 4, "tile_o": 4, "tile_w": 2, "steps": 1}),
            (FLOAT_SHAPES[4], {"steps": 4, "tile_o": 2, "split_k": 4}),
            (FLOAT_SHAPES[5], {"tile_w": 8, "split_k": 2, "steps": 2}),
            (FLOAT_SHAPES[7], {"tile_w": 4, "tile_o": 2}),
        ],
        1,
        3,
    ),
    ids=str,
)
def test_split_floats_keep_their_precision(work: Conv2d | Dense, knobs: dict[str, int | str]) -> None:
    task = operators.task_of(work)
    arrays = operators.random_arrays(task, np.random.default_rng(SEED))
    assert split_error(task, split_config(task, **{"local": 0, **knobs}), arrays) < 1e-6


def test_weights_of_bytes_are_converted_in_registers() -> None:
    """Copies past the registers convert nothing, so no kernel stages bytes."""
    task = operators.task_of(dataclasses.replace(FLOAT_SHAPES[0], has_integers=True, weight_type="int8", weight_zero=3))
    arrays = operators.random_arrays(task, np.random.default_rng(SEED))
    configs = [config for config in task.starts(SPLIT) if config["multiply_add"] == TF32X3]
    assert [config["local"] for config in configs] == [0]
    assert split_error(task, configs[0], arrays) < 1e-6


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e30, 1e-30])
def test_split_floats_may_be_infinite_or_far_from_one(value: float) -> None:
    """An infinite number of the data gives the sums that IEEE 754 gives, also where a weight is a number of TF32."""
    task = operators.task_of(FLOAT_SHAPES[4])
    arrays = operators.random_arrays(task, np.random.default_rng(SEED))
    arrays[0][3, 5] = value
    arrays[1].flat[::3] = 0.5
    outputs, expected = run_on_cpu(task, config := split_config(task), arrays, SPLIT), operators.reference(task, arrays)
    assert config["multiply_add"] == TF32X3
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-3)


def test_floats_are_rounded_to_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rounding, their last bits would be truncated: twice the error."""
    task, name = operators.task_of(FLOAT_SHAPES[0]), "tf32_of_float"
    rounded = error_of_text(task, tensor_core_config(task))
    monkeypatch.setitem(
        dialect._FUNCTIONS, name, "__device__ __forceinline__ float tf32_of_float(float value) { return value; }"
    )
    assert error_of_text(task, tensor_core_config(task)) > 1.7 * rounded


@pytest.mark.parametrize(
    "work", few([PLAIN, ODD, DENSE, FILLED, FLOAT_SHAPES[1], FLOAT_SHAPES[4], FLOAT_SHAPES[6]], 1, 5), ids=str
)
def test_text_in_opencl(work: Conv2d | Dense, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's OpenCL takes PTX, too. Operands are in memory, or staged."""
    monkeypatch.setattr(opencl, "PTX_PRODUCTS_FROM", 0)
    task, target = operators.task_of(work), Target("opencl -device=nvidia_h200")
    arrays = operators.random_arrays(task, np.random.default_rng(SEED))
    expected = operators.reference(task, arrays)
    configs = [config for config in task.starts(target) if config["multiply_add"] in (MMA, TF32X3)]
    assert [config["local"] > 0 for config in configs].count(True) == (work is not FLOAT_SHAPES[6])
    for config in configs:
        # The CPU takes texels at any address.
        (kernel, *_) = inspect_function(task.schedule(config, target)["main"], target)
        staged = re.findall(r"__local \w+ (?:patch|kernel)_shared_ptr.*", kernel.source)
        assert len(staged) == (2 if config["local"] else 0)
        assert all("aligned(64)" in array for array in staged)
        error = operators.error_of(run_on_cpu(task, config, arrays, target), expected)
        assert error < (1e-3 if work.dtype == "float16" else 1e-6), config


PIECES = {"local": 0, "steps": 1, "tile_o": 1, "split_k": 2}


@pytest.mark.parametrize(
    ("knobs", "is_valid"),
    [
        ({}, True),
        ({"data": "image"}, False),
        ({"weight": "image"}, False),
        # Each piece of a sum adds up whole texels of an image.
        (PIECES | {"tile_w": 2, "output": "image"}, True),
        (PIECES | {"tile_w": 2, "output": "image", "split_k": 4}, False),
        (PIECES | {"tile_w": 2, "output": "buffer", "split_k": 4}, True),
    ],
    ids=str,
)
def test_where_tensor_cores_read_and_write(
    knobs: dict[str, str], is_valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl, "PTX_PRODUCTS_FROM", 0)
    task, target = (
        operators.task_of(operators.conv(64, (14, 14), 64, (3, 3), "float16")).with_free_images(),
        Target("opencl -device=nvidia_h200"),
    )
    config = next(config for config in task.starts(target) if config["multiply_add"] == MMA)
    assert task.space(target).is_valid(config.replace(**knobs)) == is_valid


def test_without_the_pass_every_work_item_sums_up_by_itself() -> None:
    task = operators.task_of(PLAIN)
    with tvm.transform.PassContext(disabled_pass=["use_tensor_cores"]):
        assert error_of_text(task, tensor_core_config(task)) < 1e-3


@pytest.mark.parametrize(
    "work",
    few([*SHAPES, FLOAT_SHAPES[1], FLOAT_SHAPES[4]], 1, 4, 6, 8),
    ids=lambda w: f"{w.name}_{w.dtype}-{operators.kind_id('cuda')}",
)
def test_drawn_configs(work: Conv2d | Dense) -> None:
    """Random configs are run on a GPU and compiled elsewhere."""
    task, rng = operators.task_of(work), np.random.default_rng(SEED)
    arrays = operators.random_arrays(task, rng)
    expected = operators.reference(task, arrays) if operators.has_device(TARGET) else arrays[-1]
    drawn = [c for c in task.space(TARGET).sample(rng, 600) if c["multiply_add"] != "fma" and c["unroll"] != "window"]
    for config in drawn[: 12 if operators.has_device(TARGET) else 2]:
        operators.assert_agrees(TARGET, task, config, arrays, expected, LIMITS[work.dtype])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_older_gpus_compile_it_too(arch: str) -> None:
    target = Target(f"cuda -arch={arch} -tf32=allow")
    for task in map(operators.task_of, (PLAIN, FLOAT_SHAPES[0])):
        operators.compile_only(build_task(task, tensor_core_config(task), target), target)


def test_who_is_offered_them() -> None:
    """Copies need whole texels of fp16 and an NVIDIA GPU since 8.0. A phone never offers them."""

    def choices(work: Conv2d | Dense, target: Target) -> tuple[object, ...]:
        return operators.task_of(work).space(target).knobs["multiply_add"]

    assert MMA in choices(PLAIN, TARGET)
    for target in (
        Target("cuda -arch=sm_75"),
        operators.target_of("opencl"),
        Target("opencl -device=adreno640"),
        Target("opencl -device=nvidia_h200"),
    ):
        assert MMA not in choices(PLAIN, target)
        assert "steps" not in operators.task_of(PLAIN).space(target).knobs
    for work in (dataclasses.replace(PLAIN, groups=2), Dense(m=8, k=62, n=64, **HALF)):
        assert MMA not in choices(work, TARGET)


def test_floats_are_offered_them_where_the_user_allows_it() -> None:
    floats = operators.task_of(FLOAT_SHAPES[0])
    allowed = Target("cuda -arch=sm_80 -tf32=allow")
    assert floats.space(allowed).knobs["multiply_add"] == ("fma", TF32)
    # Winograd's way needs fewer products, and makes them in single precision.
    starts = floats.starts(allowed)
    assert [(c["algorithm"], c["multiply_add"]) for c in starts] == [("direct", TF32)] * 2 + [
        ("winograd2", "fma"),
        ("winograd4", "fma"),
    ]
    assert all(floats.space(allowed).is_valid(c) for c in starts)
    assert operators.task_of(PLAIN).space(allowed).knobs["multiply_add"] == ("fma", MMA)
    config = tensor_core_config(floats)
    assert floats.precision(config) == floats.precision(floats.default_config(allowed)) == TF32
    assert floats.precision(config.replace(multiply_add="fma")) is None
    without, split = Target("cuda -arch=sm_75 -tf32=allow"), Target("cuda -arch=sm_80")
    assert floats.space(without).knobs["multiply_add"] == ("fma",)
    assert floats.space(split).knobs["multiply_add"] == ("fma", TF32X3)
    # A record or a config of another target: one clear error.
    for target, problem in ((without, "unknown knob 'steps'"), (split, "knob 'multiply_add' has no choice 'tf32'")):
        assert not floats.space(target).knows(config)
        with pytest.raises(UsageError, match=problem):
            build_task(floats, config, target)


@pytest.mark.parametrize(("work", "choice"), [(PLAIN, MMA), (FLOAT_SHAPES[0], TF32)], ids=["fp16", "fp32"])
def test_the_cost_model_knows_every_choice(work: Conv2d, choice: str) -> None:
    task = operators.task_of(work)
    space, rng = task.space(TARGET), np.random.default_rng(SEED)
    # Only one of thousands is valid, so each knob is drawn that often.
    configs = [
        *task.starts(TARGET),
        *(config for name in ("fma", choice) for config in space.sample(rng, 200, where={"multiply_add": name})),
    ]
    assert {config["multiply_add"] for config in configs} == set(space.knobs["multiply_add"]) == {"fma", choice}
    assert np.isfinite(TaskFeatures(task.template, TARGET.limits, TARGET.spec)(configs)).all()


def test_a_nest_of_another_shape_is_refused() -> None:
    body = tirx.AttrStmt(tirx.const(0, "int32"), TENSOR_CORES, tirx.const(1, "int32"), tirx.Evaluate(0))
    with pytest.raises(BuildError, match="a nest that is marked for tensor cores adds up products"):
        use_tensor_cores(tvm.IRModule({"main": tirx.PrimFunc([], body)}))
