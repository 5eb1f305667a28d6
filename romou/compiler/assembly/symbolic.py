"""An unscheduled function for any sizes, from those for some.

    size 61: for i in range(61): if i < 61: ...   ->   for i in range(size): if i < size: ...
    size 47: for i in range(47): if i < 47: ...

Functions that differ in integers only are one function, if each of these integers follows one rule of the sizes
(`SizeRules`). Sizes are variables from before a kernel is scheduled, so all simplifications hold for all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate

from romou.compiler.frontend.size_rules import NotOneKernelError, SizeRules, Values
from romou.compiler.passes.whole_buffers import with_whole_buffers
from romou.compiler.tir.primitives import LARGEST_SIZES, SIZES
from romou.compiler.tir.traversal import nodes_in


def one_kernel(kernels: Sequence[tirx.PrimFunc], rules: SizeRules) -> tirx.PrimFunc | None:
    """Return the kernel for any sizes, int32 variables in the attribute `SIZES`. None if no integer depends on them.

    kernels: unscheduled, at the points of `rules`.

    Raises
    ------
    NotOneKernelError
        They differ in more than integers, or an integer follows no rule.
    NeedsPointError
        As in `SizeRules.of`.
    """
    (form, first), *others = map(_without_numbers, kernels)
    if not all(structural_equal(form, other) for other, _ in others):
        raise NotOneKernelError("it differs in more than integers")
    numbers = [*zip(first, *(values for _, values in others), strict=True)]
    whole = {values: _whole(values) for values in numbers if len(set(values)) > 1}
    if not whole:
        return None
    for values in sorted(set(whole.values())):  # products follow from their factors
        rules.of(values)
    sizes = [tirx.Var(f"size{place or ''}", "int32") for place, _ in enumerate(rules.most)]
    left = iter(numbers)

    def number(node: Any) -> tirx.Expr:
        values, dtype, is_float = next(left), str(node.ty.dtype), isinstance(node, tirx.FloatImm)
        if values not in whole:
            return node
        value = rules.of(whole[values])([size.astype("int32" if is_float else dtype) for size in sizes])
        value = value.astype(dtype) if is_float else value
        return tirx.const(1, dtype) / value if whole[values] != values else value

    func = _with_numbers(kernels[0], number)
    func = func.with_body(structural_map(func.body, (tirx.For, _written_once)))
    return with_whole_buffers(func.with_attr(SIZES, sizes).with_attr(LARGEST_SIZES, list(rules.most)))


def _with_numbers(func: tirx.PrimFunc, number: Callable[[Any], tirx.Expr]) -> tirx.PrimFunc:
    """Return the function with each number replaced, and buffers without the layout that they had."""
    own = [buffer for block in nodes_in(func.body, s_tir.SBlock) for buffer in block.alloc_buffers]
    renewed = {
        buffer: tirx.decl_buffer(list(map(number, buffer.shape)), buffer.dtype, buffer.name, scope=str(buffer.scope()))
        for buffer in (*func.params, *own)
    }
    entries = [
        (tirx.Var, lambda var, _mutator: renewed.get(var, var)),
        ((tirx.IntImm, tirx.FloatImm), lambda node, _mutator: number(node)),
    ]
    body = structural_mutate(func.body, entries)
    return tirx.PrimFunc([renewed[param] for param in func.params], body, func.ret_type, func.attrs)


def _without_numbers(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[float]]:
    """Return the function with 1 for each number, and the numbers."""
    numbers: list[float] = []

    def one(node: Any) -> tirx.Expr:
        numbers.append(node.value)
        return tirx.const(1, str(node.ty.dtype))

    return _with_numbers(func, one), numbers


def _written_once(loop: tirx.For) -> tirx.For:
    """Return a loop that is not unrolled if its number of steps follows from a size."""
    if loop.kind != tirx.ForKind.UNROLLED or isinstance(loop.extent, tirx.IntImm):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _whole(values: Sequence[float]) -> Values:
    """Return integers that equal the numbers, or whose reciprocals do. Raise NotOneKernelError if there are none."""
    if all(value == int(value) for value in values):
        return tuple(map(int, values))
    counts = tuple(round(1 / value) if value else 0 for value in values)
    if any(not count or not math.isclose(1 / count, v, rel_tol=1e-7) for count, v in zip(counts, values, strict=True)):
        raise NotOneKernelError(f"a number is {tuple(values)}")
    return counts
