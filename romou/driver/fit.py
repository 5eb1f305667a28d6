"""A model within a budget of memory, and its tensors within the device's largest buffer: where configs need more,
algorithms with workspaces give way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from romou.base.errors import ModelError
from romou.base.space import Config
from romou.compiler.operators.algorithms import DIRECT
from romou.devices.targets import Target
from romou.runtime.module import MemoryPlan, MemoryUse, PlannedTensor, plan_memory, schedule_model

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask
    from romou.driver.graph import Graph

logger = logging.getLogger("romou")


def fitting(
    graph: Graph, configs: Mapping[str, Config | None], target: Target, max_memory: int | None
) -> Mapping[str, Config | None]:
    """Return configs with which the model takes at most `max_memory` bytes, and no tensor or weight more than the
    device allows.

    Algorithms with workspaces and with larger weights give way to direct ones, the largest first.

    configs: task key -> config; a task that is not named has its default. max_memory: None is no limit.

    ModelError where the model takes more without any of them.
    """
    if max_memory is None and target.limits.max_buffer_bytes is None:
        return configs
    fitted = dict(configs)
    while True:
        plan = _plan(graph, fitted, target)
        large = _too_large(plan, target)
        is_too_much = max_memory is not None and plan.use.total > max_memory
        if not large and not is_too_much:
            return fitted
        takes: Counter[str] = Counter()
        lean: dict[str, Config] = {}
        for tensor in large or (tensor for tensor in plan.tensors if tensor.is_workspace):
            task = graph.task_of.get(tensor.function)
            if task is not None:
                direct = _direct(task, target)
                if fitted.get(task.key) != direct:
                    takes[task.key] += tensor.bytes
                    lean[task.key] = direct
        if not takes:
            if max_memory is not None and is_too_much:
                raise _too_much(plan.use, max_memory)
            check_sizes(plan, target)
        ((key, bytes_),) = takes.most_common(1)
        fitted[key] = lean[key]
        logger.info(
            "task %s gets a direct algorithm: the other one has workspaces or weights of %d bytes, which is too much"
            " memory",
            key,
            bytes_,
        )


def check_sizes(plan: MemoryPlan, target: Target) -> None:
    """ModelError where a tensor or a weight is larger than a buffer of the device may be; names it."""
    for tensor in _too_large(plan, target)[:1]:
        what = "a weight" if tensor in plan.weights else "a workspace" if tensor.is_workspace else "a tensor"
        shape, most = "x".join(map(str, tensor.shape)), target.limits.max_buffer_bytes
        raise ModelError(
            f"{what} of {tensor.function or 'the model'}, {shape} {tensor.dtype}, takes {tensor.bytes} bytes; the"
            f" device allows {most} bytes a buffer",
            hint="precision='float16' halves it; a smaller batch or image takes less.",
            function=tensor.function,
            bytes=tensor.bytes,
            limit=most,
        )


def _plan(graph: Graph, configs: Mapping[str, Config | None], target: Target) -> MemoryPlan:
    if not configs and graph.compiled is not None and graph.compiled_for is target:
        return graph.compiled.memory
    return plan_memory(schedule_model(graph.fused, graph.task_of, configs, target))


def _too_large(plan: MemoryPlan, target: Target) -> list[PlannedTensor]:
    most = target.limits.max_buffer_bytes
    return (
        []
        if most is None
        else sorted((one for one in (*plan.tensors, *plan.weights) if one.bytes > most), key=lambda one: -one.bytes)
    )


def _direct(task: TunableTask, target: Target) -> Config:
    config = task.default_config(target)
    return config.replace(algorithm=DIRECT) if "algorithm" in config else config


def _too_much(use: MemoryUse, max_memory: int) -> ModelError:
    parts = f"{use.weights} bytes of weights, {use.inputs} of inputs, {use.tensors} of tensors between kernels"
    hint = (
        "precision='float16' halves most of it; a smaller batch or image takes less; romou inspect --memory shows the"
        " largest tensors."
    )
    return ModelError(
        f"the model takes {use.total} bytes of the device's memory, max_memory allows {max_memory}: {parts}",
        hint=hint,
        **use.to_dict(),
    )
