"""Which images a kernel reads inside of them alone: those need no sampler, which would take floats."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_visit

from romou.tir.calls import is_conditional


def read_inside(func: tirx.PrimFunc, images: Sequence[tirx.Buffer]) -> list[tirx.Buffer]:
    """Return the images of which every read is proven to lie inside, by the extents of loops and launches and by the conditions around the read.

    for x in range(14): use(image[x, 0:4])                    an image of 14 texels is read inside
    for x in range(16): use(image[x, 0:4])                    not
    for x in range(16): if x < 14: use(image[x, 0:4])         inside

    Indices still are those of the tensor: run before buffers are flattened. An image that is not read is none of them.
    """
    analyzer = tvm.sym.Analyzer()
    read: set[int] = set()
    outside: set[int] = set()

    def bind(var: tirx.Var, low: tirx.Expr, extent: tirx.Expr) -> None:
        # The kernels of a function may share a variable, each with an extent of its own.
        analyzer.bind(var, tvm.ir.Range.from_min_extent(low, extent), True)

    def loop(stmt: tirx.For, visitor: Any) -> None:
        bind(stmt.loop_var, stmt.min, stmt.extent)
        visitor.default_visit(stmt)

    def attribute(stmt: tirx.AttrStmt, visitor: Any) -> None:
        if stmt.attr_key == "thread_extent":
            bind(stmt.node.var, tirx.const(0, stmt.node.var.ty), stmt.value)
        visitor.default_visit(stmt)

    def under(condition: tirx.Expr, part: Any, visitor: Any) -> None:
        # A condition that was loaded tells nothing of an index.
        scope: AbstractContextManager[Any] = analyzer.constraint_scope(condition) if "bool" in str(condition.ty) else nullcontext()
        with scope:
            visitor.visit(part)

    def branch(stmt: tirx.IfThenElse, visitor: Any) -> None:
        visitor.visit(stmt.condition)
        under(stmt.condition, stmt.then_case, visitor)
        if stmt.else_case is not None:
            under(tirx.Not(stmt.condition), stmt.else_case, visitor)

    def call(expr: tvm.ir.Call, visitor: Any) -> None:
        if not is_conditional(expr):
            visitor.default_visit(expr)
            return
        condition, then, otherwise = expr.args
        visitor.visit(condition)
        under(condition, then, visitor)
        under(tirx.Not(condition), otherwise, visitor)

    def load(access: tvm.ir.TensorLoad, visitor: Any) -> None:
        found = next((place for place, image in enumerate(images) if image.same_as(access.source)), None)
        if found is not None and found not in outside:
            read.add(found)
            # The last index takes the lanes of a texel.
            sides = zip(access.source.shape[:-1], list(access.indices)[:-1], strict=True)
            if not all(_is_inside(analyzer, index, int(extent)) for extent, index in sides):
                outside.add(found)
        visitor.default_visit(access)

    handlers = [(tirx.For, loop), (tirx.AttrStmt, attribute), (tirx.IfThenElse, branch), (tvm.ir.Call, call), (tvm.ir.TensorLoad, load)]
    structural_visit(func.body, handlers)
    return [image for place, image in enumerate(images) if place in read - outside]


def _is_inside(analyzer: tvm.sym.Analyzer, index: tirx.Expr, extent: int) -> bool:
    bound = analyzer.const_int_bound(index)
    return bool((bound.min_value >= 0 or analyzer.can_prove(index >= 0)) and (bound.max_value < extent or analyzer.can_prove(index < extent)))
