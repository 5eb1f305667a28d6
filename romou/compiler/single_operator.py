"""Single operators as tasks, without a network around them. Tests tune them, and spaces are recorded for them."""

from __future__ import annotations

from typing import Any

from romou.compiler.operators.families import family_of
from romou.compiler.operators.workload import Conv2d, Workload
from romou.compiler.task import TunableTask


def conv(
    channels: int, size: tuple[int, int], outputs: int, kernel: tuple[int, int], dtype: str = "float32", **given: Any
) -> Conv2d:
    """Return a convolution. `given` sets other fields of `Conv2d`."""
    return Conv2d.of(channels, size, outputs, kernel, dtype=dtype, **given)


def task_of(work: Workload, *, has_epilogue: bool = True, is_weight_computed: bool = False) -> TunableTask:
    """Return the operator as a task, with or without a bias and a ReLU as epilogue.

    is_weight_computed: whether a convolution packs its weight in each call, as in training.
    """
    family = family_of(work)
    is_weight_computed = is_weight_computed and family.has_constant_weight
    task = TunableTask.of(family.function(work, has_epilogue=has_epilogue, is_weight_computed=is_weight_computed))
    assert task is not None, "every workload has a family"
    return task
