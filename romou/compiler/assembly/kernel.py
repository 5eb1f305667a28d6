"""Building of a task into a runtime module: the kernel of a config, or the reference that kernels are compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import tirx

import romou.compiler.pipeline as pipeline
from romou.base.errors import InvalidConfigError
from romou.base.space import Config
from romou.compiler.passes.flat_buffers import with_truncated_quotients
from romou.compiler.passes.fp16_storage import compute_in_single
from romou.compiler.scheduling.rewrites import as_module
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import is_image, replace_parameter, tensors_of

if TYPE_CHECKING:
    from romou.devices.targets import Target


def build_task(task: TunableTask, config: Config, target: Target) -> tvm.runtime.Module:
    """Build host code and device kernels of a task under `config`.

    The entry is `main`, with the arguments of `task.func`.

    A backend without kernels builds the reference, whatever the config is.

    Raises
    ------
    InvalidConfigError
        The config cannot be scheduled, or the task rejects its kernel (`TunableTask.check`).
    """
    if not target.backend.has_kernels:
        return build_reference(task, target)
    mod = task.schedule(config, target)
    checks = [lambda kernel: task.check(kernel, config, target)]
    # A new context does not inherit the passes that the caller's context disables, so they are passed on.
    context = tvm.transform.PassContext(
        instruments=[_Check(checks)], disabled_pass=list(tvm.transform.PassContext.current().disabled_pass)
    )
    try:
        with context:
            built = tvm.tirx.build(mod, target=target.tvm_target, pipeline=pipeline.NAME)
    finally:
        checks.clear()  # TVM never frees an instrument
    pipeline.dump_source("main", lambda: str(built.imports[0].inspect_source()))
    return built


@tvm.instrument.pass_instrument
class _Check:
    """An instrument that passes final device functions to `checks`."""

    def __init__(self, checks: Sequence[Callable[[tirx.PrimFunc], None]]) -> None:
        self.checks = checks

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        if info.name == pipeline.LAST_OF_DEVICE:
            for check, (_, func) in itertools.product(self.checks, mod.functions_items()):
                check(func)


# TVM calls the instrument that raises it. Without this, TVM would turn the error into a RuntimeError.
tvm_ffi.register_error("InvalidConfigError", InvalidConfigError)


def build_reference(task: TunableTask, target: Target | None = None) -> tvm.runtime.Module:
    """Build a task's unscheduled function for a CPU, with the same arguments. Every candidate is compared with it."""
    return build_unscheduled(task.func, target)


def build_unscheduled(func: tirx.PrimFunc, target: Target | None = None) -> tvm.runtime.Module:
    """Build an unscheduled function for a CPU, with buffers for its images. The entry is `main`."""
    for tensor in [tensor for tensor in tensors_of(func) if is_image(tensor)]:
        func = replace_parameter(func, str(tensor.name), scope="global")
    return tvm.tirx.build(
        as_module(with_truncated_quotients(compute_in_single(func))),
        target=tvm.target.Target("llvm") if target is None else target.tvm_target,
    )
