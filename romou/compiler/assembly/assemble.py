"""Put schedules back into the fused model and compile the whole."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax, s_tir, tirx

import romou.compiler.pipeline as pipeline
from romou.base.errors import as_build_error
from romou.base.rung import Rung
from romou.base.space import Config
from romou.compiler.assembly.build import Kept, build_executable
from romou.compiler.assembly.default_schedules import default_schedule, simplest_schedule
from romou.compiler.failures import Failures
from romou.compiler.memory.entries import mark_entries
from romou.compiler.memory.images import place_weights, store_weights
from romou.compiler.memory.memory import MemoryPlan, plan_memory
from romou.compiler.memory.storage import plan_storage
from romou.compiler.memory.workspaces import plan_workspaces
from romou.compiler.operators.families import RUNG
from romou.compiler.operators.recurrent import is_time_loop, schedule_time_loop
from romou.compiler.operators.winograd.convolution import StoredWeight
from romou.compiler.passes.fp16_storage import compute_in_single
from romou.compiler.scheduling.blocks import is_scheduled
from romou.compiler.task import TunableTask, key_of
from romou.compiler.tir.slices import slices_of, with_slices

if TYPE_CHECKING:
    from romou.devices.targets import Target


@dataclass(frozen=True, kw_only=True)
class CompiledModel:
    """A model that TVM's virtual machine runs, and what it takes of the device's memory."""

    executable: relax.VMExecutable
    memory: MemoryPlan


def compile_model(
    fused: tvm.IRModule,
    tasks: Mapping[str, TunableTask],
    configs: Mapping[str, Config | None],
    target: Target,
    kept: Kept | None = None,
) -> CompiledModel:
    """Compile a fused module; the parameters are those of `schedule_model`.

    Raises
    ------
    BrokenFunctionsError
        Some functions have no kernel.
    """
    kept = Kept() if kept is None else kept
    with as_build_error("the model"):
        scheduled = schedule_model(fused, tasks, configs, target, kept)
        with target.backend.keeping_programs():
            executable = build_executable(
                scheduled, target, pipeline.NAME if target.backend.has_kernels else "default", kept
            )
    return CompiledModel(executable=executable, memory=plan_memory(scheduled))


@dataclass(frozen=True, kw_only=True)
class ScheduledFunction:
    """A function as it is compiled.

    name: in the module.
    hint: in the fused graph.
    plain: unscheduled.
    task, config: None and empty where TVM's default schedule makes it.
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
    """The functions of `schedule_model`, each with what it was made from; the parameters are the same."""
    found = []
    for var, func in schedule_model(fused, tasks, configs, target).functions_items():
        if isinstance(func, tirx.PrimFunc):
            task = tasks.get(var.name_hint)
            config = (configs.get(task.key) or task.default_config(target)) if task is not None else {}
            name = str(func.attrs.get("global_symbol", var.name_hint))
            found.append(
                ScheduledFunction(
                    name=name, hint=var.name_hint, func=func, plain=fused[var.name_hint], task=task, config=config
                )
            )
    return found


