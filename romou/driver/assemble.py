"""The model put together with the configs that were chosen, checked against onnxruntime and timed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.base.space import Config
from romou.compiler.frontend.fp16 import first_output
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.work import flops_by_node
from romou.compiler.graph.origins import function_origins
from romou.compiler.operators.contraction.knobs import FP32
from romou.compiler.operators.recurrent import is_time_loop
from romou.compiler.scheduling.blocks import is_scheduled, is_view
from romou.devices.targets import Target
from romou.driver.fit import check_sizes, fitting
from romou.driver.graph import import_model, lower
from romou.driver.verify import check_outputs, check_stability, is_wrong, wrong_outputs
from romou.runtime.module import CompiledModel, HostRow, LayerRow, MovedRow, Summary, TunedModel, compile_model
from romou.tuner.search import TaskResult

if TYPE_CHECKING:
    import onnx

    from romou.compiler.task import TunableTask
    from romou.driver.graph import Graph
    from romou.driver.place import Place

logger = logging.getLogger("romou")

WHOLE_MODEL_REPEATS = 5


def assemble(
    graph: Graph,
    place: Place,
    results: Mapping[str, TaskResult],
    started: float,
    records: Path | None = None,
    max_memory: int | None = None,
    *,
    verify: bool = True,
) -> TunedModel:
    """Compile with the best configs, compare with the default schedules and with onnxruntime. max_memory, verify: see
    `tune`.

    Raises
    ------
    NumericError
        The outputs are wrong, and `verify` is asked for.
    """
    configs = {key: result.config for key, result in results.items()}
    plain = unmeasured(graph, place.named, rows=())
    # A task where no config worked is left to TVM in both.
    broken: dict[str, Config | None] = {key: None for key, config in configs.items() if config is None}
    default = model_of(graph, place, fitting(graph, broken, place.target, max_memory), plain)
    joined = graph.joined_where_faster(
        {key: result.best_ms / 1e3 for key, result in results.items() if result.best_ms is not None}
    )
    configs = dict(fitting(joined, configs, place.target, max_memory))
    is_tuned = joined is not graph or any(
        results[t.key].config is not None and not results[t.key].is_default for t in graph.tasks if t.key in results
    )
    tuned = model_of(joined, place, configs, plain) if is_tuned else default
    error, limit = check_outputs(tuned, graph.imported, place.target)
    if is_wrong(error, limit) and place.target.limits.has_fp16_arithmetic:
        # Each kernel's sums passed their check; all of them together need not.
        logger.warning(
            "with sums in fp16 the model's outputs differ from onnxruntime's by %.2e (relative L2), the limit is %.0e:"
            " sums are fp32",
            error,
            limit,
        )
        place = replace(place, target=place.target.with_options(half="storage"))
        configs = with_fp32_sums([*joined.tasks, *graph.tasks], configs, place.target)
        results = {key: replace(result, config=configs.get(key)) for key, result in results.items()}
        default, tuned = model_of(graph, place, broken, plain), model_of(joined, place, configs, plain)
        error, limit = check_outputs(tuned, graph.imported, place.target)
    default_ms, tuned_ms = _in_turns(default, tuned)
    has_defaults = all(
        result.default_ms is not None for result in results.values() if result.config is not None and result.trials
    )
    if tuned is not default and tuned_ms >= default_ms and has_defaults:
        # Kernels that are faster by themselves need not be so in the model: what did not help is put back.
        found = check_outputs(default, graph.imported, place.target)
        if not is_wrong(*found):
            (error, limit), tuned, joined, tuned_ms = found, default, graph, default_ms
            results = {
                task.key: _put_back(results[task.key], task.default_config(place.target))
                for task in graph.tasks
                if task.key in results
            }
    if is_wrong(error, limit):
        if verify:
            raise wrong_outputs(
                tuned,
                graph.imported,
                place.target,
                _compiler_of_parts(graph, place, configs, plain),
                (error, limit),
                _wrong_hint(records),
            )
        logger.warning(
            "the model's outputs differ from onnxruntime's by %.2e (relative L2); the limit is %.0e", error, limit
        )
    check_stability(tuned, graph.imported)
    summary = Summary(
        target=str(place.named),
        device=place.name,
        rows=layer_rows(joined, results, graph.alternatives),
        default_ms=default_ms,
        tuned_ms=tuned_ms,
        relative_l2_error=error,
        tolerance=limit,
        outcomes=_count_outcomes(results),
        seconds=time.monotonic() - started,
        launching=tuned.launching,
        records=None if records is None else str(records),
        **{**where_nodes_run(joined), "host": tuned.host_times()},
        precision=plain.precision,
        fp32_layers=plain.fp32_layers,
        memory=tuned.summary().memory,
        checked_on="" if error is None else place.name,
    )
    warn_of_host(summary)
    return tuned.with_summary(summary)


def _in_turns(default: TunedModel, tuned: TunedModel) -> tuple[float, float]:
    """Median times of two models in ms, measured in turns, so that a slow moment of the machine hits both; one that
    seems slower gets a second chance.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for repeats in (WHOLE_MODEL_REPEATS, 2 * WHOLE_MODEL_REPEATS):
        for _ in range(repeats):
            times[0].extend(default.times(repeat=1))
            times[1].extend(times[0][-1:] if tuned is default else tuned.times(repeat=1))
        if tuned is default or np.median(times[1]) < np.median(times[0]):
            break
    return float(np.median(times[0])), float(np.median(times[1]))


