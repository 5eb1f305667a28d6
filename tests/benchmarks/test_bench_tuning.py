"""benchmarks/bench_tuning.py: how soon a search is near its end, counted over the kernels of the tuned model."""

from __future__ import annotations

import pytest

from bench_tuning import Course, find
from romou.base.errors import UsageError
from romou.base.outcome import Outcome
from romou.runtime.module.summary import LayerRow
from romou.tuner.search.trial import Trial


def trial(task: str, best_ms: float | None) -> Trial:
    return Trial(
        task=task,
        number=1,
        config={},
        outcome=Outcome.OK,
        time_s=None,
        best_s=None if best_ms is None else best_ms / 1e3,
    )


def row(name: str, calls: int, trials: int = 3) -> LayerRow:
    return LayerRow(name=name, calls=calls, trials=trials, flops=1, default_ms=1.0, tuned_ms=1.0, config={})


def test_sums_begin_when_every_kernel_works_and_count_calls() -> None:
    course = Course()
    course.trials = [
        (1.0, trial("conv", None)),
        (2.0, trial("conv", 4.0)),
        (3.0, trial("dense", 1.0)),
        (4.0, trial("not in the model", 9.0)),
        (5.0, trial("conv", 2.0)),
    ]
    # A kernel that moves too little to be tuned has no trials, and no part in the sum.
    rows = (row("conv", 2), row("dense", 1), row("reshape", 5, trials=0))
    assert course.sums(rows) == [pytest.approx(entry) for entry in ((3, 3.0, 9.0), (4, 4.0, 9.0), (5, 5.0, 5.0))]


def test_a_name_that_nobody_knows_is_one_error(tmp_path) -> None:
    with pytest.raises(UsageError, match="nonsense is no bundled network"):
        find("nonsense", tmp_path)
