"""The end of a tuning run: the model with the best configs, checked, timed against default kernels, and summarized."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.devices.targets import Target
from romou.driver.course import Course
from romou.driver.finalist import Built, Finalist
from romou.driver.kept_choice import Choice
from romou.driver.layer_times import time_layers
from romou.driver.model import tuned_model
from romou.driver.search import SearchedModel
from romou.driver.site import TimingSite
from romou.driver.summary import layer_rows, unmeasured, warn_of_host, where_nodes_run
from romou.driver.verify import check_outputs, check_stability, wrong_outputs
from romou.driver.whole_model_choice import with_what_helps
from romou.runtime.module import LayerRow, Summary, Timed, TunedModel
from romou.tuner.search import TaskResult

if TYPE_CHECKING:
    import onnx

    from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

# Longest check that outputs are the same from run to run.
_MOST_STABILITY_S, _LEAST_STABILITY_S = 5.0, 0.5


def finish(
    searched: SearchedModel,
    site: TimingSite,
    course: Course,
    *,
    max_memory: int | None = None,
    verify: bool = True,
    before: Choice | None = None,
) -> TunedModel:
    """Assemble the model with the best configs, compare it with onnxruntime and with the default kernels.

    before: the configs that an earlier search of the same tasks chose. The model has these if they are faster.
    max_memory, verify: see `tune`.

    Raises
    ------
    NumericError
        The outputs are wrong, and `verify` is True.
    """
    may_choose = course.may_choose()
    with course.doing("compiling the model with the best kernels, and checking its outputs"):
        finalist = _assembled(searched, site, max_memory, course)
        if finalist.check.is_wrong and site.target.limits.has_fp16_arithmetic:
            finalist = _with_fp32_sums(finalist)
    end = _Finish(searched, course, finalist)
    end.choose(before, max_memory, may_choose)
    finalist = end.finalist
    if finalist.check.is_wrong:
        _report_wrong_outputs(finalist, searched.records, verify=verify)
    with course.doing("checking that outputs stay the same from run to run"), site.alone():
        limit_s = max(_LEAST_STABILITY_S, min(_MOST_STABILITY_S, course.deadline.left_s / 2))
        check_stability(finalist.tuned.model, searched.compilation.imported, limit_s=limit_s)
    summary = end.summary()
    warn_of_host(summary)
    return finalist.tuned.model.with_summary(summary)


class _Finish:
    """The finalist of a search, and its times so far."""

    def __init__(self, searched: SearchedModel, course: Course, finalist: Finalist) -> None:
        self._searched, self._course = searched, course
        self.finalist = finalist
        results = searched.results.values()
        self._is_by_estimate = any(result.estimated_ms is not None for result in results)
        self._layers = self._time_layers()
        self._times = Timed(default_ms=None, tuned_ms=None)

    def choose(self, before: Choice | None, max_memory: int | None, may_choose: Callable[[], bool]) -> None:
        """Choose among the kernels found, the default ones, and those of an earlier choice, by times of the model."""
        searched = self.finalist
        # A stand-in's times say nothing of the target's device.
        is_by_times = not self._is_by_estimate and _has_default_times(self.finalist.results)
        if is_by_times:
            self.finalist = _with_base(self.finalist, before, max_memory)
        if is_by_times and (self.finalist.is_tuned or self.finalist.changed()):
            with self._course.doing("choosing among the kernels by times of the whole model"):
                self.finalist = with_what_helps(self.finalist, self._layers, may_choose)
        self._time()
        if is_by_times and self.finalist.is_tuned and self._times.saved_ms <= 0:
            self.finalist = self.finalist.with_default_kernels()
            self._time()
        if _has_untimed_kernels(self.finalist, searched):
            self._layers = self._time_layers()

    def _time(self) -> None:
        with self._course.doing("timing the whole model"):
            self._times = self.finalist.timed()

    def _time_layers(self) -> dict[str, Timed]:
        default, tuned = ((built.compilation, built.model) for built in (self.finalist.default, self.finalist.tuned))
        with self._course.doing("timing each layer"), self.finalist.site.alone():
            return time_layers(default, tuned, self._searched.compilation.alternatives, self._course.deadline)

    def summary(self) -> Summary:
        """Return the summary of the finalist."""
        finalist, records = self.finalist, self._searched.records
        final, model, plain = finalist.tuned.compilation, finalist.tuned.model, finalist.plain
        return Summary(
            target=str(finalist.site.named),
            device=finalist.site.name,
            rows=self._rows(),
            **vars(self._times),
            relative_l2_error=finalist.check.error,
            tolerance=finalist.check.limit,
            outcomes=_count_outcomes(finalist.results),
            seconds=self._course.seconds,
            launching=model.launching,
            records=None if records is None else str(records),
            **{**where_nodes_run(final), "host": model.host_times()},
            precision=plain.precision,
            fp32_layers=plain.fp32_layers,
            memory=model.summary().memory,
            checked_on="" if finalist.check.error is None else finalist.site.name,
            unchecked=finalist.check.unchecked,
            stands_in_for=finalist.site.stands_in_for,
            is_by_estimate=self._is_by_estimate,
        )

    def _rows(self) -> tuple[LayerRow, ...]:
        """Return a row for each task, with times in the two final models instead of those of the search.

        Candidates are timed far apart, between builds. Their times choose a config; a table of them would not add up.
        """
        results, defaults = self.finalist.results, self.finalist.default.configs()
        configs, rows = self.finalist.tuned.configs(), []
        for row in layer_rows(self.finalist.tuned.compilation, results, self._searched.compilation.alternatives):
            if row.key in self._layers:
                row = replace(row, **dataclasses.asdict(self._layers[row.key]))
            # The kernel is the default one: a difference would be noise.
            if row.key in defaults and configs[row.key] == defaults[row.key]:
                row = replace(row, **dataclasses.asdict(row.of_default()))
            rows.append(row)
        return tuple(rows)


def _assembled(searched: SearchedModel, site: TimingSite, max_memory: int | None, course: Course) -> Finalist:
    compilation, results = searched.compilation, searched.results
    plain = unmeasured(compilation, site.named, rows=())
    configs = {key: result.config for key, result in results.items()}
    # Both models leave a task without a working config to TVM's schedules.
    broken: dict[str, Config | None] = {key: None for key, config in configs.items() if config is None}
    joined_keys = {task.key for task in compilation.tasks}
    # A joined kernel without a working config is the separate kernels again.
    working = compilation.joined_where(lambda key: key in joined_keys and key not in broken)
    default_compilation = working.with_configs(broken).within(max_memory)
    default = Built(compilation=default_compilation, model=tuned_model(default_compilation, site, plain))
    best_ms = {key: result.estimated_ms or result.best_ms for key, result in results.items()}
    best_s = {key: time_ms / 1e3 for key, time_ms in best_ms.items() if time_ms is not None}
    tuned_compilation = compilation.joined_where_faster(best_s).with_configs(configs).within(max_memory)
    tuned = Built(compilation=tuned_compilation, model=default.model)
    if tuned.configs() != default.configs():
        tuned = replace(tuned, model=tuned_model(tuned_compilation, site, plain))
        sources = tuned.model.sources()
        if sources and sources == default.model.sources():
            # Knobs without an effect: the kernels are the default ones.
            tuned = default
    return Finalist(
        site=site,
        default=default,
        base=default,
        tuned=tuned,
        results=results,
        check=check_outputs(tuned.model, compilation.imported, site.target),
        plain=plain,
        deadline=course.deadline,
    )


def _with_fp32_sums(finalist: Finalist) -> Finalist:
    """Return both models with sums in fp32. Each kernel passed its check with fp16 sums, but the model did not."""
    logger.warning(
        "with sums in fp16 the model's outputs differ from onnxruntime's by %.2e (relative L2), the limit is %.0e:"
        " sums are fp32",
        finalist.check.error,
        finalist.check.limit,
    )
    site = replace(finalist.site, target=finalist.site.target.with_options(half="storage"))
    default_compilation = finalist.default.compilation.for_target(site.target)
    tasks = [*finalist.tuned.compilation.tasks, *default_compilation.tasks]
    configs = with_fp32_sums(tasks, finalist.tuned.compilation.configs, site.target)
    compilation = finalist.tuned.compilation.for_target(site.target).with_configs(configs)
    default = Built(compilation=default_compilation, model=tuned_model(default_compilation, site, finalist.plain))
    tuned = replace(default, compilation=compilation)
    if tuned.configs() != default.configs():
        tuned = replace(tuned, model=tuned_model(compilation, site, finalist.plain))
    return Finalist(
        site=site,
        default=default,
        base=default,
        tuned=tuned,
        results={key: replace(result, config=configs.get(key)) for key, result in finalist.results.items()},
        check=check_outputs(tuned.model, compilation.imported, site.target),
        plain=finalist.plain,
        deadline=finalist.deadline,
    )


def with_fp32_sums(
    tasks: Iterable[TunableTask], configs: Mapping[str, Config | None], target: Target
) -> dict[str, Config | None]:
    """Return the configs with sums in fp32. A config that its task's space on `target` then lacks is left out."""
    changed: dict[str, Config | None] = dict(configs)
    for task in tasks:
        config = configs.get(task.key)
        if config is not None:
            in_fp32 = task.with_fp32_sums(config, target)
            if in_fp32 is None:
                changed.pop(task.key, None)
            else:
                changed[task.key] = in_fp32
    return changed