def _put_back(result: TaskResult, default: Config) -> TaskResult:
    return replace(result, config=result.config and default, best_ms=result.default_ms, is_default=True)


def with_fp32_sums(
    tasks: Iterable[TunableTask], configs: Mapping[str, Config | None], target: Target
) -> dict[str, Config | None]:
    """Return the configs with sums in fp32; one that is then none of its task's on `target` is left out, so the default
    is taken.
    """
    changed = {
        key: config.replace(accumulate=FP32) if config and "accumulate" in config else config
        for key, config in configs.items()
    }
    spaces = {task.key: task.space(target) for task in tasks}
    is_known = {
        key: config is None or (spaces[key].knows(config) and bool(spaces[key].is_valid(config)))
        for key, config in changed.items()
        if key in spaces
    }
    return {key: config for key, config in changed.items() if is_known.get(key, True)}


def _compiler_of_parts(
    graph: Graph, place: Place, configs: Mapping[str, Config | None], plain: Summary
) -> Callable[[onnx.ModelProto], TunedModel]:
    """Return a compiler of parts of a model, with the configs of the model's own kernels."""

    def compiled(part: onnx.ModelProto) -> TunedModel:
        lowered = lower(import_model(part, None, graph.imported.precision.of_parts()), place.target)
        return model_of(lowered, place, configs, plain)

    return compiled


def _wrong_hint(records: Path | None) -> str:
    kept = "" if records is None else f" Records are kept in {records}."
    return f"verify=False (--no-verify) returns the model with a warning.{kept}"


def model_of(graph: Graph, place: Place, configs: Mapping[str, Config | None], summary: Summary) -> TunedModel:
    def compiled(target: Target) -> CompiledModel:
        if graph.compiled is not None and target is graph.compiled_for and not configs:
            return graph.compiled
        return compile_model(graph.fused, graph.task_of, configs, target)

    made = compiled(place.target)
    check_sizes(made.memory, place.target)
    return TunedModel(
        made.executable,
        target=place.named,
        inputs=graph.imported.inputs,
        outputs=graph.imported.outputs,
        summary=replace(summary, memory=made.memory.use),
        device_index=place.index,
        remote=place.remote,
        settled=graph.imported.settled,
        rebuild=lambda host: compiled(Target(place.target, host=host)).executable,
    )


def unmeasured(graph: Graph, target: Target, *, rows: tuple[LayerRow, ...], seconds: float = 0.0) -> Summary:
    """Return the summary of a model that is compiled and not measured."""
    precision = graph.imported.precision
    made = Summary.unmeasured(target=str(target), rows=rows, seconds=seconds, **where_nodes_run(graph))
    return replace(made, precision=precision.kind, fp32_layers=tuple(sorted(precision.kept)))


def where_nodes_run(graph: Graph) -> dict[str, Any]:
    """Return the summary's fields on where nodes run: the host, other kernels than they should have, TVM's schedules,
    and the totals of the model.
    """
    folded = graph.imported.folded
    flops, names = flops_by_node(folded), {first_output(node): node_name(node) for node in folded.graph.node}
    by_name = {names[output]: count for output, count in flops.items()}

    def named(outputs: Collection[str]) -> tuple[str, ...]:
        return tuple(name for output, name in names.items() if output in outputs)

    by_tvm = {
        output
        for name, outputs in function_origins(graph.fused).items()
        if is_by_tvm(graph, name)
        for output in outputs
    }
    return {
        "host": tuple(
            HostRow(nodes=nodes, flops=sum(by_name.get(name, 0) for name in nodes))
            for nodes in graph.imported.host_groups
        ),
        "moved": tuple(
            MovedRow(nodes=named(one.nodes), to=one.rung.name.lower(), reason=one.reason) for one in graph.moved
        ),
        "nodes": len(folded.graph.node),
        "flops": sum(flops.values()),
        "by_tvm": named(by_tvm),
    }


def is_by_tvm(graph: Graph, function: str) -> bool:
    """Whether a function has a schedule of TVM's: it is no family's, no view, and came with none."""
    func = graph.fused[function]
    return function not in graph.task_of and not is_view(func) and not is_scheduled(func) and not is_time_loop(func)


def warn_of_host(summary: Summary) -> None:
    """Warn where much of a model is not on the device."""
    if summary.is_off_device:
        logger.warning(
            "%.0f%% of the model's operations run on the host: they are not compiled", 100 * summary.host_flop_share
        )


def layer_rows(
    graph: Graph, results: Mapping[str, TaskResult], alternatives: Mapping[str, tuple[str, str]] | None = None
) -> tuple[LayerRow, ...]:
    """One for each task of `graph`; before it was tuned, one that stands for two others took what they do."""

    def default_ms(key: str) -> float | None:
        found = [results[k].default_ms if k in results else None for k in (alternatives or {}).get(key, (key,))]
        return None if None in found else sum(found)  # type: ignore[arg-type]

    rows = []
    for task in graph.tasks:
        result = results.get(task.key)
        rows.append(
            LayerRow(
                name=task.name,
                calls=task.calls,
                trials=result.trials if result else 0,
                flops=task.flops,
                default_ms=default_ms(task.key),
                tuned_ms=result.best_ms if result else None,
                config=dict(result.config) if result and result.config else {},
                key=task.key,
            )
        )
    return tuple(rows)


def _count_outcomes(results: Mapping[str, TaskResult]) -> dict[str, int]:
    total: dict[str, int] = {}
    for result in results.values():
        for outcome, count in result.outcomes.items():
            total[outcome] = total.get(outcome, 0) + count
    return total
