"""Products of matrices, and the dense layer: activations times a constant matrix with columns packed by four.

data (m, k)      weight (k, ceil(n / 4), 4)      output (m, n)

Rows of the data may be read in another order (`romou/compiler/operators/families/bases/window_partition.py`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.families.bases.contraction import ContractionFamily
from romou.compiler.operators.families.bases.window_partition import RowOrder, order_of, steps_back
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.workload import Expr, Workload
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import (
    FLOATS,
    Shape,
    count_of,
    dtype_of,
    is_constant,
    is_multiple,
    number_of,
    shape_of,
    static_shape,
)
from romou.compiler.tir.primitives import LANES


class Product(Workload):
    """Products of matrices, (*batch, m, k) x (*batch, k, n). Each kind declares its numbers.

    out_axes: the output's axis for each axis of (*batch, m, n).
    """

    if TYPE_CHECKING:
        batch: tuple[int, ...]
        m: int
        k: int
        n: int
        out_axes: tuple[int, ...]

    @property
    def batches(self) -> int:
        return math.prod(self.batch)

    @property
    def out_texels(self) -> Any:
        """Texels of output columns."""
        return count_of(self.n, LANES)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return in_order(self.out_axes, (*self.batch, self.m, self.n))

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.k * self.n


def in_order(axes: Sequence[int], extents: Sequence[int], part: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the shape of a buffer, given the extent along each of its `axes`.

    part: an axis and its extent, if the buffer has more than these extents along it.
    """
    shape = dict(zip(axes, extents, strict=True)) | ({part[0]: part[1]} if part else {})
    return tuple(shape[axis] for axis in range(len(shape)))


P = TypeVar("P", bound=Product)


