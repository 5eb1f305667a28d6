"""Products of matrices that are both computed at run time: attention (Q K^T and P V), and any matmul whose right side is no constant.

lhs, rhs, output: plain buffers, whose axes are those of (*batch, m, k), (*batch, k, n) and (*batch, m, n) in any order in which the innermost
one of the left side is k, that of the right side k or n, that of the output n. So transposed operands, and the heads that attention cuts its
rows into, are read and written where they lie. An operand whose batch is 1 serves all.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from romou.schedules.contraction import Contraction
from romou.schedules.workload import BatchMatmul, stored_as
from romou.tir.primitives import LANES

FAMILY = "batch_matmul"


def works_in_texels(w: BatchMatmul) -> bool:
    """Whether the schedule reads its data in whole texels: its rows are no texels."""
    return False


def define(w: BatchMatmul, lhs: te.Tensor, rhs: te.Tensor, scale: float = 1.0) -> te.Tensor:
    """The plain definition: what fusion sees, and the reference that a candidate is checked against.

    `scale` multiplies the sums before they are rounded to the storage type.
    """
    k = te.reduce_axis((0, w.k), "k")

    def value(*i: tirx.Expr) -> tirx.Expr:
        *batch, m, n = (i[axis] for axis in w.out_axes)
        left, right = _load(w.lhs_axes, lhs, [*batch, m, k]), _load(w.rhs_axes, rhs, [*batch, k, n])
        return te.sum(left.astype("float32") * right.astype("float32"), axis=k)

    total = te.compute(w.output_shape, value, name=FAMILY, attrs=w.block_attrs(FAMILY))
    if scale != 1:
        total = te.compute(w.output_shape, lambda *i: total[i] * tirx.const(scale, "float32"), name="scale")
    return stored_as(w.dtype, total)


def contraction(w: BatchMatmul, lhs: te.Tensor, rhs: te.Tensor, flat: bool, is_zero_outside: bool = False) -> Contraction:
    """The same as a contraction: rows are pixels, batches are rows of pixels, each with a right side of its own."""
    step = next(s for s in (4, 2, 1) if w.k % s == 0)

    def column(o: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        return o * LANES + lane if w.n % LANES == 0 else te.min(o * LANES + lane, w.n - 1)

    def output(*i: tirx.Expr) -> tuple[tirx.Expr, ...]:
        *batch, m, n = (i[axis] for axis in w.out_axes)
        return n // LANES, w.flat_batch(batch), m, n % LANES

    rhs_vector = "reduction" if w.is_rhs_transposed else "lanes" if w.n % LANES == 0 else "none"
    return Contraction(
        inputs=[lhs, rhs],
        extents=(w.out_texels, w.batches, w.m),
        reduce={"k": w.k // step, "kstep": step},
        lhs=lambda _o, h, m, _lane, k, s: _load(w.lhs_axes, lhs, [*w.batch_of(h), m, k * step + s]),
        rhs=lambda o, lane, k, s, h: _load(w.rhs_axes, rhs, [*w.batch_of(h), k * step + s, column(o, lane)]),
        output=output,
        output_shape=w.output_shape,
        vector=rhs_vector == "lanes",
        is_batched=True,
        rhs_vector=rhs_vector,
        lhs_neighbours="reduction" if w.lhs_axes[-1] == len(w.lhs_axes) - 1 else "pixels",
        columns=w.n,
    )


def _load(axes: Sequence[int], operand: te.Tensor, at: Sequence[tirx.Expr]) -> tirx.Expr:
    """The element at a position of (*batch, row, column)."""
    index: list[tirx.Expr] = [0] * len(axes)
    for axis, position in zip(axes, at, strict=True):
        index[axis] = 0 if int(operand.shape[axis]) == 1 else position
    return operand[tuple(index)]
