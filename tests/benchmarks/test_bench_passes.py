"""bench_passes.py takes the convolution of every operator, and counts fewer integer operations with all passes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from click.testing import CliRunner

import bench_passes
from romou.devices.targets import Target

TARGET = Target("opencl -device=adreno640")


def test_every_operator_has_one_task() -> None:
    """Packing and unpacking channels are tasks, too."""
    with bench_passes.SAMPLE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    tasks = [bench_passes.task_of(row, TARGET) for row in rows]
    assert len({task.name for task in tasks}) == len(rows) == 20


def test_one_operator_is_counted(tmp_path: Path) -> None:
    output = tmp_path / "counts.json"
    result = CliRunner().invoke(bench_passes.main, ["--only", "16x54x54 -> 64", "--json", str(output)])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(output.read_text())["rows"]
    counts = {variant: count["integer_operations"] for variant, count in row["counts"].items()}
    assert 0 < counts["all"] < counts["none"]


def test_speedups_over_tvm() -> None:
    """An operator that fails on either side has no ratio, and no part in the mean."""
    sides = dict.fromkeys(bench_passes.VARIANTS, 2.0)
    timed = [
        {"name": "one", "ms": {**sides, "all": 0.5, "images": None, "TVM": 8.0}},
        {"name": "two", "ms": {**sides, "TVM": None}},
    ]
    table = bench_passes.time_table(timed, bench_passes.TVM, ("images", "all"), "here")
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("one", "8.0000", "wrong", "16.00x"),
        ("two", "wrong", "wrong", "wrong"),
        ("geometric mean", "", "-", "16.00x"),
    ]
