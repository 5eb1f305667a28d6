"""The end of a tuning run: the model with the best configs, checked, timed against default kernels, and summarized."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.devices.targets import Target
from romou.driver.finalist import Built, Finalist
from romou.driver.kept_choice import Choice
from romou.driver.layer_times import LayerTime, time_layers
from romou.driver.model import tuned_model
from romou.driver.site import TimingSite
from romou.driver.summary import layer_rows, unmeasured, warn_of_host, where_nodes_run
from romou.driver.verify import check_outputs, check_stability, wrong_outputs
from romou.driver.whole_model_choice import with_what_helps
from romou.runtime.module import LayerRow, Summary, TunedModel
from romou.tuner.search import TaskResult

if TYPE_CHECKING:
    import onnx

    from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

# The share of the search's time that the choice of kernels by times of the whole model may take.
CHOICE_SHARE = 0.1


def finish(
    compilation: Compilation,
    site: TimingSite,
    results: Mapping[str, TaskResult],
    *,
    started: float,
    records: Path | None = None,
    max_memory: int | None = None,
    verify: bool = True,
    before: Choice | None = None,
) -> TunedModel:
    """Assemble the model with the best configs, compare it with onnxruntime and with the default kernels.

    results: task key -> result of the search.
    started: the search began at this `time.monotonic()`. The summary counts seconds from then.
    before: the configs that an earlier search of the same tasks chose. The model has these if they are faster.
    max_memory, verify: see `tune`.

    Raises
    ------
    NumericError
        The outputs are wrong, and `verify` is True.
    """
    budget_s, began = CHOICE_SHARE * (time.monotonic() - started), time.monotonic()
    plain = unmeasured(compilation, site.named, rows=())
    finalist = _assembled(compilation, site, results, max_memory, plain)
    if finalist.check.is_wrong and site.target.limits.has_fp16_arithmetic:
        finalist = _with_fp32_sums(finalist)
    # A round of the choice takes about as long as this.
    assembling_s = time.monotonic() - began
    searched, layers = finalist, _layer_times(finalist, compilation.alternatives)
    is_by_estimate = any(result.estimated_ms is not None for result in results.values())
    # A stand-in's times say nothing of the target's device.
    is_by_times = not is_by_estimate and _has_default_times(finalist.results)
    if is_by_times:
        finalist = _with_base(finalist, before, max_memory)
    if is_by_times and (finalist.is_tuned or finalist.changed()):
        stop_at = time.monotonic() + budget_s - assembling_s
        finalist, times = _of_what_helps(finalist, layers, lambda: time.monotonic() < stop_at)
    else:
        times = finalist.timed()
    if _has_untimed_kernels(finalist, searched):
        layers = _layer_times(finalist, compilation.alternatives)
    if finalist.check.is_wrong:
        _report_wrong_outputs(finalist, records, verify=verify)
    with site.alone():
        check_stability(finalist.tuned.model, compilation.imported)
    default_ms, tuned_ms, noise = times
    final, model = finalist.tuned.compilation, finalist.tuned.model
    summary = Summary(
        target=str(finalist.site.named),
        device=finalist.site.name,
        rows=_timed_rows(finalist, compilation.alternatives, layers),
        default_ms=default_ms,
        tuned_ms=tuned_ms,
        noise=noise,
        relative_l2_error=finalist.check.error,
        tolerance=finalist.check.limit,
        outcomes=_count_outcomes(finalist.results),
        seconds=time.monotonic() - started,
        launching=model.launching,
        records=None if records is None else str(records),
        **{**where_nodes_run(final), "host": model.host_times()},
        precision=plain.precision,
        fp32_layers=plain.fp32_layers,
        memory=model.summary().memory,
        checked_on="" if finalist.check.error is None else finalist.site.name,
        stands_in_for=finalist.site.stands_in_for,
        is_by_estimate=is_by_estimate,
    )
    warn_of_host(summary)
    return model.with_summary(summary)


def _assembled(
    compilation: Compilation,
    site: TimingSite,
    results: Mapping[str, TaskResult],
    max_memory: int | None,
    plain: Summary,
) -> Finalist:
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
    joined = compilation.joined_where_faster(best_s)
    tuned_compilation = joined.with_configs(configs).within(max_memory)
    tuned_results = [results[task.key] for task in compilation.tasks if task.key in results]
    has_other_configs = any(result.config is not None and not result.is_default for result in tuned_results)
    is_tuned = joined is not compilation or has_other_configs
    model = tuned_model(tuned_compilation, site, plain) if is_tuned else default.model
    return Finalist(
        site=site,
        default=default,
        base=default,
        tuned=Built(compilation=tuned_compilation, model=model),
        results=results,
        check=check_outputs(model, compilation.imported, site.target),
        plain=plain,
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
    default, tuned = (
        Built(compilation=each, model=tuned_model(each, site, finalist.plain))
        for each in (default_compilation, compilation)
    )
    return Finalist(
        site=site,
        default=default,
        base=default,
        tuned=tuned,
        results={key: replace(result, config=configs.get(key)) for key, result in finalist.results.items()},
        check=check_outputs(tuned.model, compilation.imported, site.target),
        plain=finalist.plain,
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


def _of_what_helps(
    finalist: Finalist, layers: Mapping[str, LayerTime], has_time: Callable[[], bool]
) -> tuple[Finalist, tuple[float, float, float]]:
    """Return the model with those kernels that make it faster, or the default one, and its `Finalist.timed`."""
    finalist = with_what_helps(finalist, layers, has_time)
    times = finalist.timed()
    if finalist.is_tuned and times[1] >= times[0]:
        finalist = finalist.with_default_kernels()
        times = finalist.timed()
    return finalist, times


def _has_untimed_kernels(finalist: Finalist, searched: Finalist) -> bool:
    """Return whether a task has neither its default config nor the one that `searched` has."""
    timed = [built.configs() for built in (searched.default, searched.tuned)]
    final = finalist.tuned.configs()
    return final.keys() != timed[1].keys() or any(
        config not in [configs.get(key) for configs in timed] for key, config in final.items()
    )


def _layer_times(finalist: Finalist, alternatives: Mapping[str, tuple[str, ...]]) -> dict[str, LayerTime]:
    default, tuned = ((built.compilation, built.model) for built in (finalist.default, finalist.tuned))
    with finalist.site.alone():
        return time_layers(default, tuned, alternatives)


def _timed_rows(
    finalist: Finalist, alternatives: Mapping[str, tuple[str, ...]], layers: Mapping[str, LayerTime]
) -> tuple[LayerRow, ...]:
    """Return a row for each task, with times in the two final models instead of those of the search.

    Candidates are timed far apart, between builds. Their times choose a config; a table of them would not add up.
    """
    rows = []
    for row in layer_rows(finalist.tuned.compilation, finalist.results, alternatives):
        if row.key in layers:
            is_default = row.key in finalist.results and finalist.results[row.key].is_default
            time = layers[row.key].of_default() if is_default else layers[row.key]
            row = replace(row, **dataclasses.asdict(time))
        rows.append(row)
    return tuple(rows)


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
