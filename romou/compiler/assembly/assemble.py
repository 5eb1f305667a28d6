"""Assembly of a fused model: its kernels are scheduled, and everything is compiled into one program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

import romou.compiler.pipeline as pipeline
from romou.base.errors import as_build_error
from romou.base.space import Config
from romou.compiler.assembly.build import Kept, build_executable
from romou.compiler.assembly.kernels import ModelKernels
from romou.compiler.graph.memory.memory import MemoryPlan, plan_memory
from romou.compiler.stages import Context
from romou.compiler.task import TunableTask

if TYPE_CHECKING:
    from romou.devices.targets import Target


@dataclass(frozen=True, kw_only=True)
class CompiledModel:
    """A program of TVM's virtual machine, its memory plan, and what it was built from.

    host: its host functions before code generation.
    fused: its fused functions.
    scheduled: the module that `schedule_model` returned.
    kept: the cache with its lowered functions.
    config_of: function name -> config. Functions without a task are missing.
    joined: which chains of the model share a kernel, by position.
    """

    executable: relax.VMExecutable
    host: tvm.IRModule
    memory: MemoryPlan
    target: Target
    fused: tvm.IRModule
    scheduled: tvm.IRModule
    kept: Kept
    config_of: Mapping[str, Config | None]
    joined: tuple[int, ...] = ()


def compile_model(
    fused: tvm.IRModule,
    tasks: Mapping[str, TunableTask],
    configs: Mapping[str, Config | None],
    target: Target,
    kept: Kept | None = None,
) -> CompiledModel:
    """Compile a fused module, with the parameters of `schedule_model`.

    Raises
    ------
    BrokenFunctionsError
        Some functions have no kernel.
    """
    kept = Kept() if kept is None else kept
    with as_build_error("the model"):
        scheduled = schedule_model(fused, tasks, configs, target, kept)
        with target.backend.keeping_programs():
            executable, host = build_executable([(scheduled, target)], kept)
    return CompiledModel(
        executable=executable,
        host=host,
        memory=plan_memory(scheduled),
        target=target,
        fused=fused,
        scheduled=scheduled,
        kept=kept,
        config_of={
            name: configs[task.key] if task.key in configs else task.default_config(target)
            for name, task in tasks.items()
        },
    )


@dataclass(frozen=True, kw_only=True)
class ScheduledFunction:
    """A scheduled function.

    name: in the module.
    hint: in the fused graph.
    plain: the unscheduled function. A copy into or out of an image has only `func`.
    task, config: None and empty if the schedule is TVM's.
    """

    name: str
    hint: str
    func: tirx.PrimFunc
    plain: tirx.PrimFunc
    task: TunableTask | None
    config: Mapping[str, int | str | bool]


def scheduled_functions(
    fused: tvm.IRModule, tasks: Mapping[str, TunableTask], configs: Mapping[str, Config | None], target: Target
) -> list[ScheduledFunction]:
    """Return the functions of `schedule_model`, each with its task and config. The parameters are the same."""
    functions = []
    # Copies into images are no functions of the graph.
    plain = {var.name_hint: func for var, func in fused.functions_items()}
    for var, func in schedule_model(fused, tasks, configs, target).functions_items():
        if isinstance(func, tirx.PrimFunc):
            task = tasks.get(var.name_hint)
            config = (configs.get(task.key) or task.default_config(target)) if task is not None else {}
            name = str(func.attrs.get("global_symbol", var.name_hint))
            functions.append(
                ScheduledFunction(
                    name=name,
                    hint=var.name_hint,
                    func=func,
                    plain=plain.get(var.name_hint, func),
                    task=task,
                    config=config,
                )
            )
    return functions


def schedule_model(
    fused: tvm.IRModule,
    tasks: Mapping[str, TunableTask],
    configs: Mapping[str, Config | None],
    target: Target,
    kept: Kept | None = None,
) -> tvm.IRModule:
    """Return a fused module with all its kernels scheduled and its graph lowered to calls of them.

    fused: the functions of a lowered model.
    tasks: function name -> task. Functions without a task get TVM's default GPU schedules.
    configs: task key -> config. Other tasks get their default config, and None leaves a task to TVM.
    kept: cached schedules. New ones are added.

    Raises
    ------
    BrokenFunctionsError
        Some functions cannot be scheduled.
    """
    kernels = ModelKernels(tasks=tasks, configs=configs, target=target, kept=Kept() if kept is None else kept)
    return pipeline.run(pipeline.MODULE, fused, Context(target=target, kernels=kernels))
