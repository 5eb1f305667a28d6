"""The end of a tuning run: the model with the best configs, checked, timed against default kernels, and summarized."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.devices.targets import Target
from romou.driver.layer_times import LayerTime, noise_of, time_layers
from romou.driver.model import tuned_model
from romou.driver.site import TimingSite
from romou.driver.summary import layer_rows, unmeasured, warn_of_host, where_nodes_run
from romou.driver.verify import OutputCheck, check_outputs, check_stability, wrong_outputs
from romou.runtime.module import LayerRow, Summary, TunedModel
from romou.tuner.search import TaskResult

if TYPE_CHECKING:
    import onnx

    from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

WHOLE_MODEL_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class _Finalist:
    """The tuned model and the default one, which it has to beat.

    compilation: the tuned model with its configs.
    default: the same object as `tuned` if no task has another config.
    results: task key -> result, with the configs that the tuned model has.
    """

    site: TimingSite
    default_compilation: Compilation
    compilation: Compilation
    default: TunedModel
    tuned: TunedModel
    results: Mapping[str, TaskResult]
    check: OutputCheck

    @property
    def is_tuned(self) -> bool:
        """True if a kernel is not the default one."""
        return self.tuned is not self.default

    def changed(self) -> set[str]:
        """Return the keys of the tasks that the default model has with another config, or not at all."""
        before = {task.key for task in self.default_compilation.tasks}
        results = {task.key: self.results.get(task.key) for task in self.compilation.tasks}
        return {
            key
            for key, result in results.items()
            if key not in before or (result is not None and result.config is not None and not result.is_default)
        }


def finish(
    compilation: Compilation,
    site: TimingSite,
    results: Mapping[str, TaskResult],
    *,
    started: float,
    records: Path | None = None,
    max_memory: int | None = None,
    verify: bool = True,
) -> TunedModel:
    """Assemble the model with the best configs, compare it with onnxruntime and with the default kernels.

    results: task key -> result of the search.
    started: the summary counts seconds from this `time.monotonic()`.
    max_memory, verify: see `tune`.

    Raises
    ------
    NumericError
        The outputs are wrong, and `verify` is True.
    """
    plain = unmeasured(compilation, site.named, rows=())
    finalist = _assembled(compilation, site, results, max_memory, plain)
    if finalist.check.is_wrong and site.target.limits.has_fp16_arithmetic:
        finalist = _with_fp32_sums(finalist, plain)
    is_by_estimate = any(result.estimated_ms is not None for result in results.values())
    searched, layers = finalist.compilation, _layer_times(finalist, compilation.alternatives)
    # A stand-in's times say nothing of the target's device.
    if finalist.is_tuned and not is_by_estimate and _has_default_times(finalist.results):
        finalist, (default_ms, tuned_ms, noise) = _of_what_helps(finalist, layers, plain)
    else:
        default_ms, tuned_ms, noise = _timed_alternately(finalist)
    if [task.key for task in finalist.compilation.tasks] != [task.key for task in searched.tasks]:
        layers = _layer_times(finalist, compilation.alternatives)
    if finalist.check.is_wrong:
        _report_wrong_outputs(finalist, records, verify=verify, plain=plain)
    with site.alone():
        check_stability(finalist.tuned, compilation.imported)
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
        launching=finalist.tuned.launching,
        records=None if records is None else str(records),
        **{**where_nodes_run(finalist.compilation), "host": finalist.tuned.host_times()},
        precision=plain.precision,
        fp32_layers=plain.fp32_layers,
        memory=finalist.tuned.summary().memory,
        checked_on="" if finalist.check.error is None else finalist.site.name,
        stands_in_for=finalist.site.stands_in_for,
        is_by_estimate=is_by_estimate,
    )
    warn_of_host(summary)
    return finalist.tuned.with_summary(summary)


def _assembled(
    compilation: Compilation,
    site: TimingSite,
    results: Mapping[str, TaskResult],
    max_memory: int | None,
    plain: Summary,
) -> _Finalist:
    configs = {key: result.config for key, result in results.items()}
    # Both models leave a task without a working config to TVM's schedules.
    broken: dict[str, Config | None] = {key: None for key, config in configs.items() if config is None}
    joined_keys = {task.key for task in compilation.tasks}
    # A joined kernel without a working config is the separate kernels again.
    working = compilation.joined_where(lambda key: key in joined_keys and key not in broken)
    default_compilation = working.with_configs(broken).within(max_memory)
    default = tuned_model(default_compilation, site, plain)
    best_ms = {key: result.estimated_ms or result.best_ms for key, result in results.items()}
    best_s = {key: time_ms / 1e3 for key, time_ms in best_ms.items() if time_ms is not None}
    joined = compilation.joined_where_faster(best_s)
    tuned_compilation = joined.with_configs(configs).within(max_memory)
    tuned_results = [results[task.key] for task in compilation.tasks if task.key in results]
    has_other_configs = any(result.config is not None and not result.is_default for result in tuned_results)
    is_tuned = joined is not compilation or has_other_configs
    tuned = tuned_model(tuned_compilation, site, plain) if is_tuned else default
    return _Finalist(
        site=site,
        default_compilation=default_compilation,
        compilation=tuned_compilation,
        default=default,
        tuned=tuned,
        results=results,
        check=check_outputs(tuned, compilation.imported, site.target),
    )


def _with_fp32_sums(finalist: _Finalist, plain: Summary) -> _Finalist:
    """Return both models with sums in fp32. Each kernel passed its check with fp16 sums, but the model did not."""
    logger.warning(
        "with sums in fp16 the model's outputs differ from onnxruntime's by %.2e (relative L2), the limit is %.0e:"
        " sums are fp32",
        finalist.check.error,
        finalist.check.limit,
    )
    site = replace(finalist.site, target=finalist.site.target.with_options(half="storage"))
    default_compilation = finalist.default_compilation.for_target(site.target)
    tasks = [*finalist.compilation.tasks, *default_compilation.tasks]
    configs = with_fp32_sums(tasks, finalist.compilation.configs, site.target)
    compilation = finalist.compilation.for_target(site.target).with_configs(configs)
    tuned = tuned_model(compilation, site, plain)
    return _Finalist(
        site=site,
        default_compilation=default_compilation,
        compilation=compilation,
        default=tuned_model(default_compilation, site, plain),
        tuned=tuned,
        results={key: replace(result, config=configs.get(key)) for key, result in finalist.results.items()},
        check=check_outputs(tuned, compilation.imported, site.target),
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


def _of_what_helps(
    finalist: _Finalist, layers: Mapping[str, LayerTime], plain: Summary
) -> tuple[_Finalist, tuple[float, float, float]]:
    """Return the model with those configs that make it faster, and times as `_timed_alternately` gives them.

    Kernels may be faster than the defaults in isolation, but slower in the model. Then it gets half of them, those that
    save the most, and if that does not help either, none.

    layers: task key -> times of the default and of the tuned kernel beside each other. These decide against a config
        that only seemed faster during the search.
    """
    changed, common = finalist.changed(), {task.key for task in finalist.default_compilation.tasks}
    slower = {key for key in changed & common & layers.keys() if not layers[key].is_faster}
    calls = {task.key: task.calls for task in finalist.compilation.tasks}

    def saved_ms(key: str) -> float:
        return calls[key] * (layers[key].default_ms - layers[key].tuned_ms) if key in layers else 0.0

    helpful = sorted((changed & common) - slower, key=lambda key: (-saved_ms(key), key))
    least = set(helpful[(len(helpful) + 1) // 2 :])
    for put_back in (slower, *filter(None, (least, changed))):
        if put_back:
            finalist = _with_default_kernels(finalist, put_back, plain)
        times = _timed_alternately(finalist)
        if not finalist.is_tuned or times[1] < times[0]:
            break
    return finalist, times


def _with_default_kernels(finalist: _Finalist, keys: Collection[str], plain: Summary) -> _Finalist:
    """Return the finalist with the default kernels of some tasks, if its outputs are right then.

    If no other task has a config of its own, the tuned model is the default one, with its joined kernels.
    """
    before, target = finalist.default_compilation, finalist.site.target
    if finalist.changed() <= set(keys):
        compilation, tuned = before, finalist.default
    else:
        configs = {key: config for key, config in finalist.compilation.configs.items() if key not in keys}
        configs |= {key: config for key, config in before.configs.items() if key in keys}
        compilation = finalist.compilation.with_configs(configs)
        tuned = tuned_model(compilation, finalist.site, plain)
    check = check_outputs(tuned, compilation.imported, target)
    if check.is_wrong:
        return finalist
    default_of = {
        task.key: before.configs.get(task.key) or task.default_config(target)
        for task in before.tasks
        if task.key in keys and task.key in finalist.results
    }
    put_back = {
        key: replace(result, config=result.config and default_of[key], best_ms=result.default_ms, is_default=True)
        for key, result in finalist.results.items()
        if key in default_of
    }
    return replace(
        finalist, compilation=compilation, tuned=tuned, check=check, results={**finalist.results, **put_back}
    )


def _layer_times(finalist: _Finalist, alternatives: Mapping[str, tuple[str, ...]]) -> dict[str, LayerTime]:
    default = (finalist.default_compilation, finalist.default)
    with finalist.site.alone():
        return time_layers(default, (finalist.compilation, finalist.tuned), alternatives)


def _timed_rows(
    finalist: _Finalist, alternatives: Mapping[str, tuple[str, ...]], layers: Mapping[str, LayerTime]
) -> tuple[LayerRow, ...]:
    """Return a row for each task, with times in the two final models instead of those of the search.

    Candidates are timed far apart, between builds. Their times choose a config; a table of them would not add up.
    """
    rows = []
    for row in layer_rows(finalist.compilation, finalist.results, alternatives):
        if row.key in layers:
            is_default = row.key in finalist.results and finalist.results[row.key].is_default
            time = layers[row.key].of_default() if is_default else layers[row.key]
            row = replace(row, **dataclasses.asdict(time))
        rows.append(row)
    return tuple(rows)


def _timed_alternately(finalist: _Finalist) -> tuple[float, float, float]:
    """Return the median times of the default and the tuned model in ms, and their noise (`noise_of`).

    They are timed alternately, so drift hits both. A tuned model that seems slower is timed longer.
    """
    default, tuned = finalist.default, finalist.tuned
    times: tuple[list[float], list[float]] = ([], [])
    with finalist.site.alone():
        for repeats in (WHOLE_MODEL_REPEATS, 2 * WHOLE_MODEL_REPEATS):
            for _ in range(repeats):
                times[0].extend(default.times(repeat=1))
                times[1].extend(times[0][-1:] if tuned is default else tuned.times(repeat=1))
            if tuned is default or np.median(times[1]) < np.median(times[0]):
                break
    return float(np.median(times[0])), float(np.median(times[1])), max(map(noise_of, times))


def _has_default_times(results: Mapping[str, TaskResult]) -> bool:
    """Return whether the default config of every tuned task was timed."""
    tuned = [result for result in results.values() if result.config is not None and result.trials]
    return all(result.default_ms is not None for result in tuned)


def _report_wrong_outputs(finalist: _Finalist, records: Path | None, *, verify: bool, plain: Summary) -> None:
    """Raise NumericError with the first wrong operator, or only log a warning if `verify` is False."""
    compilation, check = finalist.compilation, finalist.check

    def compile_part(part: onnx.ModelProto) -> TunedModel:
        imported = import_model(part, None, compilation.imported.precision.of_parts())
        lowered = Compilation.of(imported, finalist.site.target).with_default_kernels()
        return tuned_model(lowered.with_configs(compilation.configs), finalist.site, plain)

    if verify:
        kept = "" if records is None else f" Records are kept in {records}."
        way_out = f"verify=False (--no-verify) returns the model with a warning.{kept}"
        raise wrong_outputs(
            finalist.tuned, compilation.imported, finalist.site.target, compile_part, check, way_out=way_out
        )
    text = "the model's outputs differ from onnxruntime's by %.2e (relative L2); the limit is %.0e"
    logger.warning(text, check.error, check.limit)


def _count_outcomes(results: Mapping[str, TaskResult]) -> dict[str, int]:
    total: dict[str, int] = {}
    for result in results.values():
        for outcome, count in result.outcomes.items():
            total[outcome] = total.get(outcome, 0) + count
    return total
