"""Default configs on phones: whole warps, tiles that fit, few instructions."""

from __future__ import annotations

import math

import pytest
from tvm import relax

from romou.compiler.operators.families.batch_matmul import BatchMatmul, matmul
from romou.compiler.operators.families.dense import Dense
from romou.devices.hardware import known_devices
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.pruning.tasks import pruned_space
from support.kernels.operators import conv, relax_tasks, task_of
from support.suite.exhaustive import in_turn

ADRENO, MALI, H200 = (Target(f"opencl -device={name}") for name in ("adreno640", "mali_g76", "nvidia_h200"))
ADRENO_690 = Target("opencl -device=adreno690")
POINTWISE = conv(256, (14, 14), 256, (1, 1))
STRIDED = conv(64, (56, 56), 128, (3, 3), padding=(0, 0, 1, 1), stride=(2, 2))
WINDOW = conv(64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1))


@pytest.mark.parametrize(
    "work", [POINTWISE, STRIDED, Dense(m=1, k=4096, n=1000), Dense(m=512, k=512, n=512)], ids=lambda work: work.name
)
@pytest.mark.parametrize("target", [ADRENO, MALI], ids=["adreno", "mali"])
def test_work_groups_fill_warps(work: object, target: Target) -> None:
    config = task_of(work).with_free_images().default_config(target)
    assert math.prod(config.get(name, 1) for name in ("wg_o", "wg_h", "wg_w", "split_k")) % target.limits.warp_size == 0


@pytest.mark.parametrize(("dtype", "side", "tile_o"), [("float32", 512, 2), ("float16", 512, 1), ("float32", 64, 1)])
def test_products_out_of_buffers_have_larger_tiles_on_mali(dtype: str, side: int, tile_o: int) -> None:
    """Mali reads one vector in a cycle. In fp16 such tiles spill, and few outputs leave it idle."""
    outer: dict[str, tuple[int, ...]] = dict.fromkeys(("batch", "lhs_batch", "rhs_batch"), ())
    axes = dict.fromkeys(("lhs_axes", "rhs_axes", "out_axes"), (0, 1))
    task = task_of(BatchMatmul(m=side, k=side, n=side, dtype=dtype, **outer, **axes))
    config = task.default_config(MALI)
    assert config["tile_o"] == tile_o
    assert tile_o == 1 or pruned_space(task, MALI).is_valid(config)


def test_products_out_of_images_have_larger_tiles_on_mali() -> None:
    """Two texels are read in a cycle: with twelve reads for 128 products, arithmetic takes longer."""
    task = task_of(matmul((), 512, 512, 512)).with_free_images()
    config = task.default_config(MALI)
    assert {name: config[name] for name in ("data", "weight", "tile_o", "tile_w")} == {
        "data": "image",
        "weight": "image",
        "tile_o": 2,
        "tile_w": 4,
    }
    assert pruned_space(task, MALI).is_valid(config)


def test_beyond_the_end_of_a_row_a_work_item_returns() -> None:
    """A group of eight pairs has two pixels more than a row of 14: one comparison for all that a pair takes, and no
    sampler, as no pixel is padding.
    """
    task = task_of(POINTWISE).with_free_images()
    config = task.default_config(MALI).replace(tile_o=1, tile_h=1, tile_w=2, wg_w=8, wg_o=8)
    (kernel,) = inspect_function(task.schedule(config, MALI)["main"], MALI, config=config)
    body = kernel.source[kernel.source.index("__kernel") :]
    assert body.count("if (") == 1
    assert "min(" not in body
    assert "READ_IMAGEF(" not in body


