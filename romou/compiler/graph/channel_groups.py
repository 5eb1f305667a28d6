"""Keep rows of channel groups (group norms) in packed order: sums do not depend on the order of elements.

    unpack -> reshape (n, groups, row) -> mean, subtract, ... -> reshape (n, c, h, w) -> pack
    ->      reshape (n, groups, row) -> mean, subtract, ... -> reshape (n, c / 4, h, w, 4)

This holds only for groups of whole texels. The packed reshapes are views of the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax

from romou.compiler.graph.keep_packed import BINARY, FULL_TEXELS, UNARY
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import Shape, shape_of, static_shape
from romou.compiler.tir.primitives import LANES

REDUCTIONS = {f"relax.{name}" for name in ("max", "mean", "min", "sum", "variance")}
_ELEMENTWISE = UNARY | BINARY | FULL_TEXELS


@dataclass(frozen=True)
class Rows:
    """A tensor (n, groups, row) with the elements of a row in the order of packed channels.

    shape: (n, c, h, w) of the packed tensor.
    """

    value: relax.Expr
    shape: Shape

    @property
    def packed_shape(self) -> Shape:
        """Shape of the packed tensor, (n, c / 4, h, w, 4)."""
        n, c, h, w = self.shape
        return (n, c // LANES, h, w, LANES)


def open_rows(bb: relax.BlockBuilder, packed: relax.Expr, shape: Shape | None, wanted: Shape | None) -> Rows | None:
    """Return a packed tensor of plain shape `shape` as rows of shape `wanted`, or None if groups split texels."""
    if shape is None or wanted is None or len(shape) != 4 or len(wanted) != 3:
        return None
    n, c, h, w = shape
    groups = wanted[1]
    if (
        wanted != (n, groups, math.prod(shape) // max(1, n * groups))
        or not groups
        or c % groups
        or (c // groups) % LANES
    ):
        return None
    return Rows(bb.emit(relax.op.reshape(packed, wanted)), (n, c, h, w))


def keep_rows(
    bb: relax.BlockBuilder,
    call: relax.Call,
    rows: dict[relax.Var, Rows],
    plain_expr: Callable[[relax.Expr], relax.Expr],
) -> Rows | None:
    """Return the result of an element-wise operator on rows and operands constant along a row, or None."""
    name, read = op_name(call), [arg for arg in call.args if arg in rows]
    if (
        name not in _ELEMENTWISE
        or not read
        or shape_of(call) != shape_of(read[0])
        or any(rows[arg].shape != rows[read[0]].shape for arg in read)
    ):
        return None
    others = [arg for arg in call.args if arg not in rows and isinstance(arg.ty, relax.TensorType)]
    if any(shape_of(arg) is None or static_shape(arg)[-1:] not in ((), (1,)) for arg in others):
        return None
    operands = [rows[arg].value if arg in rows else plain_expr(arg) for arg in call.args]
    return Rows(bb.emit(relax.Call(call.op, operands, call.attrs)), rows[read[0]].shape)


def reduce_rows(bb: relax.BlockBuilder, call: relax.Call, rows: dict[relax.Var, Rows]) -> relax.Expr | None:
    """Return the plain result of a reduction over whole rows, or None for any other operator."""
    if (
        op_name(call) not in REDUCTIONS
        or call.args[0] not in rows
        or [int(axis) for axis in call.attrs.axis or ()] not in ([2], [-1])
    ):
        return None
    return bb.emit(relax.Call(call.op, [rows[call.args[0]].value], call.attrs))
