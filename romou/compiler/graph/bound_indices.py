"""Clamp indices computed at run time to their tensor's extents.

    take(x, i)          ->      take(x, min(max(i, 0), n - 1))
    gather_nd(x, i)     ->      gather_nd(x, min(max(i, 0), extents - 1))

A kernel that reads or writes outside its tensor accesses arbitrary memory. onnxruntime raises an error for an index out
of range. A device cannot raise one without waiting for each kernel, so the kernel takes the nearest element. The
importer has already converted negative indices, which count from the end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from romou.base.errors import BrokenModelError
from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import dtype_of, is_constant, static_shape
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.traversal import with_fields


def bound_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """Clamp the indices in `main` (static shapes). Return `mod` itself if it has none.

    Raises
    ------
    BrokenModelError
        A constant index is out of range.
    """
    bindings = bindings_of(mod["main"])
    return rebuild_main(mod, _Bounder()) if any(op_name(binding.value) in _EXTENTS for binding in bindings) else mod


class _Bounder(MainRewriter):
    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding, with clamped indices if its operator has any."""
        value = binding.value
        if op_name(value) not in _EXTENTS:
            super().visit(binding)
        else:
            data, indices, *rest = (self.plain_expr(arg) for arg in value.args)
            bounded = self._bounded(indices, _EXTENTS[op_name(value)](value), op_name(value).removeprefix("relax."))
            self.plain[binding.var] = self.bb.emit(with_fields(value, args=[data, bounded, *rest]))

    def _bounded(self, indices: relax.Expr, extents: np.ndarray, name: str) -> relax.Expr:
        if is_constant(indices):
            values = indices.value.numpy()
            outside = values[(values < -extents) | (values >= extents)] if values.size else values
            if outside.size:
                raise BrokenModelError(
                    f"{name}: the index {outside.flat[0]} is outside a tensor of {extents.tolist()} elements; correct"
                    " the model"
                )
            return indices
        if name == "scatter_elements":
            return indices  # its kernel bounds them, and counts negative ones from the end
        dtype = dtype_of(indices)
        below = self.bb.emit(relax.op.minimum(indices, relax.const((extents - 1).astype(dtype), dtype)))
        return self.bb.emit(relax.op.maximum(below, relax.const(np.zeros_like(extents, dtype), dtype)))


def _along_axis(call: relax.Call) -> np.ndarray:
    shape = static_shape(call.args[0])
    return np.asarray(shape[int(call.attrs.axis)] if call.attrs.axis is not None else np.prod(shape))


def _of_coordinates(call: relax.Call, first: int) -> np.ndarray:
    return np.asarray(static_shape(call.args[0])[first : first + static_shape(call.args[1])[-1]])


# Operator -> the exclusive upper bounds of its second operand, the indices.
_EXTENTS: dict[str, Callable[[relax.Call], np.ndarray]] = {
    "relax.take": _along_axis,
    "relax.gather_elements": _along_axis,
    "relax.gather_nd": lambda call: _of_coordinates(call, int(call.attrs.batch_dims)),
    "relax.scatter_elements": _along_axis,
    "relax.scatter_nd": lambda call: _of_coordinates(call, 0),
}
