"""benchmarks/bench_backends.py: the page that joins measurements of several backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import bench_backends


def page(target: str, *rows: tuple[str, float, float | None, float, float | None]) -> dict[str, Any]:
    keys = ("name", "flops", "initial_us", "us", "peer_us")
    found = [{**dict(zip(keys, row, strict=True)), "problem": None} for row in rows]
    return {"target": target, "device": {"name": f"a device of {target}"}, "rows": found}


OPENCL = page("opencl", ("large", 8e6, 40.0, 10.0, None), ("small", 2e6, None, 5.0, None))
CUDA = page("cuda -device=nvidia_h200", ("large", 8e6, 10.0, 5.0, 20.0))


def cells(table: Any, number: int) -> list[str]:
    return [list(column.cells)[number] for column in table.columns]


def test_operators_are_in_order_of_their_operations() -> None:
    table = bench_backends.joined([OPENCL, CUDA])
    assert [column.header for column in table.columns][2:8] == [
        *("opencl initial us", "tuned us", "gain"),
        *("cuda initial us", "tuned us", "gain"),
    ]
    assert cells(table, 0) == ["small", "2", "-", "5.0", "-", "-", "-", "-", "-", "-"]
    assert cells(table, 1) == ["large", "8", "40.0", "10.0", "4.00x", "10.0", "5.0", "2.00x", "20.0", "4.00x"]


def test_means() -> None:
    assert list(bench_backends.summary_lines([OPENCL, CUDA])) == [
        "opencl (a device of opencl): initial / tuned 4.00x, 1 without an initial kernel",
        "cuda (a device of cuda -device=nvidia_h200): initial / tuned 2.00x, 0 without an initial kernel",
        "opencl / cuda: 2.00x over 1 operators",
        "library / opencl: 2.00x over 1 operators",
        "library / cuda: 4.00x over 1 operators",
    ]


def test_files_of_one_backend_are_numbered(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(OPENCL))
    result = CliRunner().invoke(bench_backends.main, ["--rows", str(file), "--rows", str(file)])
    assert result.exit_code == 0, result.output
    assert "opencl 1 / opencl 2: 1.00x over 2 operators" in result.output


def test_no_backend_is_an_error() -> None:
    result = CliRunner().invoke(bench_backends.main, ["--targets", "opencl -device=nonsense"])
    assert result.exit_code == 1
    assert "not run here: " in result.output
