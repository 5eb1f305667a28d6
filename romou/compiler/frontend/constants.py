"""Reshape and transpose constants of a Relax module at compile time, such as biases and the weights of dense layers.

TVM's constant folding would compile a kernel with LLVM for each of them.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import is_constant, shape_of

_SAME_ORDER = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


def reshape_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Fold reshapes and transposes of constants.

    add(x, reshape(const, shape))      ->      add(x, const of that shape)
    """
    changed = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=dict(mod.global_infos))
    changed["main"] = _Reshaper(changed).visit_expr(mod["main"])
    return changed


def has_constant_call(main: relax.Function) -> bool:
    """Return whether an operator reads only constants."""
    return any(_is_constant_call(binding.value) for block in main.body.blocks for binding in block.bindings)


def _is_constant_call(value: relax.Expr) -> bool:
    if not isinstance(value, relax.Call):
        return False
    variables: list[relax.Var] = []
    for argument in value.args:
        relax.analysis.post_order_visit(
            argument, lambda expr: variables.append(expr) if isinstance(expr, relax.Var) else None
        )
    return not variables


@mutator
class _Reshaper(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a call by a constant if it only reorders one."""
        call = super().visit_call_(call)
        arguments = [self._value(argument) for argument in call.args]
        name, shape = op_name(call), shape_of(call)
        if name in _SAME_ORDER and is_constant(arguments[0]) and shape is not None:
            return _constant(arguments[0].value.numpy().reshape(shape))
        if name == "relax.permute_dims" and is_constant(arguments[0]):
            axes = call.attrs.axes
            return _constant(
                np.ascontiguousarray(
                    np.transpose(arguments[0].value.numpy(), None if axes is None else [int(axis) for axis in axes])
                )
            )
        if all(new is old for new, old in zip(arguments, call.args, strict=True)):
            return call
        return self.builder_.normalize(relax.Call(call.op, arguments, call.attrs, call.ty_args))

    def _value(self, expr: relax.Expr) -> relax.Expr:
        """Return the constant that a variable is bound to, or `expr` itself."""
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return bound if bound is not None and is_constant(bound) else expr


def _constant(array: np.ndarray) -> relax.Expr:
    return relax.const(array, str(array.dtype))
