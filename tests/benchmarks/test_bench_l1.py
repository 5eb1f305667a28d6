"""Figures of docs/evidence/criteria.md on the two ways to count bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

import bench_l1
from romou.compiler.operators.costs.criteria import L1_RULES
from romou.devices.targets import Target
from romou.tuner.records.recorded_space import RecordedSpace
from support.data.autotvm_logs import knobs_of, task_line


def test_small_tiles_cost_time_if_every_byte_has_to_fit() -> None:
    """A recorded 1x1 convolution. The cache's size acts under "paper" only."""
    target = Target("opencl -device=nvidia_h200")
    usage, times = bench_l1.recorded_usage(RecordedSpace.load(bench_l1.RECORDED / "conv1x1.json.gz"), target)
    slowdown = {
        l1: [bench_l1.fastest_within(usage, times, target, size, rules) for size in bench_l1.BUDGETS]
        for l1, rules in L1_RULES.items()
    }
    assert slowdown["reread"] == [1.0] * len(bench_l1.BUDGETS)
    assert slowdown["paper"] == sorted(slowdown["paper"], reverse=True)
    assert slowdown["paper"][1] > 1.1


def test_phones_are_read_by_operator(tmp_path: Path) -> None:
    """Larger tiles are faster on a made-up phone, and only the paper's count keeps them out of a small cache."""
    tiles = itertools.product((1, 2, 4), (1, 3, 6))
    # 64 work-items, each with 1 to 6 texels of 8 bytes.
    rows = [(knobs_of((o, 32), (1, 1), (w, 2)), 100.0 / (o * w), 0) for o, w in tiles]
    rows.append((knobs_of((4, 64), (1, 1), (6, 2)), None, 4))
    path = tmp_path / "phones.jsonl"
    path.write_text(task_line(rows), encoding="utf-8")
    table = bench_l1.phone_table(path, least=1)
    names, tasks, rules, *budgets = ([*column.cells] for column in table.columns)
    assert names == ["adreno660, 3x3"] * 2
    assert tasks == ["1", "1"]
    assert rules == ["reread", "paper"]
    reread, paper = ([cells[row] for cells in budgets] for row in (0, 1))
    assert reread[1:] == ["1.00"] * 4
    assert paper == ["none (1)", "6.00", "1.00", "1.00", "1.00"]
    assert bench_l1.phone_table(path, least=99).row_count == 0
