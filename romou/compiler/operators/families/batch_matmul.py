"""Products of two matrices, both computed at run time, as in attention (Q K^T and P V).

lhs (*batch, m, k), rhs (*batch, k, n), output (*batch, m, n): plain buffers. Their axes may be permuted, if lhs ends in
k, rhs in k or n, output in n. So transposed operands and the heads of attention are read and written in place. An
operand may have fewer matrices than the output along an axis of the batch: each is then read for several neighbours,
as heads of queries share keys, and a single one for all. An operand may be one part of a buffer, such as Q, K or V of
one product that computes all three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from romou.compiler.operators.families.bases.contraction import OPAQUE
from romou.compiler.operators.families.dense import Product, ProductFamily, in_order
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.workload import Expr, stored_as
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import (
    FLOATS,
    Shape,
    digits_of,
    dtype_of,
    is_constant,
    is_multiple,
    is_one,
    shape_of,
    static_shape,
)
from romou.compiler.tir.primitives import LANES


@dataclass(frozen=True, kw_only=True)
class BatchMatmul(Product):
    """A product of two matrices computed at run time: (*batch, m, k) x (*batch, k, n).

    batch: of the output.
    lhs_batch, rhs_batch: of the operands. They divide `batch`: a matrix serves neighbours of the output's batch.
    lhs_axes, rhs_axes, out_axes: the buffer's axis for each axis of (*batch, m, k), (*batch, k, n) and (*batch, m, n).
    lhs_part, rhs_part: an axis of the buffer, its extent, and the first index along it, if the operand is a part of
        the buffer. Empty if it is all of it.
    """

    OPTIONAL = frozenset({"lhs_part", "rhs_part"})

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_axes: tuple[int, ...]
    rhs_axes: tuple[int, ...]
    out_axes: tuple[int, ...]
    lhs_part: tuple[int, ...] = ()
    rhs_part: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def lhs(self) -> Matrices:
        """The left operand. Its columns are k."""
        return Matrices(self.lhs_batch, self.lhs_axes, self.lhs_part, self.batch)

    @property
    def rhs(self) -> Matrices:
        """The right operand. Its rows are k."""
        return Matrices(self.rhs_batch, self.rhs_axes, self.rhs_part, self.batch)

    @property
    def is_rhs_transposed(self) -> bool:
        """True if the right side is contiguous along k."""
        return self.rhs_axes[-2] == len(self.rhs_axes) - 1

    @property
    def is_lhs_contiguous(self) -> bool:
        """True if the left side is contiguous along k."""
        return self.lhs_axes[-1] == len(self.lhs_axes) - 1

    @property
    def name(self) -> str:
        return f"{self.batches}x{self.m}x{self.k}_{self.n}" + ("_t" if self.is_rhs_transposed else "")


@dataclass(frozen=True)
class Matrices:
    """An operand of a `BatchMatmul`. Fields as there.

    of: the output's batch.
    """

    batch: tuple[int, ...]
    axes: tuple[int, ...]
    part: tuple[int, ...]
    of: tuple[int, ...]

    def shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of the buffer."""
        return in_order(self.axes, (*self.batch, rows, columns), self.part)

    def read(self, buffer: te.Tensor, at: Sequence[Expr], row: Expr, column: Expr) -> tirx.Expr:
        """Return an element of the matrix for a position `at` of the output's batch."""
        matrix = [
            position if own == extent or is_one(own) else position // (extent // own)
            for position, extent, own in zip(at, self.of, self.batch, strict=True)
        ]
        index: list[Expr] = [0] * len(self.axes)
        for axis, position in zip(self.axes, (*matrix, row, column), strict=True):
            index[axis] = 0 if is_one(buffer.shape[axis]) else position
        if self.part:
            index[self.part[0]] = self.part[2] + index[self.part[0]]
        return buffer[tuple(index)]


def matmul(
    batch: tuple[int, ...],
    m: int,
    k: int,
    n: int,
    dtype: str = "float32",
    *,
    is_transposed: bool = False,
    **fields: Any,
) -> BatchMatmul:
    """Return products of (*batch, m, k) and (*batch, k, n), or (*batch, n, k) if `is_transposed`.

    fields: fields of `BatchMatmul` that differ from a plain product's.
    """
    axes = tuple(range(rank := len(batch) + 2))
    rhs_axes = (*axes[:-2], rank - 1, rank - 2) if is_transposed else axes
    settings = {
        "lhs_batch": batch,
        "rhs_batch": batch,
        "lhs_axes": axes,
        "rhs_axes": rhs_axes,
        "out_axes": axes,
        **fields,
    }
    return BatchMatmul(batch=batch, m=m, k=k, n=n, dtype=dtype, **settings)


