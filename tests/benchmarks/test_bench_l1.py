"""Figures of docs/criteria.md on the two ways to count bytes."""

from __future__ import annotations

import bench_l1
from romou.devices.targets import Target
from romou.tuner.pruning.criteria import L1_RULES
from romou.tuner.records.recorded_space import RecordedSpace


def test_small_tiles_cost_time_if_every_byte_has_to_fit() -> None:
    """A recorded 1x1 convolution. The cache's size acts under "paper" only."""
    target = Target("opencl -device=nvidia_h200")
    usage, times = bench_l1.recorded_usage(RecordedSpace.load(bench_l1.RECORDED / "conv1x1.json.gz"), target)
    slowdown = {
        l1: [float(bench_l1.fastest_within(usage, times, target, size, rules)) for size in bench_l1.BUDGETS]
        for l1, rules in L1_RULES.items()
    }
    assert slowdown["reread"] == [1.0] * len(bench_l1.BUDGETS)
    assert slowdown["paper"] == sorted(slowdown["paper"], reverse=True)
    assert slowdown["paper"][1] > 1.1
