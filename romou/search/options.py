"""The budget and the seed of a search."""

from __future__ import annotations

import dataclasses

from romou.measure.options import CheckedOptions, number, whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningOptions(CheckedOptions):
    """
    trials           candidates to measure over all tasks, those in the records included
    seconds          stop searching after this time; None: no limit
    batch_size       candidates built together
    random_trials    of a task, before the cost model has a say
    random_share     of later candidates that are still drawn at random
    patience         trials of a task without a better time, after which it gets no more while others improve
    seed             of everything random
    """

    trials: int = whole(64, lowest=0)
    seconds: float | None = number(None)
    batch_size: int = whole(4)
    random_trials: int = whole(8)
    random_share: float = number(0.1, lowest=0)
    patience: int = whole(48)
    seed: int = whole(0, lowest=0)
