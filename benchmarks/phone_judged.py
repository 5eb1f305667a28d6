"""A task of phones' measurements with the estimates of its configs and the verdicts of the criteria."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from phone_tasks import PhoneTask
from romou.base.space import Config
from romou.compiler.operators.algorithms.algorithm import DIRECT
from romou.compiler.operators.costs.criteria import choices_of, judge
from romou.compiler.operators.costs.estimate import estimate_parts, estimate_seconds
from romou.devices.targets import Target

# A config is as good as the best one within this factor.
NEAR = 1.02
# The recordings have one place for each tensor, so this criterion excludes all configs of a task or none.
OF_PLACES = "buffers"


class Judgement(NamedTuple):
    """How well scores order the kernels that ran.

    correlation: rank correlation with the times
    first, ten: time of the first pick, and of the best of the first ten, over the best
    trials: picks until one is as good as the best
    """

    correlation: float
    first: float
    ten: float
    trials: int

    @classmethod
    def of(cls, scores: np.ndarray, times_s: np.ndarray) -> Judgement:
        """Return the judgement of scores, higher for faster kernels."""
        order = np.argsort(-scores, kind="stable")
        slower = times_s[order] / times_s.min()
        # Equal scores are no information: any order of them is as good.
        correlation = 0.0 if np.ptp(scores) == 0 else float(stats.spearmanr(-scores, times_s).statistic)
        trials = int(np.argmax(slower <= NEAR)) + 1
        return cls(correlation, first=float(slower[0]), ten=float(slower[:10].min()), trials=trials)


@dataclass(frozen=True)
class Judged:
    """A task with the estimates of its configs."""

    task: PhoneTask

    @property
    def group(self) -> tuple[str, str, str]:
        """GPU, template and type."""
        recorded = self.task.recorded
        return recorded.gpu, recorded.template.partition(".")[0], recorded.dtype

    @cached_property
    def seconds(self) -> np.ndarray:
        """Estimated seconds of each config."""
        estimated = estimate_seconds(self.task.usage, self.task.target.spec)
        assert estimated is not None, "main leaves out GPUs without an estimate"
        return np.broadcast_to(estimated, len(self.task.time_s))

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """Term of the estimate -> cycles of each config."""
        parts = estimate_parts(self.task.usage, self.task.target.spec) or {}
        return {name: np.broadcast_to(part, len(self.task.time_s)) for name, part in parts.items()}

    @cached_property
    def is_near_best(self) -> np.ndarray:
        """Which configs are as good as the best recorded one."""
        is_near: np.ndarray = self.task.time_s <= NEAR * np.nanmin(self.task.time_s)
        return is_near

    @cached_property
    def excluded(self) -> dict[bool, dict[str, np.ndarray]]:
        """Criterion -> which configs it excludes, as if the recorded configs were the space.

        By the facts of the GPU's file (False), and with unknown ones from the nearest GPU (True).
        """
        return {is_guessed: self._excluded(is_guessed) for is_guessed in (False, True)}

    def _excluded(self, is_guessed: bool) -> dict[str, np.ndarray]:
        task = self.task
        own = Target({name: value for name, value in _identity(task.target).items() if value is not None})
        spec = own.with_options(facts="nearest").spec if is_guessed and own.spec.nearest else own.spec
        choices = choices_of(task.form, task.space, spec, [task.usage], start_of(task))
        verdicts = judge(task.usage, spec, choices=choices)
        count = len(task.time_s)
        return {name: ~np.broadcast_to(np.asarray(v.keep, dtype=bool), count) for name, v in verdicts.items()}

    def is_rejected(self, is_guessed: bool) -> np.ndarray:
        """Return which configs a criterion excludes, but for the place of tensors."""
        masks = [mask for name, mask in self.excluded[is_guessed].items() if name != OF_PLACES]
        return np.logical_or.reduce(masks) if masks else np.zeros(len(self.task.time_s), dtype=bool)

    def quality(self, scores: np.ndarray) -> Judgement:
        """Return the judgement of scores, lower for faster kernels."""
        is_timed = self.task.is_timed
        return Judgement.of(-scores[is_timed], self.task.time_s[is_timed])


def start_of(task: PhoneTask) -> Config:
    """Return Romou's first config with the recorded algorithm."""
    # A recording of Romou begins with the default config.
    wanted = task.kernels[0].knobs.get("algorithm", DIRECT)
    assert task.recorded.task is not None, "tasks without a template are left out"
    starts = task.recorded.task.starts(task.target)
    return next(config for config in starts if config.get("algorithm", DIRECT) == wanted)


def _identity(target: Target) -> dict[str, Any]:
    return {"kind": target.kind, "device": target.device_name}


def grouped(tasks: Sequence[Judged]) -> Mapping[str, Sequence[Judged]]:
    """Return a name of a group -> its tasks: GPU, template and type; then convolutions of each GPU; then all."""
    groups: dict[str, list[Judged]] = {}
    for judged in sorted(tasks, key=lambda j: j.group):
        groups.setdefault(", ".join(judged.group), []).append(judged)
    for gpu in sorted({j.group[0] for j in tasks}):
        groups[f"{gpu}, all but depthwise"] = [
            j for j in tasks if j.group[0] == gpu and not j.task.recorded.is_depthwise
        ]
    return {name: members for name, members in {**groups, "all": list(tasks)}.items() if members}
