"""Find the kernels that are worth tuning in a fused module, once each."""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import relax, tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.task import TunableTask
from romou.compiler.tir.calls import called_function


def count_calls(mod: tvm.IRModule) -> dict[str, int]:
    """Name of a TIR function -> how often `main` calls it."""
    calls: dict[str, int] = {}

    def visit(call: relax.Call) -> None:
        name = called_function(call)
        if name is not None:
            calls[name] = calls.get(name, 0) + 1

    structural_walk(mod["main"].body, (relax.Call, visit))
    return calls


def extract_tasks(mod: tvm.IRModule) -> tuple[list[TunableTask], dict[str, str]]:
    """Tasks in the order of their first call, de-duplicated by structure, and (function name -> task key)."""
    tasks: dict[str, TunableTask] = {}
    key_of: dict[str, str] = {}
    for name, calls in count_calls(mod).items():
        func = mod[name]
        task = TunableTask.of(func, calls) if isinstance(func, tirx.PrimFunc) else None
        if task is None:
            continue
        key_of[name] = task.key
        known = tasks.get(task.key)
        tasks[task.key] = replace(known, calls=known.calls + calls) if known else task
    return list(tasks.values()), key_of
