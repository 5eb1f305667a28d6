"""The summary of a model: the number of its nodes on the device and on the host, and a row for each task."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from romou.compiler.compilation import Compilation
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.onnx_graph import first_output
from romou.compiler.graph.memory.memory import MemoryPlan
from romou.compiler.graph.origins import function_origins
from romou.compiler.operators.costs.estimate import can_estimate
from romou.compiler.operators.kernels.recurrent import is_time_loop
from romou.compiler.scheduling.blocks import is_scheduled, is_view
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.origin import bindings_of, origins_of
from romou.devices.targets import Target
from romou.driver.site import TimingSite
from romou.runtime.module import CallRow, HostRow, LayerRow, MovedRow, Summary
from romou.runtime.module.profile import named_calls
from romou.runtime.module.summary import stand_in_text
from romou.tuner.search import TaskResult
from tvm_patches.host_nodes import FUNCTION as HOST_NODES

logger = logging.getLogger("romou")


def unmeasured(compilation: Compilation, target: Target) -> Summary:
    """Return the summary of a model that is compiled and not measured."""
    precision, rows = compilation.imported.precision, layer_rows(compilation, {})
    summary = Summary.unmeasured(target=str(target), rows=rows, seconds=0.0, **where_nodes_run(compilation))
    return replace(summary, precision=precision.kind, fp32_layers=tuple(sorted(precision.kept)))


def where_nodes_run(compilation: Compilation) -> dict[str, Any]:
    """Return the summary's fields on nodes, and the totals of the model.

    The nodes are on the host, with other kernels than planned, with TVM's schedules, or have floats in place of a
    quantized weight.
    """
    folded = compilation.imported.folded
    flops = compilation.imported.flops
    name_of = {first_output(node): node_name(node) for node in folded.graph.node}
    flops_of = {name_of[output]: count for output, count in flops.items()}

    def names(outputs: Collection[str]) -> tuple[str, ...]:
        return tuple(name for output, name in name_of.items() if output in outputs)

    origins = function_origins(compilation.functions.fused)
    main = compilation.functions.fused["main"]
    origin_of = origins_of(main)
    calls = [
        CallRow(
            function=function,
            layer=compilation.task_of[function].name if function in compilation.task_of else "",
            nodes=tuple(sorted(names(origin_of[binding.var]), key=lambda name: -flops_of.get(name, 0))),
        )
        for binding in bindings_of(main)
        if (function := called_function(binding.value)) is not None
    ]
    by_tvm = {output for name, outputs in origins.items() if is_by_tvm(compilation, name) for output in outputs}
    return {
        "host": tuple(
            HostRow(nodes=nodes, flops=sum(flops_of.get(name, 0) for name in nodes))
            for nodes in compilation.imported.host_groups
        ),
        "moved": tuple(
            MovedRow(nodes=names(move.nodes), to=move.rung.name.lower(), reason=move.reason)
            for move in compilation.fallbacks.current_moves
        ),
        "floats": compilation.imported.float_weights,
        "narrowed": compilation.imported.narrowed,
        "nodes": len(folded.graph.node),
        "flops": sum(flops.values()),
        "by_tvm": names(by_tvm),
        "calls": tuple(calls),
    }


def is_by_tvm(compilation: Compilation, function: str) -> bool:
    """Return whether a function has one of TVM's schedules.

    No family covers such a function, it is no view, and it came without a schedule.
    """
    func = compilation.functions.fused[function]
    has_family = function in compilation.task_of
    return not has_family and not is_view(func) and not is_scheduled(func) and not is_time_loop(func)


def warn_of_host(summary: Summary) -> None:
    """Log a warning if much of a model is not on the device."""
    if summary.is_off_device:
        logger.warning(
            "%.0f%% of the model's operations run on the host: they are not compiled", 100 * summary.host_flop_share
        )


def warn_of_stand_in(site: TimingSite) -> None:
    """Log a warning if candidates are timed on another device than the target's."""
    is_by_estimate = can_estimate(site.target.spec)
    text = stand_in_text(site.name, site.stands_in_for, is_by_estimate=is_by_estimate)
    if text:
        logger.warning("%s", text)


def nodes_of_functions(compilation: Compilation) -> dict[str, tuple[str, ...]]:
    """Return the names of the ONNX nodes of each function of the fused graph, of all its calls together."""
    nodes: dict[str, dict[str, None]] = {}
    for call in where_nodes_run(compilation)["calls"]:
        nodes.setdefault(call.function, {}).update(dict.fromkeys(call.nodes))
    return {function: tuple(names) for function, names in nodes.items()}


def nodes_of_tasks(compilation: Compilation) -> dict[str, tuple[str, ...]]:
    """Return key of a task -> names of the ONNX nodes of all its functions."""
    nodes: dict[str, dict[str, None]] = {}
    for function, names in nodes_of_functions(compilation).items():
        if function in compilation.task_of:
            nodes.setdefault(compilation.task_of[function].key, {}).update(dict.fromkeys(names))
    return {key: tuple(names) for key, names in nodes.items()}


def planned_memory(compilation: Compilation) -> MemoryPlan:
    """Return the memory plan of a model, with the ONNX nodes of each call."""
    plan, rows = compilation.memory_plan(), where_nodes_run(compilation)
    calls = [("" if function == HOST_NODES else function, ()) for function in plan.calls]
    named = named_calls(calls, rows["calls"], [row.nodes for row in rows["host"]])
    return replace(plan, nodes=tuple(call.nodes for call in named))


def layer_rows(compilation: Compilation, results: Mapping[str, TaskResult]) -> tuple[LayerRow, ...]:
    """Return a row for each task. The default time of a task that replaces others is the sum of their times."""

    def default_ms(key: str) -> float | None:
        times = [results[k].default_ms if k in results else None for k in compilation.alternatives.get(key, (key,))]
        return None if None in times else sum(times)  # type: ignore[arg-type]

    nodes_of = nodes_of_tasks(compilation)
    rows = []
    for task in compilation.tasks:
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
                nodes=nodes_of.get(task.key, ()),
            )
        )
    return tuple(rows)
