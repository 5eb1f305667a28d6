"""Split constant weights that exceed the largest buffer along their output channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax

from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import bytes_of, dtype_of, is_constant, shape_of
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import LANES

if TYPE_CHECKING:
    from romou.devices.targets import Target

# Operator -> axis of the output channels in its weight, and in its result.
_CHANNELS = {
    "relax.matmul": (1, -1),
    **dict.fromkeys(("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"), (0, 1)),
}


def split_weights(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Split dense layers and convolutions with a weight above the target's limit.

    matmul(x, w)      ->      concat(matmul(x, w[:, :n]), matmul(x, w[:, n:]))
    """
    most = target.limits.max_buffer_bytes
    if most is None or not any(_columns(binding.value, most) for binding in bindings_of(mod["main"])):
        return mod
    return rebuild_main(mod, _Splitter(most))


class _Splitter(MainRewriter):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def visit(self, binding: relax.VarBinding) -> None:
        call, columns = binding.value, _columns(binding.value, self._most)
        if columns == 0:
            super().visit(binding)
            return
        axis, out_axis = _CHANNELS[op_name(call)]
        data, weight = self.plain_expr(call.args[0]), call.args[1].value.numpy()
        slices = np.split(weight, range(columns, weight.shape[axis], columns), axis)
        parts = [
            self.bb.emit(relax.Call(call.op, [data, relax.const(part, str(weight.dtype))], call.attrs))
            for part in slices
        ]
        self.plain[binding.var] = self.bb.emit(relax.op.concat(parts, axis=out_axis))


def _columns(value: relax.Expr, most: int) -> int:
    """Return the output channels of each slice, in whole texels. 0 if the weight fits or cannot be split."""
    axes = _CHANNELS.get(op_name(value)) if isinstance(value, relax.Call) else None
    if axes is None or not is_constant(value.args[1]) or int(getattr(value.attrs, "groups", 1)) != 1:
        return 0
    shape = shape_of(value.args[1])
    if shape is None or (op_name(value) == "relax.matmul" and len(shape) != 2) or 0 in shape:
        return 0
    # Bytes of one texel of output channels. The last texel is padded.
    texel_bytes = bytes_of(shape, dtype_of(value.args[1])) // shape[axes[0]] * LANES
    texels = -(-shape[axes[0]] // LANES)
    if texels * texel_bytes <= most or texel_bytes > most:
        return 0
    # The fewest slices that fit, of about equal size.
    count = -(-texels // (most // texel_bytes))
    return int(-(-texels // count) * LANES)
