"""From a task and a config to a runtime module, and the reference that it is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm

import romou.passes.pipeline as pipeline
from romou.primitives import set_image
from romou.schedules.splice import as_module
from romou.space import Config
from romou.task import Task

if TYPE_CHECKING:
    from romou.target import Target


def build_task(task: Task, config: Config, target: Target) -> tvm.runtime.Module:
    """Host code and device kernels of a task under `config`; the entry is `main`, its arguments are those of `task.func`.

    Raises
    ------
    InvalidConfigError
        If the config cannot be scheduled.
    """
    return tvm.tirx.build(task.schedule(config, target), target=target.tvm_target, pipeline=pipeline.NAME)


def build_reference(task: Task) -> tvm.runtime.Module:
    """The unscheduled function for this machine's CPU, the same signature: every candidate is compared with it."""
    func = task.func
    for name in task.template.images:
        func = set_image(func, name, "global")
    return tvm.tirx.build(as_module(func), target=tvm.target.Target("llvm"))
