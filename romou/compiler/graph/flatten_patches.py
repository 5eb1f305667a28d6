"""Compute convolutions of a picture's patches, whose windows do not overlap, as products of the flattened patches.

    conv2d(x, w: (384, 3, 16, 16), strides=16)      ->      conv2d(flatten(x), reshape(w, (384, 768, 1, 1)))

    flatten(x) = reshape(transpose(reshape(x, (1, 3, 14, 16, 14, 16)), …), (1, 768, 14, 14))

Vision transformers begin with such a convolution. A picture has three channels of a texel's four, so a quarter of the
products would be with padding, and a window of 16x16 fills the registers. The patches are flattened by the kernel that
packs the channels, so there is no kernel more. Millions of instructions for 3x224x224 -> 384 in patches of 16x16 under
Mesa's compilers, fp32, that kernel included: 146 with 45 spills -> 93 on Adreno 630, 174 with 47 spills -> 118 on 660,
107 -> 99 on Mali-G76.
"""

from __future__ import annotations

import tvm
from tvm import relax

from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import shape_of, static_shape
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import LANES

# Smaller windows take as many instructions either way: 3x224x224 -> 96 in patches of 4x4 0.95 to 1.12 times as many.
_LEAST_SIDE = 8


def flatten_patches(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite `main`. Return `mod` itself if it has no such convolution."""
    if not any(_is_of_patches(binding.value) for binding in bindings_of(mod["main"])):
        return mod
    return rebuild_main(mod, _Flattener())


def _is_of_patches(value: relax.Expr) -> bool:
    """Return whether a value is a convolution of a picture's patches that cover the picture exactly once."""
    if op_name(value) != "relax.nn.conv2d":
        return False
    data, weight, attrs = shape_of(value.args[0]), shape_of(value.args[1]), value.attrs
    if data is None or weight is None or (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
        return False
    (_, channels, *sides), window = data, weight[2:]
    return (
        channels < LANES
        and int(attrs.groups) == 1
        and min(window) >= _LEAST_SIDE
        and tuple(map(int, attrs.strides)) == tuple(window)
        and set(map(int, attrs.padding)) == {0}
        and set(map(int, attrs.dilation)) == {1}
        and all(side % size == 0 for side, size in zip(sides, window, strict=True))
    )


class _Flattener(MainRewriter):
    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding, or the product of a convolution of patches."""
        value = binding.value
        if not _is_of_patches(value):
            return super().visit(binding)
        (n, c, h, w), (outputs, _, rows, columns) = map(static_shape, value.args)
        patches = (h // rows, w // columns)
        parts = relax.op.reshape(self.plain_expr(value.args[0]), (n, c, patches[0], rows, patches[1], columns))
        flat = relax.op.reshape(
            self.bb.emit(relax.op.permute_dims(self.bb.emit(parts), [0, 1, 3, 5, 2, 4])),
            (n, c * rows * columns, *patches),
        )
        weight = relax.op.reshape(self.plain_expr(value.args[1]), (outputs, c * rows * columns, 1, 1))
        product = relax.op.nn.conv2d(self.bb.emit(flat), self.bb.emit(weight), out_dtype=value.attrs.out_dtype)
        self.plain[binding.var] = self.bb.emit(product)
        return None
