"""Reshape, transpose and convert constants of a Relax module at compile time, such as biases and scales.

TVM's constant folding would compile a kernel with LLVM for each of them.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import dtype_of, is_constant, shape_of
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.traversal import copy_of, with_fields

# Type -> types that have all its numbers.
_WIDENED = {
    **dict.fromkeys(("int8", "uint8"), ("int32", "float32")),
    "int32": ("int32",),
    "float16": ("float16", "float32"),
    "float32": ("float32",),
}
_SAME_ORDER = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


def reshape_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Fold reshapes, transposes and conversions of constants.

    add(x, reshape(const, shape))      ->      add(x, const of that shape)
    """
    changed = copy_of(mod)
    changed["main"] = _Reshaper(changed).visit_expr(mod["main"])
    return changed


def has_constant_call(main: relax.Function) -> bool:
    """Return whether an operator reads only constants."""
    return any(_is_constant_call(binding.value) for binding in bindings_of(main))


def _is_constant_call(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and not any(map(relax.analysis.free_vars, value.args))


@mutator
class _Reshaper(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a call by a constant if it only reorders or widens one."""
        call = super().visit_call_(call)
        arguments = [self._value(argument) for argument in call.args]
        name, shape = op_name(call), shape_of(call)
        if name in _SAME_ORDER and is_constant(arguments[0]) and shape is not None:
            return _constant(arguments[0].value.numpy().reshape(shape))
        if name == "relax.astype" and is_constant(arguments[0]):
            types = dtype_of(arguments[0]), dtype_of(call)
            if types[0] in _WIDENED and types[1] in _WIDENED[types[0]]:
                return _constant(arguments[0].value.numpy().astype(types[1]))
        if name == "relax.permute_dims" and is_constant(arguments[0]):
            axes = call.attrs.axes
            return _constant(
                np.ascontiguousarray(
                    np.transpose(arguments[0].value.numpy(), None if axes is None else [int(axis) for axis in axes])
                )
            )
        if all(new is old for new, old in zip(arguments, call.args, strict=True)):
            return call
        return self.builder_.normalize(with_fields(call, args=arguments))

    def _value(self, expr: relax.Expr) -> relax.Expr:
        """Return the constant that a variable is bound to, or `expr` itself."""
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return bound if bound is not None and is_constant(bound) else expr


def _constant(array: np.ndarray) -> relax.Expr:
    return relax.const(array, str(array.dtype))
