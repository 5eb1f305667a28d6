"""Winograd's algorithm for strided convolutions, over phases of the data, in all three passes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tvm

from romou.compiler.operators.algorithms.algorithm import WinogradAlgorithm
from romou.compiler.operators.algorithms.winograd.convolution import TILES
from romou.compiler.operators.families.conv2d_backward_filter import training_passes
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.operators import (
    assert_agrees,
    conv,
    conv_transpose,
    each_kind,
    error_of,
    random_arrays,
    reference,
    run,
    target_of,
    task_of,
)
from support.suite.exhaustive import exhaustive, few, in_turn

SEED = 8
PHONE = Target("opencl -device=adreno640 -half=storage")
ALEXNET = conv(3, (224, 224), 96, (11, 11), padding=(2,) * 4, stride=(4, 4), batch=128)
# Windows that strides do not divide, fewer channels than a texel has, padding on some sides, images of odd and prime
# sizes.
LAYERS = [
    conv(3, (23, 26), 7, (7, 7), padding=(3, 3, 2, 3), stride=(2, 2)),
    conv(5, (29, 31), 9, (11, 11), padding=(2, 1, 2, 2), stride=(4, 4), batch=3),
    conv(1, (17, 19), 6, (5, 5), padding=(2, 2, 2, 2), stride=(2, 2)),
    conv(8, (18, 16), 12, (3, 3), padding=(1, 1, 1, 1), stride=(2, 2), batch=2),
    conv(6, (17, 12), 5, (5, 3), padding=(1, 1, 2, 0), stride=(2, 1)),
    conv(2, (41, 35), 4, (9, 9), padding=(0, 4, 1, 0), stride=(2, 2), batch=3),
    conv(6, (27, 25), 10, (7, 7), padding=(0, 4, 7, 2), stride=(3, 3)),
]


def is_winograd(config: object) -> bool:
    return str(config["algorithm"]) in TILES  # type: ignore[index]


def form_of(work: Conv2d, algorithm: str) -> WinogradAlgorithm:
    found = task_of(work, has_epilogue=False).template.algorithms[algorithm]
    assert isinstance(found, WinogradAlgorithm)
    return found


def passes_of(layer: Conv2d, *, is_weight_computed: bool) -> list[TunableTask]:
    """Return the three passes, with an epilogue if the weight is a constant."""
    return [
        task_of(work, has_epilogue=not is_weight_computed, is_weight_computed=is_weight_computed)
        for work in training_passes(layer)
    ]


@in_turn
@pytest.mark.parametrize("is_weight_computed", [False, True], ids=["constant", "computed"])
@each_kind("layer", LAYERS, opencl=(0, 4), cuda=(1,), vulkan=(2,))
def test_passes_agree_with_the_plain_definition(layer: Conv2d, is_weight_computed: bool, target: Target) -> None:
    """Each pass agrees with the largest tile and a weight transformed ahead, or in each call."""
    for task in passes_of(layer, is_weight_computed=is_weight_computed):
        arrays = random_arrays(task, np.random.default_rng(SEED))
        expected = reference(task, arrays)
        assert_agrees(target, task, [c for c in task.starts(target) if is_winograd(c)][-1], arrays, expected, 1e-5)


@exhaustive
@pytest.mark.parametrize("layer", LAYERS, ids=lambda w: w.name)
def test_every_tile_and_random_configs(layer: Conv2d, opencl_device: tvm.runtime.Device) -> None:
    target, rng = Target("opencl"), np.random.default_rng(SEED)
    for task in passes_of(layer, is_weight_computed=True):
        arrays = random_arrays(task, rng)
        expected = reference(task, arrays)
        drawn = [c for c in task.space(target).sample(rng, 400) if is_winograd(c) and c["unroll"] == "lanes"]
        for config in [*(c for c in task.starts(target) if is_winograd(c)), *drawn[:4]]:
            assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize("place", few([0, 1, 2], 1), ids=["forward", "by input", "by filter"])
def test_the_text_of_cuda_kernels(place: int) -> None:
    """CUDA text that runs on the CPU misses no barrier and accesses nothing outside of its arrays."""
    target = target_of("cuda")
    # A constant weight: `run_on_cpu` gives workspaces the sizes that they have before TVM lets two share one
    # allocation.
    task = passes_of(conv(3, (15, 17), 5, (7, 7), padding=(2, 3, 3, 2), stride=(2, 2)), is_weight_computed=False)[place]
    arrays = random_arrays(task, np.random.default_rng(SEED))
    start = next(c for c in task.starts(target) if is_winograd(c))
    assert error_of(run_on_cpu(task, start, arrays, target), reference(task, arrays)) < 1e-5


@pytest.mark.parametrize(
    ("work", "algorithm"), few([(LAYERS[0], "winograd4"), (replace(LAYERS[1], dtype="float16"), "winograd2")], 0)
)
def test_images(work: Conv2d, algorithm: str, opencl_device: tvm.runtime.Device) -> None:
    """Phases are read from an image, the padding from outside of it, and results are written to an image."""
    limit = 1e-5 if work.dtype == "float32" else 1e-2
    for one in training_passes(work)[:2]:
        task = task_of(one).with_free_images()
        arrays = random_arrays(task, np.random.default_rng(SEED))
        expected = reference(task_of(replace(one, dtype="float32")), [a.astype("float32") for a in arrays])
        wanted = {"algorithm": algorithm, "data": "image", "weight": "image", "output": "image", "unroll": "lanes"}
        (config, *_) = task.space(PHONE).sample(np.random.default_rng(SEED), 1, where=wanted)
        assert error_of(run(task, config, arrays, PHONE, opencl_device), expected) < limit


@pytest.mark.parametrize("place", few([0, 1, 2], 0, 1), ids=["forward", "by input", "by filter"])
def test_half_precision_storage(place: int) -> None:
    """fp16 texels of three channels have a fourth lane, which is not multiplied."""
    target, work = target_of("opencl"), training_passes(replace(LAYERS[0], dtype="float16"))[place]
    # The weight as the graph has it: packed, texels of three channels have fewer lanes in single precision.
    task, single = (
        task_of(one, has_epilogue=False, is_weight_computed=True) for one in (work, replace(work, dtype="float32"))
    )
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(single, [a.astype("float32") for a in arrays])
    starts = [c for c in task.starts(target) if is_winograd(c)]
    assert [c["algorithm"] for c in starts] == ["winograd2"]
    assert_agrees(target, task, starts[0], arrays, expected, 1e-2)


def test_which_strided_convolutions_have_the_knob() -> None:
    """The knob has the tiles that need fewer products: 3x3 at stride 2 is 2x2 over four phases.

    Tiles of two pixels save nothing there.
    """

    def choices(work: Conv2d) -> tuple[str, ...]:
        return tuple(
            name
            for name in task_of(work).space(target_of("opencl")).knobs.get("algorithm", ("direct",))
            if not str(name).startswith("pieces")
        )

    large = ("direct", "winograd2", "winograd4", "winograd6")
    for work in training_passes(ALEXNET):
        assert choices(work) == large
    two = {"stride": (2, 2)}
    assert choices(conv(3, (224, 224), 64, (7, 7), padding=(3,) * 4, **two)) == ("direct", "winograd2", "winograd4")
    assert choices(conv(16, (24, 24), 16, (3, 3), padding=(1,) * 4, **two)) == ("direct", "winograd4", "winograd6")
    # Tiles that stick out over the edge make more products than they save.
    assert choices(conv(16, (25, 25), 16, (3, 3), padding=(1,) * 4, **two)) == ("direct",)
    assert choices(conv(1, (28, 28), 8, (5, 5), **two)) == large
    assert choices(conv_transpose(8, (16, 16), 8, (4, 4), padding=(1,) * 4, **two)) == large
    for other in (
        conv(16, (25, 25), 16, (1, 1), **two),
        conv(8, (25, 25), 2, (5, 5), **two),
        conv(8, (25, 25), 8, (5, 3), **two),
    ):
        assert choices(other) == ("direct",)
    assert choices(conv(8, (25, 25), 8, (5, 5), dilation=(2, 2), **two)) == ("direct",)
    assert choices(conv_transpose(8, (16, 16), 8, (4, 4), groups=2, **two)) == ("direct",)


@pytest.mark.parametrize(("algorithm", "share"), [("winograd2", 0.55), ("winograd4", 0.31), ("winograd6", 0.28)])
def test_products_that_are_saved(algorithm: str, share: float) -> None:
    """AlexNet's first layer needs 36 products for an output, and some for tiles beyond the edge, instead of 121.

    Idle lanes are not multiplied.
    """
    for work in training_passes(ALEXNET)[::2]:
        direct, form = (
            form.contraction(flat=True)
            for form in (task_of(work).template.algorithms[name] for name in ("direct", algorithm))
        )
        products, needed = (math.prod((*c.extents, *c.reduce.values())) for c in (form, direct))
        assert products / needed < share


def test_long_sums_of_phases_keep_their_digits(opencl_device: tvm.runtime.Device) -> None:
    """Sums over 16 phases of 48 channels have less than a third of the tolerated error."""
    target = target_of("opencl")
    task = task_of(conv(48, (43, 43), 8, (11, 11), stride=(4, 4)), has_epilogue=False)
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(task, arrays)
    for start in task.starts(target):
        if is_winograd(start):
            assert_agrees(target, task, start, arrays, expected, 3e-5)


@pytest.mark.parametrize(
    ("stride", "window", "algorithm"), few([(2, 6, "winograd4"), (4, 12, "winograd2"), (3, 6, "winograd2")], 0, 1)
)
def test_what_the_transforms_move(stride: int, window: int, algorithm: str) -> None:
    """All phases together read the data once. Here tiles divide everything."""
    taps, tile, texels, cells = window // stride, TILES[algorithm], 2, 6
    out, side = cells * tile, tile + taps - 1
    work = conv(4 * texels, ((out + taps - 1) * stride,) * 2, 16, (window,) * 2, stride=(stride,) * 2)
    form = form_of(work, algorithm)
    moved = 4 * 4 * (texels * work.in_hw[0] ** 2 + (stride**2 * texels + 4) * cells**2 * side**2 + 4 * out**2)
    assert form.transform_bytes == moved
    config = form_start(task_of(work, has_epilogue=False), algorithm)
    first, _, last = inspect_function(task_of(work, has_epilogue=False).schedule(config, PHONE)["main"], PHONE)
    read = 16 * (side if side > 4 else side**2)
    assert [k.traffic.buffer_bytes for k in (first, last)] == [read] * 2


def form_start(task: TunableTask, algorithm: str) -> object:
    return next(c for c in task.starts(PHONE) if c["algorithm"] == algorithm)


def test_a_phone_takes_phases_where_its_memory_lets_it() -> None:
    """Under Mesa's compilers AlexNet's first layer needs 0.4 of the instructions.

    The estimate adds the cost of the workspaces.
    """
    first = replace(ALEXNET, batch=1)
    names = {
        device: task_of(first).with_free_images().default_config(Target(f"opencl -device={device}"))["algorithm"]
        for device in ("adreno640", "mali_g76")
    }
    assert names == {"adreno640": "direct", "mali_g76": "winograd4"}
    stem = conv(3, (224, 224), 64, (7, 7), padding=(3,) * 4, stride=(2, 2))
    assert task_of(stem).with_free_images().default_config(Target("opencl -device=mali_g76"))["algorithm"] == "direct"


@pytest.mark.parametrize(("dtype", "algorithm"), [("float16", "direct"), ("float32", "winograd4")])
def test_a_window_that_is_a_long_sum_is_direct_in_fp16(dtype: str, algorithm: str) -> None:
    """Mesa's compiler for Mali-G76 needs 0.70 cycles for 24 direct fp16 multiply-adds, and 1.23 with Winograd.

    In fp32 it needs 1.27 and 0.74.
    """
    work = conv(64, (56, 56), 128, (5, 5), dtype, padding=(2,) * 4, stride=(2, 2))
    assert task_of(work).with_free_images().default_config(Target("opencl -device=mali_g76"))["algorithm"] == algorithm
