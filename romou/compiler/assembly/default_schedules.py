"""Schedules for functions without an operator family: TVM's rules for GPUs in turn, then a plain schedule.

If a rule raises, or the device cannot run its kernels, the next rule is tried.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import dlight
from tvm.tirx.build import split_host_device_mods
from tvm_ffi.structural import structural_map

import romou.compiler.pipeline as pipeline
from romou.compiler.dumps import without_dumps
from romou.compiler.scheduling.blocks import nests_of
from romou.compiler.scheduling.rewrites import as_module, with_root, without_single_terms
from romou.compiler.scheduling.statements import bound, guarded, unravel
from romou.compiler.tir.expressions import bytes_of, count_of, extents_of
from romou.compiler.tir.guarded_loads import guarded_loads
from romou.compiler.tir.traversal import has_var, nodes_in, sequence_of, substitute
from romou.devices.backends.launch import launch_size, thread_extents

if TYPE_CHECKING:
    from romou.devices.targets import Target

logger = logging.getLogger("romou")

RULES = (
    dlight.gpu.Matmul(),
    dlight.gpu.GEMV(),
    dlight.gpu.Reduction(),
    dlight.gpu.GeneralReduction(),
    dlight.gpu.Fallback(),
)


def default_schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Schedule a function by the first rule with kernels that fit, or by the plain schedule."""
    simple = without_single_terms(func)
    for rule in RULES:
        scheduled = _by_rule(rule, simple, target)
        if scheduled is not None:
            return scheduled.with_attr("tirx.is_scheduled", True)
    return simplest_schedule(func, target)


def simplest_schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Schedule a function by the plain schedule."""
    return plain_schedule(without_single_terms(func), target).with_attr("tirx.is_scheduled", True)


def _by_rule(rule: dlight.ScheduleRule, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Schedule a function by one of TVM's rules. None if the rule raises or the device cannot run its kernels."""
    tvm_target = target.anonymous_tvm_target
    try:
        with tvm_target:
            # A copy: TVM's scheduler may change a function in place.
            schedule = rule.apply(copy.deepcopy(func), tvm_target, False)
        scheduled = None if schedule is None else schedule.mod["main"]
        scheduled = None if scheduled is None else _within_bounds(func, scheduled)
        return scheduled if scheduled is not None and _fits(scheduled, target) else None
    except Exception as error:  # rules raise whatever their schedule primitives and assertions do
        name = func.attrs.get("global_symbol", "a function") if func.attrs else "a function"
        logger.debug("TVM's rule %s does not take %s: %s", type(rule).__name__, name, error)
        return None


def _within_bounds(func: tirx.PrimFunc, scheduled: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the schedule with reads inside of tensors only.

    TVM's rules for products copy an operand into local memory, and leave the condition of padding where the copy is
    used. The copy reads outside of the tensor then: the results are right, and the process ends with a segmentation
    fault if no memory of its own lies there. Drop this when `Schedule.reindex` copies conditions.

    copy[i] = x[i - 1]; ... if_then_else(i < 1, 0, copy[i])  ->  copy[i] = if_then_else(0 <= i - 1 < n, x[i - 1], 0)
    """
    before, after = (_unguarded_loads(each) for each in (func, scheduled))
    names = {name for name in after if after[name] > before[name]}

    def load(access: TensorLoad) -> tirx.Expr:
        if str(access.source.name) not in names:
            return access
        sides = zip(access.indices, access.source.shape, strict=True)
        inside = tirx.all(*(side for index, extent in sides for side in (index >= 0, index < extent)))
        return tirx.if_then_else(inside, access, tirx.const(0, access.ty))

    return scheduled.with_body(structural_map(scheduled.body, (TensorLoad, load))) if names else scheduled


def _unguarded_loads(func: tirx.PrimFunc) -> Counter[str]:
    """Return the number of loads without a condition of each parameter, by its name."""
    names = {str(param.name) for param in func.params}
    loads = (str(load.access.source.name) for load in guarded_loads(func.body) if not load.conditions)
    return Counter(name for name in loads if name in names)


def _fits(func: tirx.PrimFunc, target: Target) -> bool:
    """Return whether the kernels can be lowered, and fit the device's work groups and local memory."""
    limits = target.limits
    for kernel in device_functions(func, target):
        local = sum(
            bytes_of(alloc.buffer.shape, str(alloc.buffer.dtype))
            for alloc in nodes_in(kernel.body, tirx.AllocBuffer)
            if _is_shared(alloc.buffer)
        )
        if launch_size(thread_extents(kernel))[1] > limits.max_work_group_size or local > limits.local_memory_bytes:
            return False
    return True


def device_functions(func: tirx.PrimFunc, target: Target) -> list[tirx.PrimFunc]:
    """Return the lowered device functions of a scheduled function, in order."""
    bound = tirx.transform.BindTarget(target.tvm_target)(as_module(func))
    with without_dumps():
        _, devices = split_host_device_mods(pipeline.run(pipeline.KERNEL, bound))
    return [kernel for mod in devices.values() for _, kernel in mod.functions_items()]


def _is_shared(buffer: tirx.Buffer) -> bool:
    return str(buffer.scope()).startswith("shared")


def plain_schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Make a kernel of each block, with a work-item for each element. Reductions are serial, and nothing is inlined.

    for i, j: for k: c[i, j] += a[i, k] * b[k, j]
        ->  for group, thread in parallel: for k: c[at // 5, at % 5] += a[at // 5, k] * b[k, at % 5]

    Extents may be expressions of the function's parameters.
    """
    size = min(int(target.limits.max_work_group_size), 256)
    nests = [_in_parallel(nest, size) for nest in nests_of(func)]
    return with_root(func, sequence_of(nests), func.body.block.alloc_buffers)


def _in_parallel(nest: tirx.Stmt, size: int) -> tirx.Stmt:
    if any(loop.kind == tirx.ForKind.THREAD_BINDING for loop in nodes_in(nest, tirx.For)) or nodes_in(
        nest, tirx.AttrStmt
    ):
        return nest
    loops, body = [], nest
    while isinstance(body, tirx.For):
        loops.append(body)
        body = body.body
    parallel = [loop for loop in loops if _is_parallel(loop, body)]
    rest = [loop for loop in loops if not any(loop.same_as(other) for other in parallel)]
    dtype = parallel[0].loop_var.ty if parallel else "int32"
    group, thread = (tirx.Var(name, dtype) for name in ("group", "thread"))
    extents = extents_of(loop.extent for loop in parallel)
    count: Any = math.prod(extents)
    size = min(size, count) if isinstance(count, int) else size
    at = group * size + thread
    for loop in reversed(rest):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)
    positions = [loop.min + position for loop, position in zip(parallel, unravel(at, extents), strict=True)]
    body = substitute(body, dict(zip((loop.loop_var for loop in parallel), positions, strict=True)))
    body = guarded(at < count if not isinstance(count, int) or count % size else None, body)
    return bound({"blockIdx.x": (group, count_of(count, size)), "threadIdx.x": (thread, size)}, body)


def _is_parallel(loop: tirx.For, realize: tirx.Stmt) -> bool:
    """Return whether a loop is exactly one spatial axis of the block that is its body."""
    if not isinstance(realize, s_tir.SBlockRealize):
        return False
    axes = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    reading = [axis for axis, value in axes if has_var(value, loop.loop_var)]
    values = [value for value in realize.iter_values if isinstance(value, tirx.Var) and value.same_as(loop.loop_var)]
    return len(reading) == len(values) == 1 and reading[0].iter_type == tirx.IterVar.DataPar
