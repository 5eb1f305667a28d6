"""benchmarks/bench_mobile_space.py: which configs it compiles, and which of them it calls the leanest."""

from __future__ import annotations

import numpy as np
import pytest

import bench_mobile_space as bench
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.estimate import estimate_parts
from romou.devices.targets import Target

TARGET = Target("opencl -device=adreno640")


def test_half_of_what_is_compiled_issues_the_least() -> None:
    task = bench.task_of_layer("1x1 256x14x14 -> 256", "float32", TARGET)
    every = bench.drawn(task, TARGET, 40, 40, seed=0)[:40]
    some = bench.drawn(task, TARGET, 40, 10, seed=0)
    assert 10 < len(some) <= 10 + bench.FIRST
    parts = estimate_parts(task.template.form(TARGET.limits).usage(columns_of(every)), TARGET.spec)
    assert parts is not None
    least = np.argsort(np.broadcast_to(parts["issuing"], 40), kind="stable")[:5]
    assert {config.key for config in some[:5]} == {every[place].key for place in least}
    assert {config.key for config in some[:10]} <= {config.key for config in every}
    assert task.default_config(TARGET) in some


@pytest.mark.parametrize(
    ("counts", "best"), [({}, None), ({"a": 3.0, "b": 2.0}, "b"), ({"a": 3.0, "b": None}, "a"), ({"a": None}, None)]
)
def test_what_spills_or_fails_is_not_the_leanest(counts: dict[str, float | None], best: str | None) -> None:
    """None marks a config that spills. A missing one cannot be built."""
    found = {
        key: {"cycles": 0.1 if cycles is None else cycles, "spills": cycles is None} for key, cycles in counts.items()
    } | {"z": {"error": "no"}}
    assert bench.best_of(found, list(found), "cycles") == best
