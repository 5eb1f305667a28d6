"""The budget and the seed of a search."""

from __future__ import annotations

import dataclasses

from romou.base.checked_options import CheckedOptions, number, whole
from romou.base.errors import unknown_name
from romou.tuner.search.strategies import EXPLORERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningOptions(CheckedOptions):
    """Options of a search.

    trials: candidates to measure over all tasks. Trials in the records count
    no_progress: stop searching after this many trials in a row without a 1% improvement of their task. None: no limit
    explorer: "evolution", "annealing" or "ranking" (of all configs, for small spaces), all guided by the cost model.
        Or "random" or "exhaustive"
    batch_size: candidates built together
    random_trials: trials of a task before the cost model guides the search
    random_share: share of later candidates drawn at random. If there is an estimate, uncertainty is explored instead.
    confirm: fastest configs of each task to measure again at the end. This is done if several are within 5%, because
        the device's clock may have changed. 0: none
    patience: after this many trials without a better time, a task gets no more trials while others improve
    seed: seed of all random choices
    """

    trials: int = whole(64, lowest=0)
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
