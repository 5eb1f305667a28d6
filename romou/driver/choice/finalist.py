"""The model that a tuning run may return, beside the models that it has to beat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from romou.base.clock import Deadline
from romou.base.space import Config
from romou.compiler.compilation import Compilation
from romou.driver.check.verify import OutputCheck, check_outputs
from romou.driver.choice.kept import Choice
from romou.driver.choice.layer_times import time_layers
from romou.driver.model import tuned_model
from romou.driver.search.course import Course
from romou.driver.site import TimingSite
from romou.runtime.module import Timed, TunedModel
from romou.tuner.search import TaskResult

# A time has five rounds, and at least two after the deadline. A noisy one, and one that may be a speedup, has more.
WHOLE_MODEL_ROUNDS, _LEAST_ROUNDS = 5, 2
_MORE_ROUNDS = (10, 20)
# A round of a short model is the median of several runs, because one run of 0.2 ms is timed to 2% only.
_ROUND_MS = 10.0
_MOST_RUNS = 20
_UNCHECKED, _UNTIMED = OutputCheck(), Timed(default_ms=None, tuned_ms=None)


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model and what it was compiled from."""

    compilation: Compilation
    model: TunedModel

    @classmethod
    def of(cls, compilation: Compilation, site: TimingSite) -> Built:
        """Assemble a compilation, to run on the device."""
        return cls(compilation=compilation, model=tuned_model(compilation, site))

    def configs(self) -> dict[str, Config | None]:
        """Return task key -> config of each task, default configs included."""
        configs, target = self.compilation.configs, self.compilation.target
        return {
            task.key: configs[task.key] if task.key in configs else task.default_config(target)
            for task in self.compilation.tasks
        }


def built_pair(default: Compilation, tuned: Compilation, site: TimingSite) -> tuple[Built, Built]:
    """Assemble two models. The second one is the first one if no task has another config."""
    first = Built.of(default, site)
    second = replace(first, compilation=tuned)
    if second.configs() == first.configs():
        return first, second
    second = Built.of(tuned, site)
    sources = second.model.sources()
    # Knobs without an effect: the kernels are the default ones.
    return first, first if sources and sources == first.model.sources() else second


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """The tuned model, the default one, and the one whose kernels may replace those of the tuned model.

    default: has the default config of every task.
    base: the model that the same search returned earlier, or `default`.
    tuned: is `default` if no task has another config.
    results: task key -> result, with the configs that the tuned model has.
    course: the end of its budget. Times have fewer rounds after it.
    has_time: whether a round of compilations and timings may begin.
    before: the configs that an earlier search of the same tasks chose.
    max_memory: see `tune`.
    check: the outputs of `tuned` against onnxruntime's.
    layers: task key -> times of its kernels in `default` and in `layers_of`.
    times: times of `default` and of `tuned`.
    """

    site: TimingSite
    default: Built
    base: Built
    tuned: Built
    results: Mapping[str, TaskResult]
    course: Course
    has_time: Callable[[], bool]
    before: Choice | None
    max_memory: int | None
    check: OutputCheck = _UNCHECKED
    layers: Mapping[str, Timed] = field(default_factory=dict)
    layers_of: Built | None = None
    times: Timed = _UNTIMED

    @property
    def is_tuned(self) -> bool:
        """True if a kernel is not the default one."""
        return self.tuned.model is not self.default.model

    @property
    def is_by_estimate(self) -> bool:
        """True if configs were chosen by the estimate. A stand-in's times say nothing of the target's device."""
        return any(result.estimated_ms is not None for result in self.results.values())

    def changed(self) -> set[str]:
        """Return the keys of the tasks that `base` has with another config, or not at all."""
        before = self.base.configs()
        return {key for key, config in self.tuned.configs().items() if key not in before or config != before[key]}

    def checked(self) -> Finalist:
        """Return the finalist with its outputs compared with onnxruntime's."""
        imported = self.tuned.compilation.imported
        return replace(self, check=check_outputs(self.tuned.model, imported, self.site.target))

    def with_layer_times(self) -> Finalist:
        """Return the finalist with the times of each layer."""
        default, tuned = ((built.compilation, built.model) for built in (self.default, self.tuned))
        with self.site.alone():
            layers = time_layers(default, tuned, self.course.deadline)
        return replace(self, layers=layers, layers_of=self.tuned)

    def with_times(self) -> Finalist:
        """Return the finalist with the times of the default and the tuned model. The same kernels are timed once.

        Noisy times are measured again, and so are times whose difference is within their noise.
        """
        models = (self.default.model, self.tuned.model)
        samples = alternate_times(models, self.site, self.course.deadline)
        for rounds in _MORE_ROUNDS:
            times = Timed.of(*samples)
            is_settled = not self.is_tuned or times.speedup is not None
            if (is_settled and not times.is_noisy) or self.course.deadline.is_over:
                break
            more = alternate_times(models, self.site, self.course.deadline, rounds)
            samples = [[*before, *after] for before, after in zip(samples, more, strict=True)]
        return replace(self, times=Timed.of(*samples))

    def with_default_kernels(self) -> Finalist:
        """Return the finalist with the default model, if its outputs are right, and its times."""
        finalist = replace(self, base=self.default)
        return finalist.without(finalist.changed()).with_times()

    def compilation_without(self, keys: Collection[str]) -> Compilation:
        """Return the tuned model's compilation with the configs of `base` for some tasks."""
        if self.changed() <= set(keys):
            return self.base.compilation
        before = self.base.configs()
        configs = {**self.tuned.compilation.configs, **{key: before[key] for key in keys if key in before}}
        return self.tuned.compilation.with_configs(configs)

    def built(self, compilation: Compilation) -> Built:
        """Return the model of a compilation, to run on the device."""
        for known in (self.tuned, self.base, self.default):
            if known.compilation is compilation:
                return known
        return Built.of(compilation, self.site)

    def without(self, keys: Collection[str], built: Built | None = None) -> Finalist:
        """Return the finalist with the kernels of `base` for some tasks, or this one if its outputs are wrong then.

        If no other task has a config of its own, the tuned model is `base`, with its joined kernels.

        built: the model of `compilation_without(keys)`, if there is one.
        """
        built = built or self.built(self.compilation_without(keys))
        finalist = replace(self, tuned=built).checked()
        if finalist.check.is_wrong:
            return self
        defaults, configs = self.default.configs(), built.configs()
        results = dict(self.results)
        for key in keys:
            if key in results and key in configs:
                result, is_default = results[key], configs[key] == defaults.get(key)
                best_ms = result.default_ms if is_default else None
                results[key] = replace(result, config=configs[key], best_ms=best_ms, is_default=is_default)
        return replace(finalist, results=results)


def alternate_times(
    models: Sequence[TunedModel], site: TimingSite, deadline: Deadline, rounds: int = WHOLE_MODEL_ROUNDS
) -> list[list[float]]:
    """Return the time of each model in each round, in ms. They are timed alternately, so drift hits all of them.

    The same model is timed once a round.
    """
    different = list(dict.fromkeys(models))
    times: dict[TunedModel, list[float]] = {model: [] for model in different}
    with site.alone():
        longest = max(model.times(repeat=1)[0] for model in different)
        runs = min(_MOST_RUNS, max(1, int(_ROUND_MS / longest))) if longest else _MOST_RUNS
        for number in range(rounds):
            if number >= _LEAST_ROUNDS and deadline.is_over:
                break
            for model in different if number % 2 == 0 else reversed(different):
                times[model].append(float(np.median(model.times(repeat=runs))))
    return [times[model] for model in models]