class ProductFamily(ContractionFamily[P]):
    """A family of products, with matrix rows as pixels. Each product of the batch is a row of pixels."""

    stores_rows = True

    @abstractmethod
    def reads(
        self, w: P, data: te.Tensor, weight: te.Tensor
    ) -> tuple[Callable[..., Expr], Callable[..., Expr], dict[str, Any]]:
        """Return functions from (batch, m, k) and (k, column texel, lane[, batch]) to the factors' elements.

        The last result are further fields of the contraction.
        """

    def contraction(
        self, w: P, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return a contraction in which k is split, so that its innermost loop can be unrolled."""
        step, (left, right, own) = next((s for s in (4, 2) if is_multiple(w.k, s)), 1), self.reads(w, data, weight)

        def output(*i: tirx.Expr) -> tuple[Expr, Expr, Expr, Expr]:
            *batch, m, n = (i[axis] for axis in w.out_axes)
            return n // LANES, number_of(batch, w.batch), m, n % LANES

        return Contraction(
            inputs=[data, weight],
            extents=(w.out_texels, w.batches, w.m),
            reduce={"k": w.k // step, "kstep": step},
            lhs=lambda _o, h, m, _lane, k, s: left(h, m, k * step + s),
            rhs=lambda o, lane, k, s, *h: right(k * step + s, o, lane, *h),
            output=output,
            output_shape=w.output_shape,
            is_padded=False,
            **own,
        )

    def bias(self, w: P) -> tuple[Shape, Callable[..., tuple[tirx.Expr, ...]]]:
        return (w.n,), lambda *i: (i[w.out_axes[-1]],)

    def has_whole_texels(self, w: P) -> bool:
        return is_multiple(w.n, LANES)

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: P, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output as loops (o, h, w, lane): columns split into texels, batch axes fused."""
        loops = sch.get_loops(output)
        *batch, m, n = (loops[axis] for axis in w.out_axes)
        o, lane = sch.split(n, [None, LANES])
        sch.reorder(o, *batch, m, lane)
        return sch, (o, sch.fuse(*batch) if batch else sch.add_unit_loop(m), m, lane)


@dataclass(frozen=True, kw_only=True)
class Dense(Product):
    """A matrix product with a constant right side: (m, k) x (k, n).

    rows, tiles, axes, shift: the fields of the `RowOrder` in which rows of the data are read. Empty without one.
    """

    OPTIONAL = frozenset({"rows", "tiles", "axes", "shift"})
    batch, out_axes = (), (0, 1)

    m: int
    k: int
    n: int
    rows: str = ""
    tiles: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    shift: tuple[int, ...] = ()
    dtype: str = "float32"

    def with_order(self, order: RowOrder) -> Dense:
        """Return the same product with rows read in an order."""
        return replace(self, rows=order.kind, tiles=order.tiles, axes=order.axes, shift=order.shift)

    @property
    def order(self) -> RowOrder | None:
        """The order in which rows of the data are read. None if it is their own."""
        if not self.rows:
            return None
        return RowOrder(kind=self.rows, tiles=self.tiles, axes=self.axes, shift=self.shift)

    def row(self, row: Any) -> Any:
        """Return the row of the data that is read for a row of the output: expressions of TIR, or arrays."""
        return row if self.order is None else self.order.source(row)

    @property
    def name(self) -> str:
        return f"{self.m}x{self.k}_{self.n}" + (f"_{self.rows}" if self.rows else "")


class DenseFamily(ProductFamily[Dense]):
    """Products of rows, with any number of leading dimensions, and a constant matrix."""

    name = "dense"
    workload = Dense
    operators = frozenset({"relax.matmul", "relax.reshape", "relax.concat"})
    typical = (Dense(m=13, k=31, n=37), Dense(m=1, k=64, n=40))

    def match(self, call: relax.Call) -> Dense | None:
        """Match a product with a constant matrix on the right. Leading dimensions of the left side become rows."""
        data, weight = call.args
        left, right = shape_of(data), shape_of(weight)
        if not is_constant(weight) or left is None or right is None or len(right) != 2 or len(left) < 2:
            return None
        if dtype_of(data) not in FLOATS or dtype_of(weight) != dtype_of(data):
            return None
        return Dense(m=math.prod(left[:-1]), k=left[-1], n=right[1], dtype=dtype_of(data))

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return the plain definition on a matrix. Rows of packed channels are read without unpacking.

        Operators before the product that only move its rows become part of its reads, and so do operators behind it.
        """
        if op_name(call) != "relax.matmul":
            return self._with_moved_rows(call, graph)
        work = self.match(call)
        if work is None:
            return None
        data, weight = call.args[0], call.args[1].value.numpy()
        left, packed = static_shape(data), graph.flattened_source(data)
        if packed is not None:
            # Reorder the weight's rows to the order of packed channels, so that the data needs no unpacking.
            _, c, h, w = static_shape(packed)
            order = weight.reshape(c // LANES, LANES, h, w, -1).transpose(0, 2, 3, 1, 4).reshape(weight.shape)
            return self.emit(graph, work, graph.bb.emit(relax.op.reshape(graph.packed_expr(packed), left)), order)
        steps = list(steps_back(graph.bound.get(data), graph.bound))
        for count in range(len(steps), 0, -1):
            if (moved := order_of(steps[:count])) is not None:
                data, work = steps[count - 1].source, work.with_order(moved)
                break
        return self._in_shape((*left[:-1], work.n), self._of_rows(data, work, weight, graph), graph)

    def _with_moved_rows(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return a product, and a bias, with the order of rows that `call` gives them."""
        steps = list(steps_back(call, graph.bound))
        if not steps or any(len(graph.users.get(step.source, ())) != step.readers for step in steps):
            return None
        product: Any = graph.bound.get(steps[-1].source)
        bias = None
        if op_name(product) == "relax.add" and is_constant(product.args[1]):
            (source, bias), columns = product.args, static_shape(product)[-1:]
            if static_shape(bias) != columns or len(graph.users.get(source, ())) != 1:
                return None
            product = graph.bound.get(source)
        work = self.match(product) if op_name(product) == "relax.matmul" else None
        if work is None or graph.flattened_source(product.args[0]) is not None or (order := order_of(steps)) is None:
            return None
        data, weight = product.args
        total = self._of_rows(data, work.with_order(order), weight.value.numpy(), graph)
        if bias is not None:
            total = graph.bb.emit(relax.op.add(total, bias))
        return self._in_shape(static_shape(call), total, graph)

    def _of_rows(self, data: relax.Expr, work: Dense, weight: np.ndarray, graph: Graph) -> relax.Expr:
        return self.emit(graph, work, self._in_shape((work.m, work.k), graph.plain_expr(data), graph), weight)

    @staticmethod
    def _in_shape(shape: Shape, value: relax.Expr, graph: Graph) -> relax.Expr:
        return value if static_shape(value) == shape else graph.bb.emit(relax.op.reshape(value, shape))

    def operands(self, w: Dense) -> Mapping[str, Shape]:
        return {"data": (w.m, w.k), "weight": (w.k, w.out_texels, LANES)}

    def pack_weight(self, w: Dense, weight: np.ndarray) -> np.ndarray:
        """Return the weight in texels, padded with zeros: (k, n) -> (k, ceil(n / 4), 4)."""
        return np.pad(weight, [(0, 0), (0, -w.n % LANES)]).reshape(w.k, w.out_texels, LANES)

    def reads(
        self, w: Dense, data: te.Tensor, weight: te.Tensor
    ) -> tuple[Callable[..., Expr], Callable[..., Expr], dict[str, Any]]:
        own = {"axes": ("n", "", "m"), "layouts": ("m:k", "k:n:lane", "m:n"), "lhs_neighbours": "reduction"}
        return lambda _, m, k: data[w.row(m), k], lambda k, o, lane: weight[k, o, lane], own

    def matrices(self, w: Dense) -> Set[str]:
        """Return the data, except a single row, because a group reads its elements only once."""
        return {"data"} if w.m > 1 and w.k % LANES == 0 else frozenset()

    def case(self, w: Dense) -> Case:
        return Case(name=w.name, inputs=[(w.m, w.k)], weights=[(w.k, w.n)], build=relax.op.matmul, compute=np.matmul)


FAMILY = DenseFamily()
