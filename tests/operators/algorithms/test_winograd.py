"""Winograd's convolutions against the plain definition, from single configs to whole models."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import te, tirx

import romou
from romou.base.limits import Limits
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.operators.algorithms.winograd.convolution import SIDES, TILES
from romou.compiler.operators.algorithms.winograd.matrices import transform_matrices
from romou.compiler.operators.families.convolution import CONV2D
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.presets import load_preset
from romou.devices.targets import Target
from romou.runtime.rpc import Address
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions, RpcRunner
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records import RecordStore
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.operators import (
    assert_agrees,
    conv,
    each_kind,
    error_of,
    has_device,
    random_arrays,
    random_configs,
    reference,
    run,
    target_of,
    task_of,
)
from support.models.small_networks import NetworkBuilder, random_inputs
from support.servers.rpc_servers import serving
from support.suite.exhaustive import few

SEED = 8
PHONE = Target("opencl -device=adreno640 -half=storage")
SAME = (1, 1, 1, 1)
SHAPES = [
    conv(4, (7, 7), 4, (3, 3), padding=SAME),
    conv(13, (13, 13), 13, (3, 3), batch=5, padding=SAME),
    conv(64, (14, 14), 64, (3, 3)),
    conv(64, (27, 27), 13, (3, 3), padding=(0, 1, 1, 0)),
    conv(13, (56, 55), 64, (3, 3), padding=SAME),
    conv(4, (14, 7), 13, (3, 3), padding=(2, 2, 2, 2), batch=5),
    conv(7, (11, 13), 10, (5, 5), padding=(2, 2, 2, 2), batch=3),
    conv(24, (13, 17), 9, (5, 5), padding=(0, 1, 2, 0)),
    conv(4, (12, 9), 13, (5, 5)),
]
# Side of a window, and the algorithm.
FORMS = [(window, name) for window, sides in SIDES.items() for name, tile in TILES.items() if tile in sides]


def side_of(window: int, algorithm: str) -> int:
    """Return the side of an input tile."""
    return TILES[algorithm] + window - 1


def configs_of(task: TunableTask, target: Target, algorithm: str, count: int, **wanted: str) -> list[Config]:
    """Return random configs of an algorithm."""
    space, rng, found = task.space(target), np.random.default_rng(SEED), {}
    while len(found) < count:
        drawn = (
            c
            for c in space.sample(rng, 200)
            if c["algorithm"] == algorithm and all(c[k] == v for k, v in wanted.items())
        )
        found.update((c.key, c) for c in drawn)
    return list(found.values())[:count]


def residual_task(w: Conv2d) -> TunableTask:
    """Return the operator with a bias, the sum with another tensor, and a ReLU after it."""
    data = te.placeholder((w.batch, -(-w.in_channels // 4), *w.in_hw, 4), w.dtype, "data")
    weight = te.placeholder(CONV2D.operands(w)["weight"], w.dtype, "weight")
    bias, other = (
        te.placeholder((1, w.out_texels, 1, 1, 4), w.dtype, "bias"),
        te.placeholder(w.output_shape, w.dtype, "other"),
    )
    total = CONV2D.define(w, data, weight)
    zero = tirx.const(0, w.dtype)
    out = te.compute(
        total.shape,
        lambda n, o, y, x, c: te.max(total[n, o, y, x, c] + bias[0, o, 0, 0, c] + other[n, o, y, x, c], zero),
        name="out",
    )
    task = TunableTask.of(te.create_prim_func([data, weight, bias, other, out]))
    assert task is not None
    return task


# Each window and tile, whole and cut tiles, padding on some sides, a batch.
@random_configs
@each_kind("work", SHAPES, opencl=(5, 7), cuda=(1,), vulkan=(2,))
def test_configs_agree_with_the_plain_definition(work: Conv2d, target: Target, drawn: int) -> None:
    task, rng = residual_task(work), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    starts = [c for c in task.starts(target) if str(c["algorithm"]).startswith("winograd")]
    assert {c["algorithm"] for c in starts} >= {"winograd2", "winograd4"}
    for start in starts:
        # Long kernels are run by tests/operators/families/test_other_compilers.py.
        for config in (
            [start, *configs_of(task, target, start["algorithm"], drawn, unroll="lanes")]
            if has_device(target)
            else [start]
        ):
            assert task.space(target).is_valid(config)
            assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize(("window", "algorithm"), FORMS)
def test_matrices_convolve(window: int, algorithm: str) -> None:
    """A^T ((G g) * (B^T d)) is exactly the sum of products, in fractions."""
    tile = TILES[algorithm]
    form, rng = transform_matrices(tile, window), np.random.default_rng(SEED)
    data, weight = (rng.integers(-9, 10, size=extent).astype(object) for extent in (tile + window - 1, window))
    rows = {name: np.array(getattr(form, name), dtype=object) for name in ("data", "weight", "output")}
    found = rows["output"] @ ((rows["weight"] @ weight) * (rows["data"] @ data))
    assert list(found) == [data[y : y + window] @ weight for y in range(tile)]


@pytest.mark.parametrize(("window", "algorithm"), FORMS)
def test_long_sums_keep_their_digits(window: int, algorithm: str) -> None:
    """fp32 sums of 512 channels have less than a third of the tolerated error against double precision.

    Products are added one by one, as in the kernels and unlike BLAS, so the error is the same on every processor.
    """
    tile = TILES[algorithm]
    form, rng, channels, side = transform_matrices(tile, window), np.random.default_rng(SEED), 512, tile + window - 1
    data, weight = rng.standard_normal((channels, side, side)), rng.standard_normal((channels, window, window))
    expected = np.array(
        [[np.sum(data[:, y : y + window, x : x + window] * weight) for x in range(tile)] for y in range(tile)]
    )
    b, g, a = (np.array(rows, dtype=np.float64) for rows in (form.data, form.weight, form.output))

    def transformed(matrix: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        """Return matrix @ tile @ matrix.T for every tile, in single precision, in order."""
        single = matrix.astype("float32")
        for _ in range(2):
            total = np.zeros((*tiles.shape[:-2], len(single), tiles.shape[-1]), "float32")
            for k, column in enumerate(single.T):
                total += column[:, None] * tiles[..., None, k, :]
            tiles = total.swapaxes(-1, -2)
        return tiles

    left, right = transformed(b, data.astype("float32")), (g @ weight @ g.T).astype("float32")
    total = np.zeros((side, side), "float32")
    for one, other in zip(left, right, strict=True):
        total += one * other
    found = error_of(transformed(a, total), expected)
    assert found < 3e-5, found


@each_kind("form", [(3, "winograd2"), (5, "winograd4")], opencl=(0,), cuda=(1,))
def test_each_way_to_share_work(form: tuple[int, str], target: Target) -> None:
    """Local memory and split reductions agree for tiles and groups that divide nothing."""
    window, algorithm = form
    task = task_of(conv(32, (11, 11), 20, (window, window), padding=SAME))
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(task, arrays)
    start = next(c for c in task.starts(target) if c["algorithm"] == algorithm)
    for split_k, local, local_buffers in ((1, 4, 1), (1, 2, 2), (4, 0, 1), (8, 0, 1)):
        config = start.replace(
            split_k=split_k, local=local, local_buffers=local_buffers, tile_o=2, tile_w=2, wg_o=2, wg_w=2
        )
        assert task.space(target).is_valid(config)
        assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize(("window", "algorithm"), few(FORMS, 1, 3))
def test_the_text_of_cuda_kernels(window: int, algorithm: str) -> None:
    """CUDA text that runs on the CPU misses no barrier and accesses nothing outside of its arrays."""
    target = target_of("cuda")
    task = task_of(conv(5, (10, 11), 7, (window, window), padding=(1, 2, 1, 1), batch=2))
    arrays = random_arrays(task, np.random.default_rng(SEED))
    (start,) = (c for c in task.starts(target) if c["algorithm"] == algorithm)
    assert error_of(run_on_cpu(task, start, arrays, target), reference(task, arrays)) < 1e-5


@pytest.mark.parametrize(
    ("window", "algorithm", "dtype"),
    few(
        [
            (3, "winograd2", "float32"),
            (5, "winograd2", "float32"),
            (5, "winograd4", "float32"),
            (3, "winograd4", "float16"),
            (5, "winograd2", "float16"),
        ],
        *(0, 2, 4),
    ),
)
def test_images(window: int, algorithm: str, dtype: str, opencl_device: tvm.runtime.Device) -> None:
    """The data transform and the products read images, and the output transform writes them."""
    work = conv(13, (14, 9), 24, (window, window), dtype, padding=SAME, batch=2)
    task = task_of(work).with_free_images()
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(task_of(replace(work, dtype="float32")), [a.astype("float32") for a in arrays])
    for names in (
        (("data", "weight", "output"), ("data",), ("output",))
        if algorithm == "winograd4"
        else (("data", "weight", "output"),)
    ):
        places = {name: "image" if name in names else "buffer" for name in ("data", "weight", "output")}
        (config,) = configs_of(task, PHONE, algorithm, 1, **places, unroll="lanes")
        assert set(task.image_scopes(config, PHONE)) == {task.template.names[name] for name in names}
        error = error_of(run(task, config, arrays, PHONE, opencl_device), expected)
        assert error < (1e-5 if dtype == "float32" else 1e-2), f"{config}: {error}"


@pytest.mark.parametrize(
    ("window", "algorithm"), [(window, name) for window, name in FORMS if side_of(window, name) < 7]
)
def test_half_precision_storage(window: int, algorithm: str) -> None:
    """Transforms and sums are fp32, and workspaces are rounded to fp16.

    With tensor cores, fewer products are no gain.
    """
    target = target_of("opencl")
    work = conv(64, (14, 13), 20, (window, window), "float16", padding=SAME)
    task = task_of(work)
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(task_of(replace(work, dtype="float32")), [a.astype("float32") for a in arrays])
    start = next(c for c in task.starts(target) if c["algorithm"] == algorithm)
    assert_agrees(target, task, start, arrays, expected, 1e-2)
    assert "algorithm" not in task.space(target_of("cuda")).knobs


def test_which_convolutions_have_the_knob() -> None:
    target = target_of("opencl")
    assert task_of(SHAPES[0]).space(target).knobs["algorithm"] == ("direct", "winograd2", "winograd4")
    assert task_of(conv(8, (5, 5), 8, (3, 3))).space(target).knobs["algorithm"] == ("direct", "winograd2")
    # Larger tiles if they save products.
    assert task_of(conv(8, (24, 24), 8, (3, 3), padding=SAME)).space(target).knobs["algorithm"] == (
        "direct",
        "winograd2",
        "winograd4",
        "winograd6",
    )
    assert task_of(conv(8, (7, 7), 8, (5, 5))).space(target).knobs["algorithm"] == ("direct", "winograd2")
    assert task_of(conv(8, (12, 12), 8, (5, 5))).space(target).knobs["algorithm"] == (
        "direct",
        "winograd2",
        "winograd4",
    )
    assert task_of(conv(8, (12, 12), 8, (2, 2))).space(target).knobs["algorithm"] == (
        "direct",
        "winograd2",
        "winograd4",
        "winograd6",
    )
    # Numbers in fp16 between the kernels keep too few digits for tiles of seven pixels a side and more.
    assert task_of(conv(8, (12, 12), 8, (5, 5), "float16")).space(target).knobs["algorithm"] == ("direct", "winograd2")
    assert task_of(conv(8, (12, 12), 8, (2, 2), "float16")).space(target).knobs["algorithm"] == (
        "direct",
        "winograd2",
        "winograd4",
    )
    works = [
        conv(8, (12, 12), 8, kernel, **other)
        for other in ({"dilation": (2, 2)}, {"groups": 2})
        for kernel in ((3, 3), (5, 5))
    ]
    works += [conv(8, (12, 12), 8, (3, 5)), conv(8, (12, 12), 8, (7, 7)), conv(3, (12, 12), 8, (3, 3))]
    for work in works:
        assert "algorithm" not in task_of(work).space(target).knobs
    assert task_of(SHAPES[0]).default_config(target)["algorithm"] == "direct"


@pytest.mark.parametrize(
    ("channels", "side", "device", "algorithm"),
    [
        (256, 14, "mali_g76", "winograd4"),
        (512, 7, "mali_g78", "winograd2"),
    ],
)
def test_the_default_algorithm_of_a_phone_weighs_the_bytes_of_its_weights(
    channels: int, side: int, device: str, algorithm: str
) -> None:
    """A smaller memory rate never makes the transformed weight larger."""
    target = Target(f"opencl -device={device}")
    template = task_of(conv(channels, (side,) * 2, channels, (3, 3), padding=SAME)).with_free_images().template
    assert template.default_config(target.limits)["algorithm"] == algorithm
    sizes = [
        math.prod(
            template.algorithms[
                str(template.default_config(replace(target.limits, instructions_per_byte=rate))["algorithm"])
            ].weight_shape
        )
        for rate in (0.1, 1.0, 10.0, 100.0)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] or (channels, algorithm) == (64, "direct")


def test_transforms_fit_into_the_registers_of_a_phone() -> None:
    """Mali-G76 has 64 registers, so a tile of 144 elements is excluded unless the criterion is relaxed."""
    target = Target("opencl -device=mali_g76")
    task = task_of(conv(16, (24, 24), 16, (5, 5), padding=(2, 2, 2, 2)))
    cut = pruned_task(task, target)
    assert all(count.slack == 1 for count in cut.space(target).report.criteria)
    kept = {c["algorithm"]: c for c in cut.space(target).sample(np.random.default_rng(SEED), 200)}
    assert kept.keys() == {"direct", "winograd2", "winograd4"}
    for config in kept.values():
        if config["algorithm"] != "direct":
            build_task(cut, config, target)


def test_transforms_keep_to_the_limits_of_a_device() -> None:
    template = task_of(conv(8, (24, 24), 8, (3, 3), padding=SAME)).template
    for items, local_bytes, names in (
        (128, 16384, {*TILES}),
        (127, 16384, {"winograd2", "winograd4"}),
        (96, 9215, {"winograd2"}),
        (63, 16384, set()),
    ):
        limits = Limits(max_work_group_size=items, local_memory_bytes=local_bytes, preset=load_preset("gpu"))
        assert {*template.space(limits).knobs.get("algorithm", ["direct"])} == {"direct", *names}
        assert {c.get("algorithm", "direct") for c in template.starts(limits)} == {"direct", *names}


def test_direct_configs_keep_their_numbers() -> None:
    """Spaces recorded without the knob number their configs as today's spaces do."""
    task = task_of(SHAPES[2]).with_free_images()
    space = task.space(PHONE)
    old = task.template.algorithms["direct"].space(PHONE.limits)
    assert list(space.knobs.items())[1:] == list(old.knobs.items())
    for index in np.random.default_rng(SEED).integers(old.size, size=300):
        config = space.at(int(index))
        assert {**old.at(int(index)), "algorithm": "direct"} == dict(config)
        assert space.is_valid(config) == old.is_valid(old.at(int(index)))


