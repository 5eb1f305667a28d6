"""benchmarks/bench_variants.py: the table marks the fastest variant."""

from __future__ import annotations

import io

from rich.console import Console

import bench_variants
from romou.base.variants import VARIANTS
from support.kernels.operators import conv, task_of


def test_each_operator_has_its_columns() -> None:
    assert set(bench_variants.COLUMNS) < set(VARIANTS)
    for window, lacks in ((3, "k1conv"), (1, "tconv")):
        task = task_of(conv(16, (14, 14), 32, (window, window)), has_epilogue=False).with_free_images()
        columns = [name for name in bench_variants.COLUMNS if bench_variants.has(task, bench_variants.ADRENO, name)]
        assert columns == [name for name in bench_variants.COLUMNS if name != lacks]


def test_the_table_marks_the_fastest_and_says_what_is_not_there() -> None:
    out = io.StringIO()
    rows = {"one": {"conv": (20.0, {}), "conv_simd": (10.0, {}), "tconv": None, "any": (5.0, {})}}
    bench_variants.print_table(rows, "us", "here", Console(file=out, width=150))
    line = next(line for line in out.getvalue().splitlines() if line.startswith("│ one"))
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["one", "20", "10*", "-", "-", "-", "-", "-", "5"]
    assert "2.00x" in out.getvalue()


def test_the_fastest_variant_has_its_rate() -> None:
    out = io.StringIO()
    work = conv(4, (10, 10), 8, (1, 1))
    rows = {"one": {"conv": (20.0, {}), "k1conv": (4.0, {}), "any": (1.0, {})}, "none": {"conv": None}}
    bench_variants.print_speeds(rows, {"one": work, "none": work}, Console(file=out, width=150))
    (line,) = (line for line in out.getvalue().splitlines() if line.startswith("│ one"))
    # 2 * 8 * 4 * 100 operations, over 4 bytes each of 400 + 800 + 32 numbers.
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "one",
        "0.0",
        "1.3",
        "4.0",
        "1.6",
        "5.00x",
        "k1conv",
    ]
    assert "none" not in out.getvalue()
