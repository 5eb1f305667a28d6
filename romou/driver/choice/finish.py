"""The end of a tuning run: the model with the best configs, checked, timed against default kernels, and summarized.

`TRANSITIONS` has all steps in order, from a model that is built to one that is checked, chosen and timed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.devices.targets import Target
from romou.driver.check.verify import check_stability, wrong_outputs
from romou.driver.choice.finalist import Built, Finalist, built_pair
from romou.driver.choice.kept import Choice
from romou.driver.choice.whole_model import choose_kernels
from romou.driver.search.course import Course
from romou.driver.search.model_search import SearchedModel
from romou.driver.site import TimingSite
from romou.driver.summary import layer_rows, warn_of_host
from romou.runtime.module import LayerRow, Summary, TunedModel

if TYPE_CHECKING:
    import onnx

    from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

# Longest check that outputs are the same from run to run.
_MOST_STABILITY_S, _LEAST_STABILITY_S = 5.0, 0.5


class Transition(NamedTuple):
    """A step of a finalist.

    doing: what the user reads meanwhile.
    condition: which finalists take it. None: all.
    """

    doing: str
    condition: Callable[[Finalist], bool] | None
    step: Callable[[Finalist], Finalist]


def is_wrong_by_fp16_sums(finalist: Finalist) -> bool:
    """Return whether the outputs are wrong and sums may be in fp16. Each kernel passed its check with fp16 sums."""
    return finalist.check.is_wrong and finalist.site.target.limits.has_fp16_arithmetic


def is_chosen_by_times(finalist: Finalist) -> bool:
    """Return whether the default config of every tuned task was timed, on the target's device or one of its kind."""
    tuned = [result for result in finalist.results.values() if result.config is not None and result.trials]
    return not finalist.is_by_estimate and all(result.default_ms is not None for result in tuned)


def is_not_faster(finalist: Finalist) -> bool:
    """Return whether default kernels are as fast as the tuned ones."""
    return is_chosen_by_times(finalist) and finalist.is_tuned and finalist.times.saved_ms <= 0


def has_untimed_kernels(finalist: Finalist) -> bool:
    """Return whether a task has neither its default config nor the one with which its layer was timed."""
    assert finalist.layers_of is not None, "layers are timed before"
    timed, default, final = (built.configs() for built in (finalist.layers_of, finalist.default, finalist.tuned))
    return final.keys() != timed.keys() or any(
        config not in (timed.get(key), default.get(key)) for key, config in final.items()
    )


def with_fp32_sums(finalist: Finalist) -> Finalist:
    """Return both models with sums in fp32, checked again."""
    check, compilation = finalist.check, finalist.tuned.compilation
    text = "with sums in fp16 the model's outputs differ from onnxruntime's by %.2e (relative L2), the limit is %.0e:"
    logger.warning(f"{text} sums are fp32", check.error, check.limit)
    site = replace(finalist.site, target=finalist.site.target.with_options(half="storage"))
    default = finalist.default.compilation.for_target(site.target)
    configs = configs_with_fp32_sums([*compilation.tasks, *default.tasks], compilation.configs, site.target)
    first, tuned = built_pair(default, compilation.for_target(site.target).with_configs(configs), site)
    results = {key: replace(result, config=configs.get(key)) for key, result in finalist.results.items()}
    return replace(finalist, site=site, default=first, base=first, tuned=tuned, results=results).checked()


# Each step whose condition holds is taken, from the top down.
TRANSITIONS = (
    # built -> checked
    Transition("checking the model's outputs", None, Finalist.checked),
    Transition("compiling the model with sums in fp32", is_wrong_by_fp16_sums, with_fp32_sums),
    # checked -> timed, layer by layer
    Transition("timing each layer", None, Finalist.with_layer_times),
    # timed -> chosen
    Transition("choosing kernels by times of the whole model", is_chosen_by_times, choose_kernels),
    # chosen -> final
    Transition("timing the whole model", None, Finalist.with_times),
    Transition("timing the model with default kernels", is_not_faster, Finalist.with_default_kernels),
    Transition("timing each layer", has_untimed_kernels, Finalist.with_layer_times),
)


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
    has_time = course.may_choose()
    with course.doing("compiling the model with the best kernels"):
        default, tuned = built_pair(*_compilations(searched, max_memory), site)
    finalist = Finalist(
        site=site,
        default=default,
        base=default,
        tuned=tuned,
        results=searched.results,
        course=course,
        has_time=has_time,
        before=before,
        max_memory=max_memory,
    )
    for transition in TRANSITIONS:
        if transition.condition is None or transition.condition(finalist):
            with course.doing(transition.doing):
                finalist = transition.step(finalist)
    if finalist.check.is_wrong:
        _report_wrong_outputs(finalist, searched.records, verify=verify)
    with course.doing("checking that outputs stay the same from run to run"), site.alone():
        limit_s = max(_LEAST_STABILITY_S, min(_MOST_STABILITY_S, course.deadline.left_s / 2))
        check_stability(finalist.tuned.model, searched.compilation.imported, limit_s=limit_s)
    summary = summary_of(finalist, searched.records)
    warn_of_host(summary)
    return finalist.tuned.model.with_summary(summary)