def schedule_model(
    fused: tvm.IRModule,
    tasks: Mapping[str, TunableTask],
    configs: Mapping[str, Config | None],
    target: Target,
    kept: Kept | None = None,
) -> tvm.IRModule:
    """A fused module with all its kernels scheduled and its graph lowered to calls of them.

    fused: what `layout.fuse_operators` returned.
    tasks: name of a TIR function in `fused` -> its task; functions without a task get TVM's default GPU schedules.
    configs: TunableTask key
        ->  config. A task that is not named gets its default config; one whose config is None is left to TVM.
    kept: schedules that are there already, and those that are made now.

    Raises
    ------
    BrokenFunctionsError
        Some functions cannot be scheduled.
    """
    kept = Kept() if kept is None else kept
    scheduled = (
        _with_kernels(fused, tasks, configs, target, kept)
        if target.backend.has_kernels
        else _with_references(fused, tasks)
    )
    with_allocations = [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
    lowered = [
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    with target.tvm_target:
        # From here on a view of an input is one.
        marked = mark_entries(relax.transform.RewriteDataflowReshape()(scheduled))
        return tvm.transform.Sequential(lowered)(plan_storage(tvm.transform.Sequential(with_allocations)(marked)))


def _with_references(fused: tvm.IRModule, tasks: Mapping[str, TunableTask]) -> tvm.IRModule:
    """The module with the unscheduled functions that kernels are compared with, for a backend without kernels."""
    functions = {
        var: compute_in_single(func) if var.name_hint in tasks else func for var, func in fused.functions_items()
    }
    return tvm.IRModule(functions, global_infos=dict(fused.global_infos))


def _with_kernels(
    fused: tvm.IRModule,
    tasks: Mapping[str, TunableTask],
    configs: Mapping[str, Config | None],
    target: Target,
    kept: Kept,
) -> tvm.IRModule:
    """The module with scheduled functions, weights as they want them, and workspaces between kernels in the graph's
    memory plan.
    """
    scheduled = tvm.IRModule(dict(fused.functions_items()), global_infos=dict(fused.global_infos))
    scopes: dict[str, dict[int, str]] = {}
    stored: dict[str, tuple[int, StoredWeight]] = {}
    failures, used = Failures(), set[Hashable]()
    for var, func in fused.functions_items():
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func):
            continue
        task = tasks.get(var.name_hint)
        config = None if task is None else configs[task.key] if task.key in configs else task.default_config(target)
        if task is not None and config is None and task.template.images:
            config = task.default_config(target)  # TVM's schedules know no images
        if task is None or config is None:
            by_tvm = failures.attempt(
                str(var.name_hint), f"the kernel {var.name_hint}", partial(_by_tvm, func, target, kept, used)
            )
            scheduled[var] = func if by_tvm is None else by_tvm
            continue
        what = f"the kernel {var.name_hint} ({task.name})"
        body = failures.attempt(str(var.name_hint), what, partial(_by_family, task, config, target, kept, used))
        if body is None:
            continue
        images = {n: s for n, s in task.image_scopes(config, target).items() if n not in task.template.images}
        if images:
            scopes[var.name_hint] = {i: images[str(p.name)] for i, p in enumerate(body.params) if str(p.name) in images}
        weight = task.stored_weight(config)
        if weight is not None:
            stored[var.name_hint] = ([str(p.name) for p in body.params].index(weight.name), weight)
        name = func.attrs.get("global_symbol", None)
        body = with_slices(body, slices_of(func))
        body = body.with_attr("global_symbol", name) if name else body.without_attr("global_symbol")
        scheduled[var] = body.with_attr("tirx.is_scheduled", True)
    failures.check()
    return plan_workspaces(place_weights(store_weights(scheduled, stored), scopes, target))


def _by_family(task: TunableTask, config: Config, target: Target, kept: Kept, used: set[Hashable]) -> tirx.PrimFunc:
    """The kernel of a config."""
    key = (task.key, config, str(target))
    if key not in kept.scheduled:
        kept.scheduled[key] = task.schedule(config, target)["main"]
    return _of_its_own(kept.scheduled[key], key, used)


def _by_tvm(func: tirx.PrimFunc, target: Target, kept: Kept, used: set[Hashable]) -> tirx.PrimFunc:
    """A function by TVM's rules, or by its simplest one where it asks for that."""
    key = (key_of(func), str(target))
    if key not in kept.scheduled:
        is_plain = func.attrs is not None and func.attrs.get(RUNG, 0) >= Rung.PLAIN
        # A loop over time is no nest of loops that rules know: it has one schedule.
        is_loop = is_time_loop(func)
        kept.scheduled[key] = (
            schedule_time_loop(func, target.limits)
            if is_loop
            else (simplest_schedule if is_plain else default_schedule)(func, target)
        )
    return _of_its_own(kept.scheduled[key], key, used)


def _of_its_own(body: tirx.PrimFunc, key: Hashable, used: set[Hashable]) -> tirx.PrimFunc:
    """Functions of one module share no variables: one that has a kernel of this key already gets a copy. Those of one
    task differ in slices alone.
    """
    is_first = key not in used
    used.add(key)
    return body if is_first else s_tir.renew_defs(body)
