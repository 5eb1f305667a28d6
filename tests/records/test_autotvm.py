"""Measurements of AutoTVM: both forms are read, and configs are translated into Romou's knobs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import phone_tasks
from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.cli import main
from romou.compiler.operators.costs.features import Loops
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from romou.tuner.records.autotvm import AutotvmTask, read_autotvm
from romou.tuner.records.autotvm_kernels import NOT_FOR_IMAGES, kernel_of
from romou.tuner.records.autotvm_spaces import equivalents
from romou.tuner.records.recorded_space import RecordedSpace
from support.data.autotvm_logs import ARGUMENTS, TEMPLATE, knobs_of, log_line, task_line, write_log

WORK = Conv2d(in_channels=16, in_hw=(12, 12), out_channels=32, kernel=(3, 3), padding=(1, 1, 1, 1), dtype="float16")


def read(path: Path, *lines: str, gpu: str = "") -> list[AutotvmTask]:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_autotvm(path, gpu)


def tensors(data: list[int], weight: list[int], dtype: str = "float16", out: str = "float16") -> list[Any]:
    return [["TENSOR", data, dtype], ["TENSOR", weight, dtype], [1, 1], [1, 1, 1, 1], [1, 1], out]


def test_both_forms_give_the_same_task(tmp_path: Path) -> None:
    fast, failed = knobs_of(), knobs_of(channels=(2, 16))
    (log,) = read(tmp_path / "log", log_line(fast, [3e-4, 2e-4, 4e-4]), log_line(failed, [1e9], 4), gpu="adreno660")
    (tmp_path / "gz").write_bytes(gzip.compress(task_line([(fast, 300.0, 0), (failed, None, 4)]).encode()))
    (task,) = read_autotvm(tmp_path / "gz")
    assert (log.gpu, log.template, log.work, log.layout) == (task.gpu, task.template, task.work, task.layout)
    assert log.work == WORK
    assert [m.outcome for m in task.measurements] == [Outcome.OK, Outcome.RUN_ERROR]
    assert [m.time_s for m in log.measurements] == pytest.approx([m.time_s for m in task.measurements])
    assert log.task is not None
    assert log.task.name == f"conv2d_{WORK.name}"


def test_a_config_that_was_measured_again_counts_once(tmp_path: Path) -> None:
    (task,) = read(tmp_path / "log", log_line(knobs_of(), [3e-4]), log_line(knobs_of(), [2e-4]))
    assert [m.time_s for m in task.measurements] == [2e-4]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(1, "invalid"), (2, "build_error"), (4, "run_error"), (5, "wrong_result"), (6, "build_error"), (7, "timeout")],
)
def test_error_codes_are_outcomes(error: int, outcome: str, tmp_path: Path) -> None:
    (task,) = read(tmp_path / "log", log_line(knobs_of(), [1e9], error))
    assert (task.measurements[0].outcome, task.measurements[0].time_s) == (outcome, None)


LAYOUTS: list[tuple[str, list[Any], str, Any]] = [
    (TEMPLATE, tensors([1, 4, 12, 12, 4], [8, 16, 3, 3, 4]), "NCHW4c", WORK),
    ("conv2d_nhwc.image2d", tensors([1, 12, 12, 16], [3, 3, 16, 32]), "NHWC", WORK),
    ("conv2d_nchw_winograd.image2d", tensors([1, 16, 12, 12], [32, 16, 3, 3]), "NCHW", WORK),
    (
        "depthwise_conv2d_nchwc.image2d",
        [*tensors([1, 8, 12, 10], [8, 1, 3, 5])[:2], [2, 1], [1, 2], [1, 1], "float16"],
        "NCHW",
        Conv2d(
            in_channels=8,
            in_hw=(12, 10),
            out_channels=8,
            kernel=(3, 5),
            stride=(2, 1),
            padding=(1, 2, 1, 2),
            groups=8,
            dtype="float16",
        ),
    ),
    (
        "depthwise_conv2d_nhwc_acc32.image2d",
        tensors([1, 12, 12, 8], [3, 3, 8, 1]),
        "NHWC",
        Conv2d(
            in_channels=8,
            in_hw=(12, 12),
            out_channels=8,
            kernel=(3, 3),
            padding=(1, 1, 1, 1),
            groups=8,
            dtype="float16",
        ),
    ),
    (
        "dense_small_batch.gpu",
        [["TENSOR", [1, 64], "float32"], ["TENSOR", [10, 64], "float32"], None, "float32"],
        "NC",
        Dense(m=1, k=64, n=10),
    ),
    ("conv2d_nchw_winograd_without_weight_transform.image2d", tensors([1, 16, 12, 12], [6, 6, 16, 32]), "NCHW", None),
    ("conv1d_ncw.gpu", [["TENSOR", [1, 4, 9], "float32"], ["TENSOR", [8, 4, 3], "float32"], 1, 1, 1, ""], "NCHW", None),
]


@pytest.mark.parametrize(("template", "arguments", "layout", "work"), LAYOUTS)
def test_operators_are_read_in_each_layout(
    template: str, arguments: Any, layout: str, work: Any, tmp_path: Path
) -> None:
    (task,) = read(tmp_path / "log", log_line(knobs_of(), [1e-4], 0, template, arguments))
    assert (task.work, task.layout) == (work, layout)
    assert (task.task is None) == (work is None)


@pytest.mark.parametrize(
    ("template", "dtype", "out", "sums"),
    [
        ("conv2d_nchwc.image2d", "float16", "float16", "float16"),
        ("conv2d_nchwc.image2d", "float16", "float32", "float32"),
        ("conv2d_nchwc_acc32.image2d", "float16", "float16", "float32"),
        ("conv2d_nchwc.image2d", "float32", "float32", "float32"),
    ],
)
def test_sums_have_their_type(template: str, dtype: str, out: str, sums: str, tmp_path: Path) -> None:
    arguments = tensors([1, 16, 12, 12], [32, 16, 3, 3], dtype, out)
    (task,) = read(tmp_path / "log", log_line(knobs_of(), [1e-4], 0, template, arguments))
    assert task.sums == sums


def equivalent_of(knobs: dict[str, Any], tmp_path: Path, template: str = TEMPLATE) -> Config | str:
    (task,) = read(tmp_path / "log", log_line(knobs, [1e-4], 0, template), gpu="adreno660")
    return equivalents(task)[0]


def test_a_kernel_of_the_space_is_found(tmp_path: Path) -> None:
    config = equivalent_of(knobs_of(channels=(2, 4), rows=(2, 1), pixels=(3, 4)), tmp_path)
    assert isinstance(config, Config)
    wanted = {"tile_o": 2, "tile_h": 2, "tile_w": 3, "wg_o": 4, "wg_w": 4, "arrangement": "striped", "unroll": "lanes"}
    fixed = {"data": "image", "weight": "buffer", "output": "buffer", "accumulate": "float32", "local": 0, "split_k": 1}
    assert {**wanted, **fixed}.items() <= dict(config).items()


@pytest.mark.parametrize(
    ("knobs", "unroll"),
    [
        # 4 lanes, 8 results, 9 taps: 288 statements.
        (
            knobs_of(channels=(2, 4), tile_ry=[-1, 3], tile_rx=[-1, 3], auto_unroll_max_step=512, unroll_explicit=1),
            "window",
        ),
        # TVM marks the loops, and its OpenCL ignores the mark.
        (knobs_of(channels=(2, 4), tile_ry=[-1, 3], tile_rx=[-1, 3], auto_unroll_max_step=512), "lanes"),
        (knobs_of(channels=(2, 4), tile_ry=[-1, 3], tile_rx=[-1, 3]), "lanes"),
        (knobs_of(channels=(2, 4), tile_rcc=[-1, 2], tile_ry=[-1, 3], tile_rx=[-1, 3]), "lanes"),
    ],
)
def test_unrolling_is_a_knob(knobs: dict[str, Any], unroll: str, tmp_path: Path) -> None:
    config = equivalent_of(knobs, tmp_path)
    assert isinstance(config, Config)
    assert config["unroll"] == unroll


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        (knobs_of(rows=(1, 3)), "wg_h has no such choice"),
        (knobs_of(rows=(2, 2)), "rows of a work-item are a group apart"),
        (knobs_of(pixels=(6, 2)), "tile_w has no such choice"),
        (knobs_of(pixels=(2, 6)), "wg_w has no such choice"),
        (knobs_of(tile_rx=[-1, 3], auto_unroll_max_step=64, unroll_explicit=1), "a part of the reduction is unrolled"),
        (knobs_of(tile_rcc=[-1, 2]), "channels are summed inside of the window"),
        (
            knobs_of(tile_fc=[-1, 2, 4, 1], tile_x=[-1, 1, 4, 2]),
            "some results of a work-item are neighbours, others a group apart",
        ),
        (knobs_of(channels=(4, 1), rows=(4, 1), pixels=(4, 1)), "the space's constraints exclude it"),
        ({"tile_f": [-1, 4, 4, 1]}, NOT_FOR_IMAGES),
    ],
)
def test_a_kernel_beyond_the_space_has_a_reason(knobs: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert equivalent_of(knobs, tmp_path) == reason


def test_a_kernel_has_the_loops_of_its_text(tmp_path: Path) -> None:
    knobs = knobs_of(channels=(2, 4), tile_rcc=[-1, 2], tile_rx=[-1, 3], auto_unroll_max_step=512, unroll_explicit=1)
    (task,) = read(tmp_path / "log", log_line(knobs, [1e-4], 0), gpu="adreno660")
    kernel = kernel_of(task, knobs)
    assert kernel is not None
    assert kernel.loops == Loops(is_unrolled=True, unrolled=kernel.unrolled, channels=2, rows=1, columns=3)
    assert kernel.unrolled > 1
    rolled = kernel_of(task, {**knobs, "unroll_explicit": 0})
    assert rolled is not None
    assert rolled.loops == Loops(is_unrolled=False, unrolled=1, channels=2, rows=1, columns=3)


def test_products_of_winograd_are_translated(tmp_path: Path) -> None:
    knobs = {"auto_unroll_max_step": 4, "tile_y": [-1, 2, 8], "tile_x": [-1, 3, 4], "tile_rc": [-1, 2]}
    line = log_line(knobs, [1e-4], 0, "conv2d_nchw_winograd.image2d")
    (task,) = read(tmp_path / "log", line, gpu="adreno660")
    kernel = kernel_of(task, knobs)
    assert kernel is not None
    assert {"algorithm": "winograd2", "tile_o": 2, "wg_o": 8, "tile_w": 3, "wg_w": 4}.items() <= kernel.knobs.items()
    assert isinstance(equivalents(task)[0], str)


def test_products_of_winograd_read_images_and_a_cache_line_for_each_tile_of_a_warp(tmp_path: Path) -> None:
    groups = [(4, 16), (2, 32), (1, 128)]
    knobs = [{"auto_unroll_max_step": 4, "tile_y": [-1, 2, o], "tile_x": [-1, 3, w]} for o, w in groups]
    template = "conv2d_nchw_winograd.image2d"
    arguments = tensors([1, 16, 100, 100], [32, 16, 3, 3])
    path = tmp_path / "log"
    path.write_text("\n".join(log_line(each, [1e-4], 0, template, arguments) for each in knobs), encoding="utf-8")
    (task,) = phone_tasks.load_tasks(path, default_gpu="adreno660")
    usage, texel_bytes = task.usage, 8
    assert not np.any(usage.buffer_bytes)
    assert not np.any(usage.unshared_buffer_bytes)
    # One iteration reads a texel of each of three tiles, and four of each of two channels' texels.
    np.testing.assert_allclose(usage.unshared_image_bytes, [64 * 11 * texel_bytes] * 2 + [128 * 11 * texel_bytes])
    # Lines of 64 bytes. Two warps of 64 load other tiles.
    lines = 3 * np.array([16, 32, 128])
    weights = 2 * 4 * texel_bytes * np.array([4, 2, 1])
    np.testing.assert_allclose(usage.image_bytes, lines * 64 + weights)


DAMAGED = [
    "",
    "{",
    "[]",
    "{}",
    '{"input": 1, "config": 2, "result": 3}',
    '{"v": 0.1, "i": []}',
    log_line(knobs_of(), [1e-4], 99),
    log_line(knobs_of(), []),
    log_line(knobs_of(), [float("nan")]),
    log_line(knobs_of(), [-1.0]),
    log_line(knobs_of(), [1e-4], 0, TEMPLATE, [["TENSOR", [1, 0], "float32"]]),
    log_line(knobs_of(), [1e-4], 0, TEMPLATE, ARGUMENTS[:3]),
    log_line(knobs_of(channels=(0, 4)), [1e-4]),
    log_line(knobs_of(tile_x=[-1, "4", 2]), [1e-4]),
    log_line(knobs_of(tile_x=[4]), [1e-4]),
    task_line([(knobs_of(), 1.0, 0)]).replace('"rows"', '"row"'),
    task_line([(knobs_of(), 1.0, 0)]).replace("[[[", "[[1, ["),
]


@pytest.mark.parametrize("text", DAMAGED)
def test_damage_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(RecordError, match=f"^{path}.*AutoTVM|^{path}.* its arguments"):
        read_autotvm(path)


@pytest.mark.parametrize("content", [b"\x1f\x8b damaged", b"\xff\xfe"])
def test_a_file_that_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(
        RecordError, match="cannot read this as measurements of AutoTVM: damaged|log:1: .*AutoTVM: not JSON: .utf-8"
    ):
        read_autotvm(tmp_path / "log")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="log:2: no measurements of AutoTVM"):
        read(tmp_path / "log", log_line(knobs_of(), [1e-4]), "{")


def test_groups_of_several_rows_read_what_they_share_once(tmp_path: Path) -> None:
    """A group reads the pixels under its windows, in all rows of its work-items."""
    window = {"tile_ry": [-1, 3], "tile_rx": [-1, 3], "auto_unroll_max_step": 128, "unroll_explicit": 1}
    cases = [((1, 1), (2, 2)), ((1, 4), (2, 2)), ((2, 3), (1, 4))]
    lines = [log_line(knobs_of((1, 8), rows, pixels, **window), [1e-4]) for rows, pixels in cases]
    path = tmp_path / "log"
    path.write_text("\n".join(lines), encoding="utf-8")
    (task,) = phone_tasks.load_tasks(path, default_gpu="adreno660")
    height, width = (np.array([case[axis][0] * case[axis][1] for case in cases]) for axis in (0, 1))
    # fp16 texels, of images: zeros outside of the padded image count.
    assert task.usage.image_bytes.tolist() == ((height + 2) * (width + 2) * 4 * 2).tolist()
    assert task.usage.work_group_size.tolist() == [16, 64, 96]
    groups = -(-8 // 8) * np.ceil(12 / height) * np.ceil(12 / width)
    assert task.usage.work_groups.tolist() == groups.tolist()
    assert task.columns["wg_h"].tolist() == [1, 4, 3]


def test_a_log_becomes_recorded_spaces(tmp_path: Path) -> None:
    log = write_log(tmp_path / "tuning.log")
    done = CliRunner().invoke(main, ["records", "--import-autotvm", str(log), "--gpu", "adreno660"])
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "tuning_spaces").glob("*.json.gz")
    space = RecordedSpace.load(path)
    assert f"{len(space.configs)} configs of 1 tasks" in done.output
    assert len(space.configs) == 36
    assert space.knobs["tile_x.1"] == (1, 3, 6)
    (task,) = read_autotvm(log, "adreno660")
    times = [sorted(each.time_s or 0 for each in all_) for all_ in (space.configs.values(), task.measurements)]
    assert times[0] == pytest.approx(times[1], abs=1e-9)
    assert task.task is not None
    romou, same = task.task.space(Target("opencl -device=adreno660")), space.context["equivalents"]
    assert same
    assert all(romou.is_valid(Config(config)) for config in same.values())
    for index, config in same.items():
        assert space.space().at(int(index))["tile_fc.2"] == config["wg_o"]


def test_a_log_without_a_gpu_needs_its_name(tmp_path: Path) -> None:
    log = write_log(tmp_path / "tuning.log")
    done = CliRunner().invoke(main, ["records", "--import-autotvm", str(log)])
    assert done.exit_code != 0
    assert "--gpu" in done.output


def test_the_hand_made_log_is_read() -> None:
    tasks = read_autotvm(Path(__file__).parent / "data/autotvm.log", "adreno740")
    assert [(t.template.partition(".")[0], len(t.measurements)) for t in tasks] == [
        ("conv2d_nchwc", 3),
        ("depthwise_conv2d_nchwc", 2),
    ]
    assert json.dumps([str(m.outcome) for t in tasks for m in t.measurements]) == json.dumps(
        ["ok", "run_error", "ok", "ok", "invalid"]
    )


def test_drift_is_what_neighbours_in_time_share() -> None:
    """A clock that halves in the middle is found, and random errors of the expectation are not."""
    rng = np.random.default_rng(0)
    expected = np.exp(rng.normal(size=400))
    errors = np.exp(rng.normal(scale=0.3, size=400))
    clock = np.where(np.arange(400) < 200, 1.0, 2.0)
    drift = phone_tasks.drift_of(expected * errors * clock, expected)
    assert np.median(drift[220:]) / np.median(drift[:180]) == pytest.approx(2, rel=0.1)
    steady = phone_tasks.drift_of(expected * errors, expected)
    assert np.abs(np.log(steady)).max() < 0.3
