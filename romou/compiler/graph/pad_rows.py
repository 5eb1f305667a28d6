"""Rows of attention's scores in whole vectors, on phones.

    keys, values of n tokens, n = 197               keys, values of 200 tokens, the last three zeros
    scores = Q K^T            (…, 197)      ->      scores = Q K^T                          (…, 200)
    weights = softmax(scores)                       weights = softmax(scores + [0 … 0 -inf -inf -inf])
    weights V                                       weights V

Only the keys and values are copied. A row of an odd length starts at an unaligned number, so phones read and write it
number by number. Default configs of attention with 12 heads of 197 tokens and 64 numbers, in millions of instructions
under Mesa's compilers, fp32:

                          Adreno 630        Mali-G76
    Q K^T                  96 -> 81          96 -> 83
    softmax                51 -> 14          28 -> 11
    weights V             102 -> 43         139 -> 48
    copies                   2 x 4             2 x 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax

from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import dtype_of, shape_of, static_shape
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.traversal import with_fields

if TYPE_CHECKING:
    from romou.devices.targets import Target

# Shorter rows are hardly worth a copy of the keys.
_LEAST_TOKENS = 16
_CASTS = frozenset({"relax.astype"})
_ELEMENTWISE = _CASTS | {f"relax.{name}" for name in ("add", "divide", "multiply", "subtract")}


def pad_rows(mod: tvm.IRModule, target: Target, has_sizes: bool = False) -> tvm.IRModule:
    """Return `mod` with padded rows of scores between two products.

    It is `mod` itself on GPUs other than phones', and if rows have a size at run time.
    """
    if has_sizes or not target.limits.is_mobile:
        return mod
    wide, products = _scores_of(mod["main"])
    return rebuild_main(mod, _Padder(wide, products)) if products else mod


def _scores_of(main: relax.Function) -> tuple[set[relax.Var], set[relax.Var]]:
    """Return the values with rows to pad, and the products that sum over such rows."""
    bound = {binding.var: binding.value for binding in bindings_of(main) if isinstance(binding, relax.VarBinding)}
    uses = Counter(var for value in (*bound.values(), main.body.body) for var in relax.analysis.free_vars(value))
    wide, products = set[relax.Var](), set[relax.Var]()
    for var, value in bound.items():
        chain = _chain(value.args[0], bound) if op_name(value) == "relax.matmul" else []
        if chain and all(uses[each] == 1 for each in chain):
            wide.update(chain)
            products.add(var)
    return wide, products


def _chain(
    value: relax.Expr, bound: Mapping[relax.Var, relax.Expr], *, is_behind_softmax: bool = True
) -> list[relax.Var]:
    """Return the values from `value` back to a product, with a softmax on the way. Empty if there is no such way."""
    call, shape = bound.get(value) if isinstance(value, relax.Var) else None, shape_of(value)
    if call is None or shape is None or shape[-1] % LANES == 0 or shape[-1] < _LEAST_TOKENS:
        return []
    name = op_name(call)
    if name == "relax.matmul":
        return [] if is_behind_softmax else [value]
    if name == "relax.nn.softmax" and is_behind_softmax and int(call.attrs.axis) in (-1, len(shape) - 1):
        is_behind_softmax = False
    elif name not in (_CASTS if is_behind_softmax else _ELEMENTWISE):
        return []
    # An operand of a sum may be a mask.
    chains = [
        chain
        for arg in call.args
        if shape_of(arg) == shape and (chain := _chain(arg, bound, is_behind_softmax=is_behind_softmax))
    ]
    return [value, *chains[0]] if len(chains) == 1 else []


class _Padder(MainRewriter):
    """Emits values of `wide` with padded rows, and sums of `products` over such rows."""

    def __init__(self, wide: Set[relax.Var], products: Set[relax.Var]) -> None:
        super().__init__()
        self._wide, self._products = wide, products
        self._bound: dict[relax.Var, relax.Expr] = {}

    def visit(self, binding: relax.VarBinding) -> None:
        var, call = binding.var, binding.value
        self._bound[var] = call
        if var in self._products:
            operands = [self.plain_expr(call.args[0]), self._padded(call.args[1], -2)]
        elif var not in self._wide:
            super().visit(binding)
            return
        elif op_name(call) == "relax.matmul":
            operands = [self.plain_expr(call.args[0]), self._padded(call.args[1], -1)]
        elif op_name(call) == "relax.nn.softmax":
            operands = [self.bb.emit(relax.op.add(self.plain_expr(call.args[0]), self._row(var)))]
        else:
            # Quotients of padded numbers are finite, so that the sum with -inf is -inf.
            value = 1.0 if op_name(call) == "relax.divide" else 0.0
            operands = [self._operand(arg, static_shape(var)[-1], value) for arg in call.args]
        self.plain[var] = self.bb.emit(with_fields(call, args=operands))

    @staticmethod
    def _row(scores: relax.Var) -> relax.Expr:
        tokens = static_shape(scores)[-1]
        row = [0.0] * tokens + [-np.inf] * (-tokens % LANES)
        return relax.const(np.array(row, dtype_of(scores)), dtype_of(scores))

    def _operand(self, operand: relax.Expr, tokens: int, value: float) -> relax.Expr:
        """Return an operand of an element-wise operator, padded if it has a number for each token."""
        shape = shape_of(operand)
        is_row = operand not in self._wide and shape is not None and len(shape) > 0 and shape[-1] == tokens
        return self._padded(operand, -1, value) if is_row else self.plain_expr(operand)

    def _padded(self, operand: relax.Expr, axis: int, value: float = 0.0) -> relax.Expr:
        """Return an operand with whole vectors along `axis`. What a transpose reads is padded, not its result."""
        bound = self._bound.get(operand) if isinstance(operand, relax.Var) else None
        if bound is not None and op_name(bound) == "relax.permute_dims" and bound.attrs.axes is not None:
            axes = [int(each) for each in bound.attrs.axes]
            return self.bb.emit(relax.op.permute_dims(self._padded(bound.args[0], axes[axis], value), axes))
        shape = static_shape(operand)
        widths = [0] * (2 * len(shape))
        widths[2 * (axis % len(shape)) + 1] = -shape[axis] % LANES
        return self.bb.emit(relax.op.nn.pad(self.plain_expr(operand), widths, "constant", value))
