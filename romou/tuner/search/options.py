"""The budget and the seed of a search."""

from __future__ import annotations

import dataclasses

from romou.base.errors import unknown_name
from romou.base.options import CheckedOptions, number, whole
from romou.tuner.search.strategies import EXPLORERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningOptions(CheckedOptions):
    """
    trials           candidates to measure over all tasks, those in the records included
    seconds          stop searching after this time; None: no limit
    no_progress      stop searching after so many trials in a row of which none made its task 1% faster; None: no limit
    explorer         "evolution", "annealing" or "ranking" (of all configs: for small spaces), guided by the cost model, "random" or "exhaustive"
    batch_size       candidates built together
    random_trials    of a task, before the cost model has a say
    random_share     of later candidates that are still drawn at random, where nothing is expected of configs; else what is little known counts for them
    confirm          of each task, so many of the fastest configs are measured once more at the end, where several are within 5%: the device's
                     clock may have changed since; 0: none
    patience         trials of a task without a better time, after which it gets no more while others improve
    seed             of everything random
    """  # noqa: E501

    trials: int = whole(64, lowest=0)
    seconds: float | None = number(None)
    no_progress: int | None = whole(None)
    explorer: str = "evolution"
    batch_size: int = whole(4)
    random_trials: int = whole(8)
    random_share: float = number(0.1, lowest=0)
    confirm: int = whole(3, lowest=0)
    patience: int = whole(48)
    seed: int = whole(0, lowest=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.explorer, str) or self.explorer not in EXPLORERS:
            raise unknown_name("explorer", str(self.explorer), EXPLORERS)
