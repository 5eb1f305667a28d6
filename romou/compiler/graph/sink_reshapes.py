"""Move reshapes behind the element-wise operators that follow a contraction, which then become its epilogue.

    dense(x) -> reshape -> gelu -> reshape -> dense        ->      dense(x) -> gelu -> dense
    dense(x) -> reshape -> add(_, skip)                    ->      dense(x) -> add(_, reshape(skip)) -> reshape

A reshape between a contraction and its activation would end the kernel. A reshape between kernels is free, because it
is a view. An operator stays with a reduction that reads its result, as the squares of a norm do, if the contraction's
own output is stored anyway: a reshape between them would make a kernel of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from romou.compiler.graph.keep_packed import BINARY, COMPARISON, FULL_TEXELS, UNARY, WHERE
from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.operators.families.bases.contraction import OUT_ELEMWISE_FUSABLE
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import Shape, dtype_of, is_constant, shape_of, static_shape
from romou.compiler.tir.origin import bindings_of

_REDUCTIONS = {"relax.max", "relax.mean", "relax.min", "relax.sum"}
ELEMENTWISE = UNARY | BINARY | COMPARISON | FULL_TEXELS | {WHERE, "relax.astype"}


def sink_reshapes(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite `main`. Its contractions must be calls of TIR functions that fusion can extend."""
    return rebuild_main(mod, _Sinker(mod))


class _Sinker(MainRewriter):
    """Rewriter that delays reshapes of contractions.

    plain: each variable in the shape that it has in the old graph.
    unshaped: variables in the shape that their contraction computes.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__()
        self._mod = mod
        # The calls that read each variable.
        self._readers: dict[relax.Var, list[relax.Call]] = {}
        for binding in bindings_of(mod["main"]):
            for arg in set(binding.value.args) if isinstance(binding.value, relax.Call) else ():
                self._readers.setdefault(arg, []).append(binding.value)
        self._unshaped: dict[relax.Var, relax.Expr] = {}
        # Results of contractions and of their epilogues.
        self._open: set[relax.Expr] = set()

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """Return a variable in the shape of the old graph."""
        if var in self._unshaped and var not in self.plain:
            self.plain[var] = self.bb.emit(relax.op.reshape(self._unshaped[var], static_shape(var)))
        return super().plain_var(var)

    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding, or delay its reshape."""
        var, value = binding.var, binding.value
        name = op_name(value) if isinstance(value, relax.Call) else ""
        if name == "relax.reshape" and shape_of(var) is not None:
            source = value.args[0]
            whole = self._unshaped.get(source, self.plain.get(source, source))
            if whole in self._open:
                if shape_of(whole) == shape_of(var):
                    self.plain[var] = whole
                else:
                    self._unshaped[var] = whole
                return
        is_moved = name in ELEMENTWISE and any(a in self._unshaped for a in value.args)
        if is_moved and not self._belongs_to_reductions(binding):
            moved = self._moved(value, shape_of(var))
            if moved is not None:
                self._unshaped[var] = moved
                self._open.add(moved)
                return
        super().visit(binding)
        if (name == "relax.call_tir" and self._is_contraction(value)) or (
            name in ELEMENTWISE and any(a in self._open for a in self.plain_expr(value).args)
        ):
            self._open.add(self.plain[var])

    def _belongs_to_reductions(self, binding: relax.VarBinding) -> bool:
        """Return whether only reductions read the result, and the operands in memory have other readers, too."""
        readers = self._readers.get(binding.var, [])
        return bool(readers) and all(
            [op_name(reader) in _REDUCTIONS for reader in readers]
            + [len(self._readers[arg]) > 1 for arg in binding.value.args if arg in self._unshaped]
        )

    def _is_contraction(self, call: relax.Call) -> bool:
        attributes = self._mod[call.args[0]].attrs
        return attributes is not None and int(attributes.get("op_pattern", -1)) == OUT_ELEMWISE_FUSABLE

    def _moved(self, call: relax.Call, shape: Shape | None) -> relax.Expr | None:
        """Return an element-wise operator in its contraction's shape, or None if an operand cannot take this shape."""
        wholes = [self._unshaped[a] for a in call.args if a in self._unshaped]
        inner = shape_of(wholes[0])
        if inner is None or shape is None or any(shape_of(whole) != inner for whole in wholes):
            return None
        makers: list[Callable[[], relax.Expr]] = []
        for arg in call.args:
            maker = self._operand(arg, shape, inner)
            if maker is None:
                return None
            makers.append(maker)
        # Operands are emitted only now, so that nothing is left over if the operator stays.
        return self.bb.emit(relax.Call(call.op, [maker() for maker in makers], call.attrs))

    def _operand(self, arg: relax.Expr, shape: Shape, inner: Shape) -> Callable[[], relax.Expr] | None:
        if not isinstance(arg.ty, relax.TensorType):
            return lambda: arg
        arg_shape = shape_of(arg)
        if arg in self._unshaped:
            return (lambda: self._unshaped[arg]) if arg_shape == shape else None
        if arg_shape is None:
            return None
        size = int(np.prod(arg_shape, dtype=np.int64))
        if is_constant(arg):
            if size == 1:
                return lambda: relax.const(arg.value.numpy().reshape(()), dtype_of(arg))
            if shape[-1] == inner[-1] == arg_shape[-1] == size:
                return lambda: relax.const(arg.value.numpy().reshape(size), dtype_of(arg))
        return (lambda: self.bb.emit(relax.op.reshape(self.plain_expr(arg), inner))) if arg_shape == shape else None
