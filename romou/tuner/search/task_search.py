"""The state of a task during a search: its measurements, its explorer, and its result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.costs.features import Correction, TaskFeatures
from romou.tuner.search.explorer import Explorer
from romou.tuner.search.scheduler import Progression
from romou.tuner.search.transfer import TransferData
from romou.tuner.search.tuning_options import TuningOptions

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask
    from romou.devices.hardware import HardwareSpec
    from romou.devices.targets import Target
    from romou.tuner.measure.types import BuildResult

# Most measurements of one task on one device used as transfer data for others, so that training stays quick.
_TRANSFER_EACH = 2000
# Two configs may be equally fast if their times differ by less than this factor.
_CLOSE = 1.05
# A default config this near to the best one is measured again too, so that the result is not slower.
_NEAR_DEFAULT = 1.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of a task's search. Times are medians of one call in milliseconds.

    config: the best config. None if none worked. The caller then uses TVM's own schedule
    estimated_ms: estimate for the target's device, which decided because another device measured. None if times decided
    default_ms: time of the default config. None if it was not measured or failed
    """

    task_key: str
    config: Config | None
    best_ms: float | None
    default_ms: float | None
    is_default: bool
    trials: int
    outcomes: dict[str, int]
    estimated_ms: float | None = None


class TaskSearch:
    """The state of one task during the search.

    elsewhere: origin -> configs and seconds, measured on other devices or by other versions
    is_by_estimate: candidates that work are judged by the estimate for the target's device, because another device
        measures
    measured: config key -> config and seconds, measured or estimated as above. None if it failed
    times: config key -> measured seconds. None if it failed
    again: config key -> seconds as in `measured`, after the second measurement at the end. None if it failed then
    built: config key -> build result. Its library exists until the builder is closed
    waiting: number of candidates proposed and not yet measured
    """

    def __init__(
        self,
        task: TunableTask,
        target: Target,
        options: TuningOptions,
        index: int,
        transfer_data: Callable[[TaskSearch], TransferData],
        spec: HardwareSpec | None,
        pretrained: Correction | None,
        is_by_estimate: bool = False,
    ) -> None:
        self.task = task
        self.is_by_estimate = is_by_estimate
        self.space = task.space(target)
        self.default = task.default_config(target)
        # Pretrained models were trained on tensor cores with split floats only.
        spellings = {*self.space.knobs.get("multiply_add", ())}
        is_known = bool(spellings) and spellings.isdisjoint({*tensor_core.CHOICES} - {tensor_core.TF32X3})
        self.features = TaskFeatures(task.template, task.limits(target), spec, pretrained if is_known else None)
        rng = np.random.default_rng([options.seed, index])
        self.explorer = Explorer(
            self.space, self.default, options, rng, features=self.features, transfer_data=lambda: transfer_data(self)
        )
        self.elsewhere: dict[str, list[tuple[Config, float | None]]] = {}
        self.measured: dict[str, tuple[Config, float | None]] = {}
        self.times: dict[str, float | None] = {}
        self.again: dict[str, float | None] = {}
        self.progression = Progression(calls=task.calls)
        self.outcomes: dict[str, int] = {}
        self.waiting = 0
        self.built: dict[str, BuildResult] = {}
        # The last transfer data, and its number of measurements.
        self.transfer_data: tuple[TransferData, int] | None = None

    def add_to(self, data: TransferData, *, is_own: bool) -> None:
        """Add the measurements of this task elsewhere.

        If the data is for another task, also add the ones on this device.
        """
        groups = [*self.elsewhere.values()] + ([] if is_own else [list(self.measured.values())])
        for group in groups:
            chosen = group[:: math.ceil(len(group) / _TRANSFER_EACH)] if group else []
            data.add(self.features, [c for c, _ in chosen], [t for _, t in chosen])

    def add(self, config: Config, outcome: Outcome, time_s: float | None) -> None:
        """Add a finished trial."""
        self.measured[config.key] = (config, self._judged(config, time_s))
        self.times[config.key] = time_s
        self.progression.times.append(time_s)
        self.outcomes[str(outcome)] = self.outcomes.get(str(outcome), 0) + 1

    def _judged(self, config: Config, time_s: float | None) -> float | None:
        """Return the seconds by which a candidate is compared with others. None if it failed."""
        if time_s is None or not self.is_by_estimate:
            return time_s
        return float(np.exp(-self.features.expected([config])[0]))

    def fastest(self) -> list[tuple[float, Config]]:
        """Return seconds and config of the trials that worked, the fastest first."""
        return sorted(((t, c) for c, t in self.measured.values() if t is not None), key=lambda pair: pair[0])

    def close_calls(self, count: int) -> list[Config]:
        """Return at most `count` configs that may each be the fastest, and the default one if it is near.

        Empty if all of them were measured again.
        """
        # A second measurement changes no estimate.
        fastest = [] if self.is_by_estimate else self.fastest()
        close = [config for seconds, config in fastest[:count] if seconds <= _CLOSE * fastest[0][0]]
        default_s = self.measured.get(self.default.key, (None, None))[1]
        if close and default_s is not None and default_s <= _NEAR_DEFAULT * fastest[0][0] and self.default not in close:
            close.append(self.default)
        return close if len(close) > 1 and any(config.key not in self.again for config in close) else []

    def best(self) -> Config | None:
        """Return the fastest of the configs measured again, or of all configs if none was. None if no config worked."""
        again = [(t, self.measured[key][0]) for key, t in self.again.items() if t is not None and key in self.measured]
        return (
            min(again, key=lambda pair: pair[0])[1] if again else next((config for _, config in self.fastest()), None)
        )

    def doubtful(self, count: int) -> list[Config]:
        """Return the configs to measure again: `close_calls`, or else the best one if it was measured only once."""
        best = self.best()
        return self.close_calls(count) or ([best] if count and best is not None and best.key not in self.again else [])

    def confirm(self, config: Config, outcome: Outcome, time_s: float | None) -> None:
        """Add a second measurement. If a config fails in it, it no longer counts."""
        self.again[config.key] = self._judged(config, time_s)
        if time_s is None:
            self.measured[config.key], self.times[config.key] = (config, None), None
            self.outcomes[str(outcome)] = self.outcomes.get(str(outcome), 0) + 1

    def result(self) -> TaskResult:
        """Return the result of the search so far."""
        best = self.best()
        again = {} if self.is_by_estimate else {key: time_s for key, time_s in self.again.items() if time_s is not None}

        def seconds(config: Config) -> float | None:
            # The second time of a single config is not comparable with the first times of the others.
            return again[config.key] if len(again) > 1 and config.key in again else self.times.get(config.key)

        best_s, default = None if best is None else seconds(best), seconds(self.default)
        judged_s = self._judged(best, best_s) if best is not None and self.is_by_estimate else None
        return TaskResult(
            task_key=self.task.key,
            # Without a budget nothing was measured, and the default config probably works.
            config=best if best is not None or self.measured else self.default,
            best_ms=None if best_s is None else best_s * 1e3,
            default_ms=None if default is None else default * 1e3,
            is_default=best == self.default,
            trials=len(self.measured) - self.outcomes.get(Outcome.INVALID, 0),
            outcomes=dict(self.outcomes),
            estimated_ms=None if judged_s is None else judged_s * 1e3,
        )