def _with_base(finalist: Finalist, choice: Choice | None, max_memory: int | None) -> Finalist:
    """Return the finalist with the model of an earlier choice as its base. A choice of other knobs is left out."""
    if not choice:
        return finalist
    target = finalist.site.target
    spaces = {task.key: task.space(target) for task in finalist.tuned.compilation.candidates}
    if not all(key in spaces and (config is None or spaces[key].knows(config)) for key, config in choice.items()):
        return finalist
    for built in (finalist.tuned, finalist.default):
        if built.configs() == choice:
            return replace(finalist, base=built)
    compilation = finalist.tuned.compilation.joined_where(choice.__contains__).with_configs(choice).within(max_memory)
    model = tuned_model(compilation, finalist.site, finalist.plain)
    return replace(finalist, base=Built(compilation=compilation, model=model))


def _has_untimed_kernels(finalist: Finalist, searched: Finalist) -> bool:
    """Return whether a task has neither its default config nor the one that `searched` has."""
    timed = [built.configs() for built in (searched.default, searched.tuned)]
    final = finalist.tuned.configs()
    return final.keys() != timed[1].keys() or any(
        config not in [configs.get(key) for configs in timed] for key, config in final.items()
    )


def _has_default_times(results: Mapping[str, TaskResult]) -> bool:
    """Return whether the default config of every tuned task was timed."""
    tuned = [result for result in results.values() if result.config is not None and result.trials]
    return all(result.default_ms is not None for result in tuned)


def _report_wrong_outputs(finalist: Finalist, records: Path | None, *, verify: bool) -> None:
    """Raise NumericError with the first wrong operator, or only log a warning if `verify` is False."""
    compilation, check = finalist.tuned.compilation, finalist.check

    def compile_part(part: onnx.ModelProto) -> TunedModel:
        imported = import_model(part, None, compilation.imported.precision.of_parts())
        lowered = Compilation.of(imported, finalist.site.target).with_default_kernels()
        return tuned_model(lowered.with_configs(compilation.configs), finalist.site, finalist.plain)

    if verify:
        kept = "" if records is None else f" Records are kept in {records}."
        way_out = f"verify=False (--no-verify) returns the model with a warning.{kept}"
        raise wrong_outputs(
            finalist.tuned.model, compilation.imported, finalist.site.target, compile_part, check, way_out=way_out
        )
    text = "the model's outputs differ from onnxruntime's by %.2e (relative L2); the limit is %.0e"
    logger.warning(text, check.error, check.limit)


def _count_outcomes(results: Mapping[str, TaskResult]) -> dict[str, int]:
    total: dict[str, int] = {}
    for result in results.values():
        for outcome, count in result.outcomes.items():
            total[outcome] = total.get(outcome, 0) + count
    return total
