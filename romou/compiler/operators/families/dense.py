"""Dense layer: activations times a constant matrix with columns packed by four.

data (m, k)      weight (k, ceil(n / 4), 4)      output (m, n)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction_family import ContractionFamily
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.workload import Workload, stored_as
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.tir.expressions import FLOATS, Shape, dtype_of, is_constant, shape_of, static_shape
from romou.compiler.tir.primitives import LANES


@dataclass(frozen=True, kw_only=True)
class Dense(Workload):
    """A matrix product with a constant right side: (m, k) x (k, n)."""

    m: int
    k: int
    n: int
    dtype: str = "float32"

    @property
    def out_texels(self) -> int:
        """Texels of output columns."""
        return -(-self.n // LANES)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    @property
    def name(self) -> str:
        return f"{self.m}x{self.k}_{self.n}"


class DenseFamily(ContractionFamily[Dense]):
    """Products of rows, with any number of leading dimensions, and a constant matrix."""

    name = "dense"
    workload = Dense
    operators = frozenset({"relax.matmul"})
    stores_rows = True
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
        """Return the plain definition on a matrix. Rows of packed channels are read without unpacking."""
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
        plain = graph.plain_expr(data)
        if len(left) == 2:
            return self.emit(graph, work, plain, weight)
        flat = graph.bb.emit(relax.op.reshape(plain, (work.m, work.k)))
        return graph.bb.emit(relax.op.reshape(self.emit(graph, work, flat, weight), (*left[:-1], work.n)))

    def operands(self, w: Dense) -> Mapping[str, Shape]:
        return {"data": (w.m, w.k), "weight": (w.k, w.out_texels, LANES)}

    def bias(self, w: Dense) -> tuple[Shape, Callable[..., tuple[tirx.Expr, ...]]]:
        return (w.n,), lambda _m, n: (n,)

    def pack_weight(self, w: Dense, weight: np.ndarray) -> np.ndarray:
        """Return the weight in texels, padded with zeros: (k, n) -> (k, ceil(n / 4), 4)."""
        full = np.zeros((w.k, w.out_texels * LANES), weight.dtype)
        full[:, : w.n] = weight
        return full.reshape(w.k, w.out_texels, LANES)

    def define(self, w: Dense, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, w.k), "k")
        total = te.compute(
            (w.m, w.n),
            lambda m, n: te.sum(
                data[m, k].astype("float32") * weight[k, n // LANES, n % LANES].astype("float32"), axis=k
            ),
            name="dense",
            attrs=w.block_attrs(self.name),
        )
        return stored_as(w.dtype, total)

    def contraction(
        self, w: Dense, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return a contraction with rows as pixels. k is split, so that its innermost loop can be unrolled."""
        step = next(s for s in (4, 2, 1) if w.k % s == 0)
        return Contraction(
            inputs=[data, weight],
            extents=(w.out_texels, 1, w.m),
            reduce={"k": w.k // step, "kstep": step},
            lhs=lambda _o, _h, m, _lane, k, s: data[m, k * step + s],
            rhs=lambda o, lane, k, s: weight[k * step + s, o, lane],
            output=lambda m, n: (n // LANES, 0, m, n % LANES),
            output_shape=(w.m, w.n),
            axes=("n", "", "m"),
            layouts=("m:k", "k:n:lane", "m:n"),
            lhs_neighbours="reduction",
            is_padded=False,
        )

    def has_whole_texels(self, w: Dense) -> bool:
        return w.n % LANES == 0

    def matrices(self, w: Dense) -> Set[str]:
        """Return the data, except a single row, because a group reads its elements only once."""
        return {"data"} if w.m > 1 and w.k % LANES == 0 else frozenset()

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: Dense, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output (m, n) as loops (o, h, w, lane), with columns split into texels."""
        m, n = sch.get_loops(output)
        o, lane = sch.split(n, [None, LANES])
        sch.reorder(o, m, lane)
        return sch, (o, sch.add_unit_loop(m), m, lane)

    def case(self, w: Dense) -> Case:
        return Case(name=w.name, inputs=[(w.m, w.k)], weights=[(w.k, w.n)], build=relax.op.matmul, compute=np.matmul)


FAMILY = DenseFamily()