@dataclass(frozen=True)
class _Operand:
    """An operand of a product: `source` or a part of it with permuted axes, times a number.

    axes: the axis of `source` for each axis of the operand.
    part: the other axis of `source`, its extent, and the only index along it that is read. Empty if there is none.
    repeats: operand's axis -> neighbours along it that are one element of `source`.
    """

    source: relax.Expr
    axes: tuple[int, ...]
    scale: float
    part: tuple[int, ...] = ()
    repeats: Mapping[int, int] = field(default_factory=dict)

    def batch_of(self, batch: Sequence[int]) -> tuple[int, ...]:
        """Return the batch of `source`, given the operand's."""
        return tuple(extent // self.repeats.get(axis, 1) for axis, extent in enumerate(batch))


class BatchMatmulFamily(ProductFamily[BatchMatmul]):
    """Products of two matrices, or batches of them, that `dense` does not take."""

    name = "batch_matmul"
    precedence = 1
    workload = BatchMatmul
    has_constant_weight = False
    operators = frozenset({"relax.matmul", "relax.permute_dims"})
    typical = (
        matmul((2,), 13, 31, 10),
        matmul((2, 3), 5, 12, 8, lhs_batch=(2, 1), rhs_batch=(1, 3)),
        matmul((), 1, 37, 31, is_transposed=True),
    )

    def match(self, call: relax.Call) -> BatchMatmul | None:
        """Match a single product. `rewrite` also absorbs transposes."""
        left, right = (shape_of(arg) for arg in call.args)
        dtype = dtype_of(call.args[0])
        if (
            left is None
            or right is None
            or min(len(left), len(right)) < 2
            or dtype not in FLOATS
            or dtype_of(call.args[1]) != dtype
        ):
            return None
        rank = max(len(left), len(right)) - 2
        left_batch, right_batch = ((1,) * (rank + 2 - len(shape)) + shape[:-2] for shape in (left, right))
        batch = tuple(map(max, left_batch, right_batch))
        return matmul(batch, left[-2], left[-1], right[-1], dtype, lhs_batch=left_batch, rhs_batch=right_batch)

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return the plain definition, with neighbouring transposes, slices and scalar factors absorbed.

        Transposes, slices of one index and factors of operands become part of the product's reads, a transpose of the
        result part of its writes.
        """
        if op_name(call) == "relax.matmul":
            return self._product(call, graph, None)
        # A product with one user is written in that user's order, if its columns stay contiguous.
        source = call.args[0]
        if graph.rewritten.get(source) is not self or len(graph.users.get(source, ())) != 1:
            return None
        order = _order_of(call)
        if order[-1] != len(order) - 1:
            return None
        return self._product(graph.bound[source], graph, tuple(order.index(axis) for axis in range(len(order))))

    def _product(self, call: relax.Call, graph: Graph, out_axes: tuple[int, ...] | None) -> relax.Expr | None:
        work = self.match(call) if op_name(call) == "relax.matmul" else None
        if work is None:
            return None
        rank = len(work.out_axes)
        lhs, rhs = (
            _operand(arg, innermost, graph.bound) for arg, innermost in zip(call.args, ((-1,), (-1, -2)), strict=True)
        )
        lhs, rhs = (_with_rank(operand, rank, graph) for operand in (lhs, rhs))
        if lhs.source.same_as(rhs.source):
            # A kernel has one parameter for a tensor that is passed twice, so the second operand becomes a view.
            attrs = {"op_pattern": OPAQUE}
            view = graph.bb.emit_te(_same, rhs.source, primfunc_name_hint="reshape", primfunc_attrs=attrs)
            rhs = replace(rhs, source=view)
        work = replace(
            work,
            lhs_batch=lhs.batch_of(work.lhs_batch),
            rhs_batch=rhs.batch_of(work.rhs_batch),
            lhs_axes=lhs.axes,
            rhs_axes=rhs.axes,
            out_axes=out_axes or work.out_axes,
            lhs_part=lhs.part,
            rhs_part=rhs.part,
        )
        return self.emit_define(
            graph, lambda a, b: self.define(work, a, b, lhs.scale * rhs.scale), lhs.source, rhs.source
        )

    def operands(self, w: BatchMatmul) -> Mapping[str, Shape]:
        return {"lhs": w.lhs.shape(w.m, w.k), "rhs": w.rhs.shape(w.k, w.n)}

    def define(self, w: BatchMatmul, data: te.Tensor, weight: te.Tensor, scale: float = 1.0) -> te.Tensor:
        """Return the plain definition with k as one axis, by which attention is recognised.

        scale: a factor of the sums before they are rounded to the storage type.
        """
        k = te.reduce_axis((0, w.k), "k")

        def value(*i: tirx.Expr) -> tirx.Expr:
            *batch, m, n = (i[axis] for axis in w.out_axes)
            left, right = w.lhs.read(data, batch, m, k), w.rhs.read(weight, batch, k, n)
            return te.sum(left.astype("float32") * right.astype("float32"), axis=k)

        total = te.compute(w.output_shape, value, name=self.name, attrs=w.block_attrs(self.name))
        if scale != 1:
            total = te.compute(w.output_shape, lambda *i: total[i] * tirx.const(scale, "float32"), name="scale")
        return stored_as(w.dtype, total)

    def reads(
        self, w: BatchMatmul, data: te.Tensor, weight: te.Tensor
    ) -> tuple[Callable[..., Expr], Callable[..., Expr], dict[str, Any]]:
        is_whole = is_multiple(w.n, LANES)
        rhs_vector = "reduction" if w.is_rhs_transposed else "lanes" if is_whole else "none"

        def left(h: Expr, m: Expr, k: Expr) -> tirx.Expr:
            return w.lhs.read(data, digits_of(h, w.batch), m, k)

        def right(k: Expr, o: Expr, lane: Expr, h: Expr) -> tirx.Expr:
            column = o * LANES + lane if is_whole else te.min(o * LANES + lane, w.n - 1)
            return w.rhs.read(weight, digits_of(h, w.batch), k, column)

        return (
            left,
            right,
            {
                "axes": ("n", "b", "m"),
                "vector": rhs_vector == "lanes",
                "is_batched": True,
                "rhs_vector": rhs_vector,
                "lhs_neighbours": "reduction" if w.is_lhs_contiguous else "pixels",
                "columns": w.n,
            },
        )

    def matrices(self, w: BatchMatmul) -> Set[str]:
        lhs, rhs = (
            w.is_lhs_contiguous and w.k % LANES == 0,
            (w.k if w.is_rhs_transposed else w.n) % LANES == 0,
        )
        return {role for role, is_read in (("data", lhs), ("weight", rhs)) if is_read}

    def case(self, w: BatchMatmul) -> Case:
        shapes = [
            (*batch, *sides)
            for batch, sides in (
                (w.lhs_batch, (w.m, w.k)),
                (w.rhs_batch, (w.n, w.k) if w.is_rhs_transposed else (w.k, w.n)),
            )
        ]
        swapped = [*range(len(w.batch)), len(w.batch) + 1, len(w.batch)]
        return Case(
            name=w.name,
            inputs=shapes,
            build=lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b, swapped) if w.is_rhs_transposed else b),
            compute=lambda a, b: np.matmul(a, b.swapaxes(-1, -2) if w.is_rhs_transposed else b),
        )


def _same(data: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda *i: data[i], name="view")


def _operand(expr: relax.Expr, innermost: Sequence[int], bound: Mapping[relax.Var, relax.Expr]) -> _Operand:
    """Strip transposes, slices of one index and scalar factors from `expr`, as long as one of the axes `innermost`
    stays contiguous.

    An fp16 factor below one stays: unscaled sums may overflow.
    """
    rank = len(static_shape(expr))
    stripped = current = _Operand(expr, tuple(range(rank)), 1.0)
    while isinstance(current.source, relax.Var) and (value := bound.get(current.source)) is not None:
        if op_name(value) == "relax.permute_dims":
            order = _order_of(value)
            axes, part = tuple(order[a] for a in current.axes), current.part
            current = replace(
                current, source=value.args[0], axes=axes, part=(order[part[0]], *part[1:]) if part else ()
            )
        elif (scaled := _without_factor(value)) is not None and (abs(scaled[1]) >= 1 or dtype_of(value) != "float16"):
            current = replace(current, source=scaled[0], scale=current.scale * scaled[1])
        elif isinstance(value, relax.Var):
            current = replace(current, source=value)
        elif (repeated := _repeated(value, bound)) is not None and not (current.repeats or current.part):
            source, axis, times = repeated
            if (place := current.axes.index(axis)) >= rank - 2:
                break
            current = replace(current, source=source, repeats={place: times})
        elif not current.part and (sliced := _slice_of(value, bound)) is not None:
            source, part = sliced
            axes = tuple(axis + (axis >= part[0]) for axis in current.axes)
            current = replace(current, source=source, axes=axes, part=part)
        else:
            break
        last = len(static_shape(current.source)) - 1
        if last in current.axes and current.axes.index(last) - rank in innermost:
            stripped = current
    return stripped


def _slice_of(value: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> tuple[relax.Expr, tuple[int, ...]] | None:
    """Return the tensor of which `value` is one index along an axis, with the axis, its extent and the index.

    Exporters write x[:, i] as a gather, or as a slice or split and a squeeze. None for any other expression.
    """
    name = op_name(value)
    if name == "relax.take" and is_constant(value.args[1]) and static_shape(value.args[1]) == ():
        source, axis, index = value.args[0], value.attrs.axis, int(value.args[1].value.numpy())
        axis = int(axis) if axis is not None and int(axis) >= 0 else None
    elif name == "relax.squeeze" and op_name(sliced := bound.get(value.args[0], value)) == "relax.strided_slice":
        source, axes, begin, end = sliced.args[:4]
        if len(axes) != 1 or shape_of(source) is None:
            return None
        axis, index = (int(one[0].value) for one in (axes, begin))
        rest = [extent for at, extent in enumerate(static_shape(source)) if at != axis]
        if axis < 0 or int(end[0].value) != index + 1 or rest != [*static_shape(value)]:
            return None
    else:
        return None
    shape = shape_of(source)
    if shape is None or axis is None or not 0 <= index < shape[axis]:
        return None
    return source, (axis, shape[axis], index)


def _repeated(value: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> tuple[relax.Expr, int, int] | None:
    """Return the tensor that `value` repeats along an axis, each element beside itself, with the axis and the times.

    (groups, n, d)  --expand_dims-->  (groups, 1, n, d)  --broadcast_to-->  (groups, times, n, d)  --reshape-->
    (groups * times, n, d), as exporters write heads that share keys. None for any other expression.
    """
    repeated = bound.get(value.args[0]) if op_name(value) == "relax.reshape" else None
    if repeated is None or op_name(repeated) != "relax.broadcast_to":
        return None
    split, whole, parts = bound.get(repeated.args[0]), shape_of(value), shape_of(repeated)
    source = split.args[0] if split is not None and op_name(split) in ("relax.expand_dims", "relax.reshape") else None
    own = None if source is None else shape_of(source)
    if own is None or whole is None or parts is None or not len(own) == len(whole) == len(parts) - 1:
        return None
    for axis, groups in enumerate(own):
        rest = own[axis + 1 :]
        is_split = shape_of(repeated.args[0]) == (*own[: axis + 1], 1, *rest)
        times = parts[axis + 1]
        if is_split and parts == (*own[: axis + 1], times, *rest) and whole == (*own[:axis], groups * times, *rest):
            return source, axis, times
    return None


def _order_of(call: relax.Call) -> list[int]:
    """Return the permutation of a `permute_dims`."""
    rank = len(static_shape(call.args[0]))
    return [int(axis) for axis in call.attrs.axes] if call.attrs.axes is not None else list(reversed(range(rank)))


def _with_rank(operand: _Operand, rank: int, graph: Graph) -> _Operand:
    """Return the operand in plain form, with leading axes of extent 1. `part` is that of `BatchMatmul`.

    The axis of which one index is read and the next axis become one, of which a range is read. So Q, K and V of one
    product are ranges of its rows, in images too.
    """
    source, shape, axes = graph.plain_expr(operand.source), static_shape(operand.source), operand.axes
    part: tuple[int, ...] = ()
    if operand.part:
        at, extent, index = operand.part
        following = shape[at + 1]
        part = (at, extent * following, index * following)
        shape = (*shape[:at], extent * following, *shape[at + 2 :])
        axes = tuple(axis - (axis > at) for axis in axes)
    if missing := rank - len(axes):
        shape = (*[1] * missing, *shape)
        axes = (*range(missing), *(axis + missing for axis in axes))
        operand = replace(operand, repeats={axis + missing: times for axis, times in operand.repeats.items()})
        part = (part[0] + missing, *part[1:]) if part else ()
    if shape != static_shape(operand.source):
        source = graph.bb.emit(relax.op.reshape(source, shape))
    return replace(operand, source=source, axes=axes, part=part)


def _without_factor(call: relax.Expr) -> tuple[relax.Expr, float] | None:
    """Split a product or quotient with a scalar into operand and factor, or None for any other call."""
    if op_name(call) not in ("relax.multiply", "relax.divide"):
        return None
    left, right = call.args
    if (factor := _scalar(right, left)) is not None:
        return left, factor if op_name(call) == "relax.multiply" else 1 / factor
    factor = _scalar(left, right) if op_name(call) == "relax.multiply" else None
    return None if factor is None else (right, factor)


def _scalar(expr: relax.Expr, other: relax.Expr) -> float | None:
    """Return the value of a finite, non-zero constant of one element, or None for any other expression.

    Exporters give it axes. It may not have more than the other operand, which would get them.
    """
    shape = static_shape(expr) if is_constant(expr) else None
    if shape is None or any(extent != 1 for extent in shape) or len(shape) > other.ty.ndim:
        return None
    value = float(expr.value.numpy().item())
    return value if value and np.isfinite(value) else None


FAMILY = BatchMatmulFamily()