def test_fewer_products_are_the_default_where_they_keep_the_digits() -> None:
    chosen = {target.spec.name: task_of(WINDOW).default_config(target)["algorithm"] for target in (MALI, H200)}
    assert chosen == {"mali_g76": "winograd4", "nvidia_h200": "winograd4"}
    # Recordings of Adreno: transforms of few channels take longer than the products that they save.
    of_channels = [conv(n, (side, side), n, (3, 3), padding=(1, 1, 1, 1)) for n, side in ((16, 56), (256, 28))]
    assert [task_of(each).default_config(ADRENO)["algorithm"] for each in of_channels] == ["direct", "winograd4"]
    # In fp16 between the kernels, larger tiles lose too much; sums as long as a block of `mixed` lose no more than it.
    halves = {
        channels: task_of(conv(channels, (56, 56), 64, (3, 3), "float16", padding=(1, 1, 1, 1))).default_config(ADRENO)
        for channels in (64, 128)
    }
    assert {c["algorithm"] for c in halves.values()} <= {"direct", "winograd2"}
    assert (
        task_of(conv(64, (28, 28), 64, (5, 5), "float16", padding=(2, 2, 2, 2))).default_config(ADRENO)["algorithm"]
        == "direct"
    )
    # Two additional launches take longer than the time that they save.
    assert task_of(conv(16, (14, 14), 16, (3, 3), padding=(1, 1, 1, 1))).default_config(ADRENO)["algorithm"] == "direct"


@pytest.mark.parametrize("name", [name for name in known_devices() if name.startswith("adreno")])
def test_products_start_as_mad_on_every_adreno(name: str) -> None:
    """An Adreno's driver was seen to compute fma() step by step, at a 26th of the speed
    (`romou/devices/hardware/quirks.json`).
    """
    target = Target(f"opencl -device={name}")
    for work in (POINTWISE, WINDOW, STRIDED, Dense(m=1, k=4096, n=1000), matmul((), 64, 64, 64)):
        task = task_of(work)
        assert task.space(target).knobs["multiply_add"][0] == "mad"
        assert {config["multiply_add"] for config in task.starts(target)} == {"mad"}


def tile_of(work: object, device: str) -> tuple[object, ...]:
    config = task_of(work).with_free_images().default_config(Target(f"opencl -device={device}"))
    return config["tile_o"], config["tile_w"], config["split_k"]


@pytest.mark.parametrize(
    ("device", "k", "expected"),
    [("adreno640", 4096, (4, 1, 16)), ("adreno640", 512, (4, 1, 8)), ("mali_g68", 4096, (2, 1, 1))],
)
def test_long_sums_of_a_dense_layer_have_large_tiles(device: str, k: int, expected: tuple[int, ...]) -> None:
    """Each number of the data is multiplied by more weights. A short loop would be unrolled and spill. Mali-G68's
    number of cores to fill is unknown.
    """
    assert tile_of(Dense(m=1, k=k, n=1000), device) == expected


@pytest.mark.parametrize(
    ("device", "work", "stays"),
    [
        # Groups of eight channels are two texels.
        ("adreno690", conv(56, (56, 56), 56, (3, 3), padding=(1, 1, 1, 1), groups=7), True),
        ("adreno690", POINTWISE, False),
        ("mali_g76", conv(56, (56, 56), 56, (3, 3), padding=(1, 1, 1, 1), groups=7), True),
        ("mali_g76", POINTWISE, False),
    ],
)
def test_loops_stay_if_the_loads_of_all_iterations_would_spill(device: str, work: object, stays: bool) -> None:
    """Mesa's compilers unroll short loops and load ahead for all of their iterations."""
    target = Target(f"opencl -device={device}")
    task = task_of(work).with_free_images()
    config = task.default_config(target)
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
    assert ("= LOOP_START;" in kernel.source) == stays


def test_windows_apart_have_small_tiles_on_valhall() -> None:
    """Under Mesa's compiler four pixels of stride 2 spill on Mali-G57, and not on Mali-G76."""
    assert [tile_of(STRIDED, device) for device in ("mali_g57", "mali_g610", "mali_g76")] == [
        (2, 2, 1),
        (2, 2, 1),
        (1, 4, 1),
    ]