@pytest.mark.parametrize(("window", "algorithm"), FORMS)
def test_what_the_transforms_move(window: int, algorithm: str) -> None:
    """Transforms move the bytes that their kernels load and store. Here tiles divide everything."""
    tile, side, texels = TILES[algorithm], side_of(window, algorithm), 16
    out = 6 * tile
    work = conv(64, (out + window - 1,) * 2, 64, (window, window))
    task = task_of(work, has_epilogue=False)
    start = next(c for c in task.starts(PHONE) if c["algorithm"] == algorithm)
    first, _, last = inspect_function(task.schedule(start, PHONE)["main"], PHONE)
    if side <= 4:
        assert [k.traffic.buffer_bytes for k in (first, last)] == [16 * side**2] * 2
    else:
        # Of each work-item of a tile: a column from memory, then a row that all have left in local memory.
        assert [k.traffic.buffer_bytes for k in (first, last)] == [16 * side] * 2
        assert first.traffic.local_bytes == 16 * side
        assert all(k.registers.live <= 128 for k in (first, last))
    moved = 16 * texels * (work.in_hw[0] ** 2 + 2 * 36 * side**2 + out**2)
    assert task.template.algorithms[algorithm].transform_bytes == moved


def model_error(monkeypatch: pytest.MonkeyPatch, model: onnx.ModelProto, target: str, algorithm: str) -> float:
    """Return the error of the whole model with the algorithm for all operators that have it."""
    chosen: list[Config] = []

    def config_of(task: TunableTask, target: Target) -> Config:
        default, *others = task.starts(target)
        config = next((c for c in others if c["algorithm"] == algorithm), default)
        chosen.append(config)
        return config

    monkeypatch.setattr(TunableTask, "default_config", config_of)
    compiled = romou.compile(model, target=target, device=0)
    assert algorithm in {config.get("algorithm") for config in chosen}
    inputs = random_inputs(model, seed=5)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    return max(relative_l2_error(a, b) for a, b in zip(compiled.run(inputs), expected, strict=True))


