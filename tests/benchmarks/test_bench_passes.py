"""bench_passes.py counts the integer operations of each variant."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from click.testing import CliRunner

import bench_passes


def test_one_operator_is_counted(tmp_path: Path) -> None:
    with bench_passes.SAMPLE.open(encoding="utf-8") as file:
        name = next(csv.DictReader(file))["op"]
    result = CliRunner().invoke(bench_passes.main, ["--only", name, "--json", str(tmp_path / "counts.json")])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "counts.json").read_text())["rows"]
    assert rows
    for row in rows:
        counts = {variant: count["integer_operations"] for variant, count in row["counts"].items()}
        assert 0 < counts["all"] < counts["none"]
