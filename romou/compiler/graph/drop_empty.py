"""Replace tensors without elements: some devices reject an empty launch, and a kernel's smallest tile is not empty.

    y = relu(slice(x))                  ->      y = const([], (0, 8))
    z = concat(x, slice(x))             ->      z = x
    s = sum(slice(x), axis=0)           ->      s = const(0, (8,))
    p = pad(slice(x), 1)                ->      p = pad(const([], (0, 8)), 1), which constant folding computes

An empty output becomes an allocation, because TVM's virtual machine cannot return an empty constant.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax

from romou.base.errors import ModelError
from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import Shape, dtype_of, is_constant, shape_of, static_shape
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.traversal import with_fields

# Reduction -> its result for no elements.
_OF_NOTHING = {"sum": 0.0, "matmul": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf, "mean": math.nan}
# Scatter operators: if the indices, the second operand, are empty, the first operand is the result.
_UPDATES = ("relax.scatter_elements", "relax.scatter_nd")


def drop_empty(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite `main` so that no operator reads or writes an empty tensor. Return `mod` itself if there are none.

    Raises
    ------
    ModelError
        An operator computes elements from an empty tensor and from tensors known only at run time.
    """
    bindings = bindings_of(mod["main"])
    if not any(_is_empty(binding.var) for binding in bindings):
        return mod
    return rebuild_main(mod, _Dropper(mod["main"].body.body))


def _is_empty(expr: relax.Expr) -> bool:
    shape = shape_of(expr)
    return shape is not None and math.prod(shape) == 0


def _filled(number: float, shape: Shape, dtype: str) -> np.ndarray:
    """Return an array filled with `number`, rounded to the nearest value of an integer type."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        number = 0 if math.isnan(number) else min(max(number, np.iinfo(kind).min), np.iinfo(kind).max)
    return np.full(shape, number, kind)


class _Dropper(MainRewriter):
    """Rewriter that drops empty tensors. result: the expression that `main` returns."""

    def __init__(self, result: relax.Expr) -> None:
        super().__init__()
        self.result = result

    def match_cast(self, binding: relax.MatchCast) -> None:
        """Emit a binding that only states a type, unless the type is empty."""
        if _is_empty(binding.var):
            self.visit(binding)
        else:
            super().match_cast(binding)

    def visit(self, binding: relax.Binding) -> None:
        """Emit a binding unless its result is empty."""
        var, value = binding.var, binding.value
        if _is_empty(var):
            empty = relax.const(np.zeros(static_shape(var), dtype_of(var)), dtype_of(var))
            self.plain[var] = self._output(empty) if var.same_as(self.result) else empty
        elif isinstance(value, relax.Tuple):
            self.plain[var] = self.bb.emit(
                relax.Tuple([self._output(self.plain_expr(field)) for field in value.fields])
            )
        else:
            self.plain[var] = self.bb.emit(self._without_empty(value))

    def _output(self, value: relax.Expr) -> relax.Expr:
        """Return `value`, as an allocation if it is an empty constant."""
        if not (is_constant(value) and _is_empty(value)):
            return value
        return self.bb.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(static_shape(value)), dtype_of(value), 0))

    def _without_empty(self, value: relax.Expr) -> relax.Expr:
        if not isinstance(value, relax.Call):
            return self.plain_expr(value)
        name = op_name(value)
        if name == "relax.concat" and isinstance(value.args[0], relax.Tuple):
            fields = [self.plain_expr(field) for field in value.args[0].fields if not _is_empty(field)]
            return relax.op.concat(fields, int(value.attrs.axis)) if len(fields) > 1 else fields[0]
        if name in _UPDATES and _is_empty(value.args[1]):
            return self.plain_expr(value.args[0])
        if name.removeprefix("relax.") in _OF_NOTHING and _is_empty(value.args[0]):
            return relax.const(
                _filled(_OF_NOTHING[name.removeprefix("relax.")], static_shape(value), dtype_of(value)), dtype_of(value)
            )
        read = [self.plain_expr(arg) for arg in value.args]
        if any(_is_empty(arg) for arg in read) and not all(
            is_constant(arg) for arg in read if isinstance(arg.ty, relax.TensorType)
        ):
            raise ModelError(
                f"{name.removeprefix('relax.')} reads a tensor without elements beside others; leave that tensor out of"
                " the model"
            )
        return with_fields(value, args=read)
