"""Limits of memory: a budget for the whole model, and the largest buffer that the device allows.

Algorithms with workspaces or larger weights (Winograd) give way to direct ones until the model fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from romou.base.errors import ModelError
from romou.base.model_bytes import MemoryUse
from romou.base.space import Config
from romou.compiler.graph.memory.memory import MemoryPlan, PlannedTensor
from romou.devices.targets import Target

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask


def leaner_config(
    plan: MemoryPlan,
    task_of: Mapping[str, TunableTask],
    configs: Mapping[str, Config | None],
    target: Target,
    max_memory: int | None,
) -> tuple[str, Config, int] | None:
    """Return the task that has to change so that the model fits, its direct config, and its bytes.

    The bytes are the current size of its workspaces or weights. None if the model fits.

    plan: the model's memory with `configs` (task key -> config).
    task_of: function name -> task.
    max_memory: bytes of the whole model. None for no limit.

    Raises
    ------
    ModelError
        The model does not fit, and no task can change.
    """
    oversized = _oversized(plan, target)
    exceeds_budget = max_memory is not None and plan.use.total > max_memory
    if not oversized and not exceeds_budget:
        return None
    bytes_of: Counter[str] = Counter()
    direct_of: dict[str, Config] = {}
    for tensor in oversized or [tensor for tensor in plan.tensors if tensor.is_workspace]:
        task = task_of.get(tensor.function)
        if task is not None and configs.get(task.key) != task.direct_config(target):
            bytes_of[task.key] += tensor.bytes
            direct_of[task.key] = task.direct_config(target)
    if not bytes_of:
        if max_memory is not None and exceeds_budget:
            raise _over_budget(plan.use, max_memory)
        check_sizes(plan, target)
    ((key, size),) = bytes_of.most_common(1)
    return key, direct_of[key], size


def check_sizes(plan: MemoryPlan, target: Target) -> None:
    """Raise ModelError, with the largest tensor's name, if a tensor is larger than a buffer of the device may be."""
    for tensor in _oversized(plan, target)[:1]:
        what = "a weight" if tensor in plan.weights else "a workspace" if tensor.is_workspace else "a tensor"
        shape, limit = "x".join(map(str, tensor.shape)), target.limits.max_buffer_bytes
        raise ModelError(
            f"{what} of {tensor.function or 'the model'}, {shape} {tensor.dtype}, takes {tensor.bytes} bytes; the"
            f" device allows {limit} bytes a buffer",
            hint="precision='float16' halves it; a smaller batch or image takes less.",
            function=tensor.function,
            bytes=tensor.bytes,
            limit=limit,
        )


def _oversized(plan: MemoryPlan, target: Target) -> list[PlannedTensor]:
    """Return tensors and weights larger than the device's largest buffer, the largest first."""
    limit = target.limits.max_buffer_bytes
    if limit is None:
        return []
    tensors = [tensor for tensor in (*plan.tensors, *plan.weights) if tensor.bytes > limit]
    return sorted(tensors, key=lambda tensor: -tensor.bytes)


def _over_budget(use: MemoryUse, max_memory: int) -> ModelError:
    parts = f"{use.weights} bytes of weights, {use.inputs} of inputs, {use.tensors} of tensors between kernels"
    return ModelError(
        f"the model takes {use.total} bytes of the device's memory, max_memory allows {max_memory}: {parts}",
        hint=(
            "precision='float16' halves most of it; a smaller batch or image takes less; romou inspect --memory shows"
            " the largest tensors."
        ),
        **use.to_dict(),
    )
