"""The base of all families of contractions: two factors, a packed weight, and a template made of a marked block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tvm import relax, te, tirx

from romou.compiler.operators.algorithms.operator import Operator, W
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.family import Case, Family, Graph
from romou.compiler.operators.workload import stored_as
from romou.compiler.tir.expressions import Shape, is_constant, static_shape

# TVM's pattern kinds for operators into which element-wise consumers are fused, and for operators without fusion.
OUT_ELEMWISE_FUSABLE, OPAQUE = 4, 8


class ContractionFamily(Operator[W], Family):
    """A family of sums of products.

    typical: small workloads, for `cases`.
    """

    typical: Sequence[W]

    def is_mine(self, w: W) -> bool:
        """Return whether the family handles a workload of its type."""
        return True

    @abstractmethod
    def match(self, call: relax.Call) -> W | None:
        """Return the workload of a call of one of `operators`. None if another family handles it."""

    @abstractmethod
    def operands(self, w: W) -> Mapping[str, Shape]:
        """Return names and shapes of the two factors as the kernel reads them."""

    def define(self, w: W, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        """Return the plain definition, which is fused, and the reference of every candidate."""
        form = self.contraction(w, data, weight, flat=False)
        r = [te.reduce_axis((0, extent), name) for name, extent in form.reduce.items()]

        def value(*i: tirx.Expr) -> tirx.Expr:
            o, h, x, lane = form.output(*i)
            left, right = form.lhs(o, h, x, lane, *r), form.rhs(o, lane, *r, *([h] if form.is_batched else []))
            return te.sum(left.astype("float32") * right.astype("float32"), axis=r)

        total = te.compute(form.output_shape, value, name=self.name, attrs=w.block_attrs(self.name))
        return stored_as(w.dtype, total)

    def kernel_shape(self, w: W, shape: Shape) -> Shape:
        """Return the shape that the family gives a second factor of `shape` in the graph."""
        return shape

    def pack_weight(self, w: W, weight: np.ndarray) -> np.ndarray:
        """Return a constant second factor as the kernel reads it. Missing lanes are zeros."""
        return weight

    def stored_data(self, w: W, data: relax.Expr, graph: Graph) -> tuple[W, relax.Expr]:
        """Return the first factor in the type that the kernel reads, and the workload with that type."""
        return w, data

    def stored_weight(self, w: W, weight: np.ndarray) -> np.ndarray:
        """Return the packed weight in the type that it has in memory."""
        return self.pack_weight(w, weight)

    def pack_at_run_time(self, w: W, weight: te.Tensor) -> te.Tensor:
        """Return a stage, named `PACKED`, that packs a computed second factor as the kernel reads it."""
        return weight

    @abstractmethod
    def bias(self, w: W) -> tuple[Shape, Callable[..., tuple[tirx.Expr | int, ...]]]:
        """Return the shape of a bias, and its index at an index of the output."""

    @abstractmethod
    def case(self, w: W) -> Case:
        """Return a workload as a user's model has it."""

    @property
    def cases(self) -> list[Case]:
        return [self.case(w) for w in self.typical]

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Replace a call by the plain definition with a packed weight."""
        work = self.match(call)
        if work is None:
            return None
        work, data = self.stored_data(work, call.args[0], graph)
        weight = call.args[1]
        left = graph.packed_expr(data) if self.is_packed else graph.plain_expr(data)
        if is_constant(weight):
            return self.emit(
                graph, work, left, weight.value.numpy().reshape(self.kernel_shape(work, static_shape(weight)))
            )
        right, shape = graph.plain_expr(weight), static_shape(weight)
        if self.kernel_shape(work, shape) != shape:
            right = graph.bb.emit(relax.op.reshape(right, self.kernel_shape(work, shape)))
        return self.emit_define(graph, lambda x, y: self.define(work, x, self.pack_at_run_time(work, y)), left, right)

    def emit(self, graph: Graph, w: W, data: relax.Expr, weight: np.ndarray) -> relax.Expr:
        """Emit a call of the plain definition with a constant weight, which is packed here."""
        packed = relax.const(self.stored_weight(w, weight), w.weight_dtype)
        return self.emit_define(graph, lambda *tensors: self.define(w, *tensors), data, packed)

    def emit_define(self, graph: Graph, define: Callable[..., te.Tensor], *operands: relax.Expr) -> relax.Expr:
        """Emit a call of a function into which element-wise consumers are fused."""
        return graph.bb.emit_te(
            define, *operands, primfunc_name_hint=self.name, primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE}
        )

    def template_of(self, func: tirx.PrimFunc) -> ContractionTemplate | None:
        return ContractionTemplate.of(func, self)

    def function(self, w: W, *, has_epilogue: bool = True, is_weight_computed: bool = False) -> tirx.PrimFunc:
        """Return the operator as a fused function, followed by a bias and a ReLU if `has_epilogue`.

        is_weight_computed: whether the weight changes from call to call, so that the function packs it.
        """
        shapes = dict(self.operands(w))
        if is_weight_computed:
            shapes["weight"] = self.kernel_shape(w, tuple(self.case(w).weights[0]))
        types = w.data_dtype, w.dtype if is_weight_computed else w.weight_dtype
        operands = [
            te.placeholder(shape, dtype, name) for (name, shape), dtype in zip(shapes.items(), types, strict=True)
        ]
        total = self.define(
            w, operands[0], self.pack_at_run_time(w, operands[1]) if is_weight_computed else operands[1]
        )
        if not has_epilogue:
            return te.create_prim_func([*operands, total])
        shape, bias_index = self.bias(w)
        bias, zero = te.placeholder(shape, w.dtype, "bias"), tirx.const(0, w.dtype)
        return te.create_prim_func(
            [
                *operands,
                bias,
                te.compute(total.shape, lambda *i: te.max(total[i] + bias[bias_index(*i)], zero), name="relu"),
            ]
        )