@pytest.mark.parametrize(
    ("kernel", "chosen"), [pytest.param(7, (1, 2, "window"), id="7x7"), pytest.param(3, (1, 4, "lanes"), id="3x3")]
)
def test_a_large_window_of_three_channels_is_a_small_tile_on_valhall(kernel: int, chosen: tuple[int, ...]) -> None:
    """Under Mesa's compiler four pixels of a 7x7 window spill 74 registers on Mali-G610 and G57, of a 3x3 one none."""
    work = conv(3, (224, 224), 64, (kernel, kernel), padding=(kernel // 2,) * 4, stride=(2, 2))
    config = task_of(work).with_free_images().default_config(Target("opencl -device=mali_g610"))
    assert (config["tile_o"], config["tile_w"], config["unroll"]) == chosen


@pytest.mark.parametrize(
    ("device", "channels", "side", "tile_w"),
    [
        pytest.param("mali_g610", 208, 113, 2, id="both are cut"),
        pytest.param("mali_g610", 208, 112, 4, id="tiles divide the row"),
        pytest.param("mali_g610", 144, 113, 4, id="groups divide the channels"),
        pytest.param("mali_g610", 208, 57, 4, id="a group has the whole row"),
        pytest.param("mali_g76", 208, 113, 4, id="Bifrost"),
    ],
)
def test_depthwise_tiles_are_small_on_valhall_if_channels_and_rows_are_cut(
    device: str, channels: int, side: int, tile_w: int
) -> None:
    """Under Mesa's compiler four pixels of 208x113x113 spill 19 registers on Mali-G610."""
    work = conv(channels, (side, side), channels, (3, 3), padding=(1, 1, 1, 1), stride=(2, 2), groups=channels)
    assert tile_of(work, device) == (1, tile_w, 1)


@in_turn
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("device", ["adreno640", "adreno740", "mali_g76", "mali_g715"])
def test_few_channels_leave_no_more_than_half_of_a_warp_idle(device: str, dtype: str) -> None:
    """A group has more work-items along a row then, and smaller tiles if the row is short: a wave of 64 once had only
    two active work-items.
    """
    target = Target(f"opencl -device={device}")
    layers = [
        (16, 112, 16, 1),
        (32, 112, 16, 1),
        (96, 54, 16, 1),
        (96, 56, 24, 1),
        (16, 28, 32, 5),
        (256, 28, 64, 1),
        (64, 224, 3, 3),
        (8, 128, 8, 5),
    ]
    works = [conv(c, (side, side), k, (r, r), dtype, padding=(r // 2,) * 4) for c, side, k, r in layers]
    for work in [*works, conv(3, (224, 224), 32, (3, 3), dtype, padding=(0, 0, 1, 1), stride=(2, 2))]:
        config = task_of(work).with_free_images().default_config(target)
        items = math.prod(config.get(name, 1) for name in ("wg_o", "wg_h", "wg_w", "split_k"))
        assert 2 * items > target.limits.warp_size, f"{work.name}: {items} work-items, {config}"


@pytest.mark.parametrize("device", ["adreno730", "adreno740", "adreno750"])
def test_work_items_of_adreno_7xx_have_at_most_eight_vectors_of_sums(device: str) -> None:
    """Its driver's compiler was seen to spill larger tiles of fp32 (llama.cpp, pull request 27640)."""
    works = [
        POINTWISE,
        STRIDED,
        WINDOW,
        Dense(m=1, k=4096, n=1000),
        matmul((), 512, 512, 512),
        matmul((3,), 197, 64, 197),
    ]
    for work in (
        *works,
        conv(960, (7, 7), 160, (1, 1)),
        conv(32, (112, 112), 32, (3, 3), padding=(1, 1, 1, 1), groups=32),
    ):
        config = task_of(work).with_free_images().default_config(Target(f"opencl -device={device}"))
        assert config["tile_o"] * config["tile_h"] * config["tile_w"] <= 8, config


def test_short_sums_have_small_tiles_where_their_loop_would_be_written_out() -> None:
    """Mesa's compilers write out a sum of twelve texels on Mali-G76, and on Adreno one of an image of three channels:
    two texels of channels would spill.
    """
    assert [tile_of(conv(c, (56, 56), 64, (1, 1)), "mali_g76")[:2] for c in (48, 64)] == [(1, 4), (2, 4)]
    first = {"padding": (0, 0, 1, 1), "stride": (2, 2)}
    assert tile_of(conv(3, (224, 224), 32, (3, 3), **first), "mali_g710")[:2] == (1, 4)


def test_winograd_has_square_tiles_on_mali_if_a_tile_is_cut() -> None:
    """Mixed sums of four pixels spill there: 49 or 289 of Winograd's tiles are no multiple of 4, and 64 are."""

    def tile_of_winograd(side: int, target: Target) -> tuple[object, ...]:
        work = conv(192, (side, side), 192, (3, 3), padding=(1, 1, 1, 1), dtype="float16")
        config = task_of(work).with_free_images().default_config(target)
        assert config["accumulate"] == "mixed"
        return config["algorithm"], config["tile_o"], config["tile_w"]

    assert [tile_of_winograd(side, MALI) for side in (14, 33)] == [("winograd2", 2, 2)] * 2
    assert tile_of_winograd(16, MALI) == ("winograd2", 1, 4)
    assert tile_of_winograd(14, ADRENO)[2] != 2


@pytest.mark.parametrize(("device", "transposed"), [("mali_g76", 3), ("mali_g610", 2)])
def test_products_with_odd_columns_have_narrow_tiles_on_mali_if_a_tile_is_cut(device: str, transposed: int) -> None:
    """Four rows of scores spill in fp32 if there are 197, and do not if there are 200."""

    def tile_of_scores(tokens: int, length: int, dtype: str = "float32", **fields: bool) -> int:
        task = task_of(matmul((3,), tokens, length, tokens, dtype=dtype, **fields)).with_free_images()
        return int(task.default_config(Target(f"opencl -device={device}"))["tile_w"])

    assert [tile_of_scores(tokens, 64) for tokens in (197, 200)] == [3, 4]
    assert [tile_of_scores(tokens, 64, is_transposed=True) for tokens in (197, 200)] == [transposed, 4]
    assert [tile_of_scores(197, length, "float16") for length in (64, 80)] == [4, 3]


def test_products_of_mixed_sums_keep_their_tiles() -> None:
    """Unlike Winograd's, their operands have no texels: a tile of 2x2 takes 1.5 times as many instructions."""
    config = task_of(matmul((3,), 197, 192, 64, dtype="float16")).with_free_images().default_config(MALI)
    assert (config["accumulate"], config["tile_o"], config["tile_w"]) == ("mixed", 1, 4)


def test_mixed_sums_are_long() -> None:
    """The sums in fp16 divide the reduction. Those of 197 products have one product, those of 77 have eleven."""
    sums = [
        task_of(matmul((3,), 77, k, 64, dtype="float16")).with_free_images().default_config(MALI)["accumulate"]
        for k in (197, 77, 80, 192)
    ]
    assert sums == ["float32", "float32", "mixed", "mixed"]


@pytest.mark.parametrize("target", [ADRENO, MALI], ids=["adreno", "mali"])
@pytest.mark.parametrize(("side", "threads"), [(7, 2), (14, 8), (28, 32)])
def test_means_of_packed_channels_share_no_more_than_a_work_item_reads(side: int, threads: int, target: Target) -> None:
    """A work-item reads up to 25 texels. With four to six, most instructions would add up parts."""
    (task,) = relax_tasks(lambda a: relax.op.mean(a, axis=[2, 3], keepdims=True), (1, 18, side, side, 4))
    assert task.family == "row_reduction"
    assert task.default_config(target)["threads"] == threads
    # A row that is kept between two passes has other shares.
    (task,) = relax_tasks(lambda a: relax.op.nn.softmax(a, axis=1), (18, side * side, 4))
    assert -(-(side * side) // task.default_config(target)["threads"]) <= 6