def test_a_model_in_images(opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph puts data, output and operands of the epilogue into images.

    tests/module/test_workspaces.py runs such a model in buffers.
    """
    g = NetworkBuilder({"image": (1, 6, 12, 12)})
    x = g.add("Relu", g.conv("image", 6, 10, pads=[1, 1, 1, 1]))
    model = g.model(g.add("Relu", g.add("Add", g.conv(x, 10, 10, pads=[1, 1, 1, 1]), x)))
    target, algorithm = "opencl -device=adreno640", "winograd4"
    assert model_error(monkeypatch, model, target, algorithm) < 1e-5
    kernels = Counter(
        kernel.function for kernel in romou.inspect(model, target=target) if kernel.config.get("algorithm") == algorithm
    )
    assert set(kernels.values()) == {3}
    measured = romou.bench(model, target=target, times=False)
    assert all(
        "group_bytes_per_iteration" in one.measures
        for one in measured.operators
        if one.config.get("algorithm") == algorithm
    )


@pytest.mark.parametrize("way", ["here", "over RPC"])
def test_candidates_are_given_the_transformed_weight(way: str, opencl_device: tvm.runtime.Device) -> None:
    task, target = task_of(SHAPES[0]), Target("opencl")
    options = MeasureOptions(
        build_workers=1, build_timeout_s=120, run_timeout_s=60, min_repeat_ms=0.1, connect_timeout_s=60
    )
    with contextlib.ExitStack() as stack:
        builder = stack.enter_context(contextlib.closing(LocalBuilder(target, options)))
        if way == "here":
            runner: LocalRunner | RpcRunner = LocalRunner("opencl:0", options)
        else:
            runner = RpcRunner(Address.parse(stack.enter_context(serving()).address), options)
        stack.enter_context(contextlib.closing(runner))
        built = builder.build(
            [Candidate(task=task, config=config, trial=trial) for trial, config in enumerate(task.starts(target))]
        )
        results = list(runner.run(built))
    assert [(r.outcome, r.error) for r in results] == [("ok", None)] * 3
    assert all(r.relative_l2_error is not None and r.relative_l2_error < 1e-5 for r in results)


def test_tuning_measures_each_algorithm_and_a_saved_model_keeps_it(
    tmp_path: Path, opencl_device: tvm.runtime.Device
) -> None:
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    model = graph.model(graph.add("Relu", graph.conv("x", 8, 12, pads=[1, 1, 1, 1])))
    tuned = romou.tune(model, target="opencl", trials=3, work_dir=tmp_path / "records")
    assert set(tuned.summary().outcomes) <= {"ok", "timeout"}
    with RecordStore(tmp_path / "records") as store:
        assert {record.config["algorithm"] for record in store} == {"direct", "winograd2", "winograd4"}
    tuned.save(tmp_path / "model.romou")
    inputs = random_inputs(model, seed=5)
    (expected,) = run_onnxruntime(model, inputs) or ()
    for one in (tuned, romou.load(tmp_path / "model.romou")):
        (output,) = one.run(inputs)
        assert relative_l2_error(output, expected) < 1e-5
