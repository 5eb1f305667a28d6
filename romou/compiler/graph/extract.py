"""Find the distinct tunable kernels of a fused module."""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import relax, tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.task import TunableTask
from romou.compiler.tir.calls import called_function


def count_calls(mod: tvm.IRModule) -> dict[str, int]:
    """Return (name of a TIR function -> number of calls in `main`)."""
    calls: dict[str, int] = {}

    def visit(call: relax.Call) -> None:
        name = called_function(call)
        if name is not None:
            calls[name] = calls.get(name, 0) + 1

    structural_walk(mod["main"].body, (relax.Call, visit))
    return calls


def extract_tasks(mod: tvm.IRModule) -> tuple[list[TunableTask], dict[str, str]]:
    """Return tasks in the order of their first call, de-duplicated by structure, and (function name -> task key)."""
    tasks: dict[str, TunableTask] = {}
    key_of: dict[str, str] = {}
    for name, calls in count_calls(mod).items():
        func = mod[name]
        task = TunableTask.of(func, calls) if isinstance(func, tirx.PrimFunc) else None
        if task is None:
            continue
        key_of[name] = task.key
        task_before = tasks.get(task.key)
        tasks[task.key] = replace(task_before, calls=task_before.calls + calls) if task_before else task
    return list(tasks.values()), key_of
