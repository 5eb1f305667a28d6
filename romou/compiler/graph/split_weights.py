"""Constant weights that are larger than a buffer may be, in several: each gives some of the output channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax

from romou.compiler.graph.rewrite import Walker, rebuild_main
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import bytes_of, dtype_of, is_constant, shape_of
from romou.compiler.tir.primitives import LANES

if TYPE_CHECKING:
    from romou.devices.targets import Target

# Operator -> the axes of output channels: of its weight, and of its result.
_CHANNELS = {
    "relax.matmul": (1, -1),
    **dict.fromkeys(("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"), (0, 1)),
}


def split_weights(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """matmul(x, w)
    ->  concat(matmul(x, w[:, :n]), matmul(x, w[:, n:]))      for dense layers and convolutions whose weight is above the target's limit.
    """  # noqa: E501
    most = target.limits.max_buffer_bytes
    if most is None or not any(
        _columns(binding.value, most) for block in mod["main"].body.blocks for binding in block.bindings
    ):
        return mod
    return rebuild_main(mod, _Splitter(most))


class _Splitter(Walker):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def visit(self, binding: relax.Binding) -> None:
        if isinstance(binding, relax.MatchCast):
            return self.match_cast(binding)
        call, columns = binding.value, _columns(binding.value, self._most)
        if columns == 0:
            self.plain[binding.var] = self.bb.emit(self.plain_expr(call))
            return None
        (axis, out_axis), data, weight = (
            _CHANNELS[op_name(call)],
            self.plain_expr(call.args[0]),
            call.args[1].value.numpy(),
        )
        slices = np.split(weight, range(columns, weight.shape[axis], columns), axis)
        parts = [
            self.bb.emit(relax.Call(call.op, [data, relax.const(one, str(weight.dtype))], call.attrs)) for one in slices
        ]
        self.plain[binding.var] = self.bb.emit(relax.op.concat(parts, axis=out_axis))
        return None


def _columns(value: relax.Expr, most: int) -> int:
    """Output channels of each slice, whole texels; 0 where the weight fits, or cannot be split."""
    axes = _CHANNELS.get(op_name(value)) if isinstance(value, relax.Call) else None
    if axes is None or not is_constant(value.args[1]) or int(getattr(value.attrs, "groups", 1)) != 1:
        return 0
    shape = shape_of(value.args[1])
    if shape is None or (op_name(value) == "relax.matmul" and len(shape) != 2) or 0 in shape:
        return 0
    # Of a texel of output channels; what lacks in the last one is filled up.
    texel_bytes = bytes_of(shape, dtype_of(value.args[1])) // shape[axes[0]] * LANES
    texels = -(-shape[axes[0]] // LANES)
    if texels * texel_bytes <= most or texel_bytes > most:
        return 0
    # Of about the same size, so that they are few kernels.
    count = -(-texels // (most // texel_bytes))
    return int(-(-texels // count) * LANES)