def _compilations(searched: SearchedModel, max_memory: int | None) -> tuple[Compilation, Compilation]:
    """Return the compilation with default configs and the one with the best. Both leave failed tasks to TVM."""
    compilation, results = searched.compilation, searched.results
    configs = {key: result.config for key, result in results.items()}
    broken: dict[str, Config | None] = {key: None for key, config in configs.items() if config is None}
    joined = {task.key for task in compilation.tasks}
    # A joined kernel without a working config is the separate kernels again.
    default = compilation.joined_where(lambda key: key in joined and key not in broken).with_configs(broken)
    best_ms = {key: result.estimated_ms or result.best_ms for key, result in results.items()}
    best_s = {key: time_ms / 1e3 for key, time_ms in best_ms.items() if time_ms is not None}
    tuned = compilation.joined_where_faster(best_s).with_configs(configs)
    return default.within(max_memory), tuned.within(max_memory)


def configs_with_fp32_sums(
    tasks: Iterable[TunableTask], configs: Mapping[str, Config | None], target: Target
) -> dict[str, Config | None]:
    """Return the configs with sums in fp32. A config that its task's space on `target` then lacks is left out."""
    given = [(task, config) for task in tasks if (config := configs.get(task.key)) is not None]
    changed = {task.key: task.with_fp32_sums(config, target) for task, config in given}
    lacking = {key for key, config in changed.items() if config is None}
    return {key: config for key, config in {**configs, **changed}.items() if key not in lacking}


def summary_of(finalist: Finalist, records: Path | None) -> Summary:
    """Return the model's summary with the times, errors and outcomes of the finalist."""
    model, check, site = finalist.tuned.model, finalist.check, finalist.site
    outcomes: Counter[str] = Counter()
    for result in finalist.results.values():
        outcomes.update(result.outcomes)
    return replace(
        model.summary(),
        device=site.name,
        rows=_rows(finalist),
        **vars(finalist.times),
        relative_l2_error=check.error,
        tolerance=check.limit,
        outcomes=dict(outcomes),
        seconds=finalist.course.seconds,
        launching=model.launching,
        records=None if records is None else str(records),
        host=model.host_times(),
        checked_on="" if check.error is None else site.name,
        unchecked=check.unchecked,
        stands_in_for=site.stands_in_for,
        is_by_estimate=finalist.is_by_estimate,
    )


def _rows(finalist: Finalist) -> tuple[LayerRow, ...]:
    """Return a row for each task, with times in the two final models instead of those of the search.

    Candidates are timed far apart, between builds. Their times choose a config; a table of them would not add up.
    """
    defaults, configs = finalist.default.configs(), finalist.tuned.configs()
    rows = []
    for row in layer_rows(finalist.tuned.compilation, finalist.results):
        if row.key in finalist.layers:
            row = replace(row, **vars(finalist.layers[row.key]))
        # The kernel is the default one: a difference would be noise.
        is_default = row.key in defaults and configs[row.key] == defaults[row.key]
        rows.append(row.of_default() if is_default else row)
    return tuple(rows)


def _report_wrong_outputs(finalist: Finalist, records: Path | None, *, verify: bool) -> None:
    """Raise NumericError with the first wrong operator, or only log a warning if `verify` is False."""
    compilation, check = finalist.tuned.compilation, finalist.check

    def compile_part(part: onnx.ModelProto) -> TunedModel:
        imported = import_model(part, None, compilation.imported.precision.of_parts())
        lowered = Compilation.of(imported, finalist.site.target).with_default_kernels()
        return Built.of(lowered.with_configs(compilation.configs), finalist.site).model

    if verify:
        kept = "" if records is None else f" Records are kept in {records}."
        way_out = f"verify=False (--no-verify) returns the model with a warning.{kept}"
        raise wrong_outputs(
            finalist.tuned.model, compilation.imported, finalist.site.target, compile_part, check, way_out=way_out
        )
    text = "the model's outputs differ from onnxruntime's by %.2e (relative L2); the limit is %.0e"
    logger.warning(text, check.error, check.limit)
