"""Whether a kernel for any sizes is, at some sizes, the kernel that a config has there.

Both are lowered, the one for any sizes with numbers for its sizes, so all simplifications hold for these numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import tvm
from tvm import sym, tirx
from tvm_ffi.structural import structural_equal, structural_map

from romou.compiler.assembly.default_schedules import device_functions
from romou.compiler.assembly.size_rules import NotOneKernelError, Point
from romou.compiler.assembly.symbolic import differing
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.launch import launch_size, thread_extents

if TYPE_CHECKING:
    from romou.devices.targets import Target

_CONDITIONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.Min, tirx.Max)


class Likeness(IntEnum):
    """Degrees of likeness of two kernels at some sizes, the least first."""

    OTHER_NUMBERS = 0
    OTHER_CONDITIONS = 1
    OTHER_ARITHMETIC = 2
    SAME = 3


def likeness(kernel: tirx.PrimFunc, at: Point, expected: tirx.PrimFunc, target: Target) -> Likeness:
    """Return how far a kernel is, at sizes, the expected one. Either may be simplified in another way.

    kernel: its last parameters are the sizes.
    """
    mine, theirs = (device_functions(each, target) for each in (_at_sizes(kernel, at), _bare(expected)))
    if len(mine) != len(theirs):
        return Likeness.OTHER_CONDITIONS
    return min(map(_likeness, mine, theirs), default=Likeness.SAME)


def _likeness(one: tirx.PrimFunc, other: tirx.PrimFunc) -> Likeness:
    # An axis of one group may be left out.
    if launch_size(thread_extents(one)) != launch_size(thread_extents(other)):
        return Likeness.OTHER_NUMBERS
    if structural_equal(one.body, other.body, map_free_vars=True):
        return Likeness.SAME
    try:
        graphs = [json.loads(tvm.ir.save_json(_bare(each))) for each in (one, other)]
        if differing(graphs):
            return Likeness.OTHER_NUMBERS
    except NotOneKernelError:
        pass
    mine, theirs = ([len(nodes_in(each.body, kind)) for kind in _CONDITIONS] for each in (one, other))
    return Likeness.OTHER_ARITHMETIC if mine == theirs else Likeness.OTHER_CONDITIONS


def _bare(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return tirx.PrimFunc(func.params, func.body, func.ret_type).with_attr("tirx.noalias", True)


def _at_sizes(kernel: tirx.PrimFunc, at: Sequence[int]) -> tirx.PrimFunc:
    """Return the kernel with numbers for its last parameters."""
    tensors, sizes = list(kernel.params)[: -len(at)], list(kernel.params)[-len(at) :]
    numbers = {size: tirx.const(number, str(size.ty)) for size, number in zip(sizes, at, strict=True)}
    simple = sym.Analyzer().simplify

    def with_numbers(expr: tirx.Expr) -> tirx.Expr:
        return structural_map(expr, (tirx.Var, lambda var: numbers.get(var, var)))

    fixed = {
        tensor: tirx.decl_buffer(
            [simple(with_numbers(extent)) for extent in tensor.shape],
            tensor.dtype,
            tensor.name,
            scope=str(tensor.scope()),
        )
        for tensor in tensors
    }
    body = structural_map(kernel.body, (tirx.Var, lambda var: numbers.get(var, fixed.get(var, var))))
    return tirx.PrimFunc([fixed[tensor] for tensor in tensors], body, kernel.ret_type).with_attr("tirx.noalias", True)
