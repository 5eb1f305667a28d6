"""Operators of onnxruntime's domain com.microsoft that exporters of language models write. The wheel lacks them.

It converts some others, but without optional inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax, te, tirx

from tvm_patches.domains import MICROSOFT
from tvm_patches.onnx_converters.node import Node, converter, shape_of

op = relax.op


@converter("Gelu", "BiasGelu", "FastGelu", domain=MICROSOFT)
def gelu(node: Node) -> relax.Expr:
    """Convert to the exact form, and FastGelu to the form with a hyperbolic tangent. A bias is added before."""
    x = op.add(node.input(0), node.input(1)) if node.has(1) else node.input(0)
    return (op.nn.gelu_tanh if node.operator == "FastGelu" else op.nn.gelu)(x)


@converter("QuickGelu", domain=MICROSOFT, is_single=True)
def quick_gelu(node: Node) -> relax.Expr:
    x = node.input(0)
    alpha = relax.const(node.attributes.get("alpha", 1.702), str(x.ty.dtype))
    return op.multiply(x, op.sigmoid(op.multiply(x, alpha)))


@converter("SimplifiedLayerNormalization", "LayerNormalization", domain=MICROSOFT)
def layer_normalization(node: Node) -> Sequence[relax.Expr]:
    """Normalize over the last axis. onnxruntime writes these names into the standard's domain."""
    axis = node.attributes.get("axis", -1) % len(node.shape())
    if axis != len(node.shape()) - 1:
        raise ValueError(f"axis={axis} of a tensor of {len(node.shape())} axes: only the last axis is supported")
    results = _normalized(node, node.input(0), 1, 2)
    # The first statistic of a SimplifiedLayerNormalization is the inverse deviation.
    return [results[0], *results[2:]] if node.operator.startswith("Simplified") else results


@converter("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: Node) -> Sequence[relax.Expr]:
    """Normalize input + skip + bias over the last axis. The sum is the fourth output."""
    bias = 3 if "Simplified" in node.operator else 4
    total = op.add(node.input(0), node.input(1))
    total = node.emit(op.add(total, node.input(bias)) if node.has(bias) else total)
    return [*_normalized(node, total, 2, 3), total]


def _normalized(node: Node, data: relax.Expr, scale: int, shift: int) -> list[relax.Expr]:
    """Return the normalized rows, the mean and the inverse deviation, which readers rarely want.

    scale, shift: positions of these inputs. "Simplified" operators neither subtract a mean nor add a shift.
    """
    is_simplified = "Simplified" in node.operator
    epsilon, dtype = node.attributes.get("epsilon", 1e-5 if "Skip" not in node.operator else 1e-12), str(data.ty.dtype)
    gamma = node.input(scale)
    if is_simplified:
        result = op.nn.rms_norm(data, gamma, [-1], epsilon)
    else:
        zeros = relax.const(np.zeros(shape_of(gamma), dtype), dtype)
        result = op.nn.layer_norm(data, gamma, node.input(shift) if node.has(shift) else zeros, [-1], epsilon)
    if not any(node.is_wanted[1:3]):
        return [result, data, data]
    wide = op.astype(data, "float32")
    mean = node.emit(op.mean(wide, [-1], keepdims=True))
    centred = wide if is_simplified else op.subtract(wide, mean)
    variance = op.mean(op.multiply(centred, centred), [-1], keepdims=True)
    return [result, mean, op.rsqrt(op.add(variance, relax.const(epsilon, "float32")))]


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Heads of size D in a tensor (B, S, W), side by side from column `first` on, or in a tensor (B, N, S, D)."""

    data: relax.Expr
    count: int
    size: int
    first: int = 0

    @property
    def is_outer(self) -> bool:
        """Whether the axis of the heads is outside of the rows."""
        return len(shape_of(self.data)) == 4

    @property
    def rows(self) -> int:
        return shape_of(self.data)[2 if self.is_outer else 1]

    def load(self, data: te.Tensor, b: tirx.Expr, s: tirx.Expr, n: tirx.Expr, d: tirx.Expr) -> tirx.Expr:
        """Return lane d of head n in row s."""
        return data[b, n, s, d] if self.is_outer else data[b, s, self.first + n * self.size + d]

    def joined(self, node: Node) -> relax.Expr:
        """Return the heads as a tensor (B, S, N * D) without other columns."""
        width = self.count * self.size
        if shape_of(self.data)[2] == width:
            return self.data
        return node.emit(op.strided_slice(self.data, [2], [self.first], [self.first + width]))

    def rotated(
        self,
        node: Node,
        caches: tuple[relax.Expr, relax.Expr],
        positions: Sequence[relax.Expr],
        position: Callable[[Sequence[te.Tensor], tirx.Expr, tirx.Expr], tirx.Expr],
        *,
        is_interleaved: bool,
    ) -> Heads:
        """Return the heads with their first 2 * R lanes rotated.

            pair of angle i    lanes i and i + R, or 2 * i and 2 * i + 1 if they are interleaved
            first              first * cos - second * sin
            second             second * cos + first * sin

        caches: cosines and sines, (positions, R).
        position: (positions, batch, row) -> row of the caches.
        """
        length, half = shape_of(caches[0])

        def rotary(x: te.Tensor, cos: te.Tensor, sin: te.Tensor, *given: te.Tensor) -> te.Tensor:
            def lane(b: tirx.Expr, s: tirx.Expr, n: tirx.Expr, d: tirx.Expr) -> tirx.Expr:
                row = tirx.max(tirx.min(position(given, b, s), tirx.const(length - 1, "int64")), tirx.const(0, "int64"))
                if is_interleaved:
                    angle, partner, is_first = d // 2, d + 1 - d % 2 * 2, d % 2 < 1
                else:
                    angle, partner, is_first = d % half, (d + half) % (2 * half), d < half
                own, other = (self.load(x, b, s, n, at).astype("float32") for at in (d, partner))
                side = other * sin[row, angle].astype("float32")
                turned = own * cos[row, angle].astype("float32") + tirx.Select(is_first, -side, side)
                turned = turned.astype(str(x.dtype))
                if 2 * half == self.size:
                    return turned
                return tirx.if_then_else(d < 2 * half, turned, self.load(x, b, s, n, d))

            if self.is_outer:
                return te.compute(x.shape, lambda b, n, s, d: lane(b, s, n, d), name="rotary")
            shape = (x.shape[0], self.rows, self.count * self.size)
            return te.compute(shape, lambda b, s, c: lane(b, s, c // self.size, c % self.size), name="rotary")

        return replace(self, data=node.compute(rotary, self.data, *caches, *positions), first=0)


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: Node) -> relax.Expr:
    """Rotate pairs of each head by the angles of its position. Data is (B, S, N * D) or (B, N, S, D)."""
    if node.attributes.get("scale", 1.0) != 1.0:
        raise ValueError("a scale other than 1 is not supported")
    shape, heads = node.shape(), node.attributes.get("num_heads", 0)
    size = 2 * node.shape(2)[1]
    if len(shape) == 4:
        size = shape[3]
    elif heads and node.attributes.get("rotary_embedding_dim", 0):
        size = shape[2] // heads
    is_offset = len(node.shape(1)) == 1

    def position(given: Sequence[te.Tensor], b: tirx.Expr, s: tirx.Expr) -> tirx.Expr:
        if is_offset:
            return tirx.Cast("int64", given[0][0]) + tirx.Cast("int64", s)
        return tirx.Cast("int64", given[0][b, s])

    count = shape[1] if len(shape) == 4 else shape[2] // size
    return (
        Heads(data=node.input(0), count=count, size=size)
        .rotated(
            node,
            (node.input(2), node.input(3)),
            (node.input(1),),
            position,
            is_interleaved=bool(node.attributes.get("interleaved", 0)),
        )
        .data
    )


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: Node) -> relax.Expr:
    """Gather rows of a table of quantized blocks, and dequantize them.

    Bytes hold 8 / bits numbers along the last axis, the lowest bits first.
    """
    shape, kind = list(node.shape()), node.kind(0)
    rank, bits, block = len(shape), node.attributes.get("bits", 4), node.attributes.get("block_size", 128)
    axis, along = (
        node.attributes.get(name, value) % rank for name, value in (("gather_axis", 0), ("quantize_axis", 1))
    )
    if kind not in ("uint8", "int4", "uint4"):
        raise ValueError(f"a table of {kind} is not supported; uint8, int4 and uint4 are")
    packed = 8 // bits if kind == "uint8" else 1
    if packed > 1 and (along != rank - 1 or axis == along):
        raise ValueError(f"packed bytes need blocks along the last axis and rows along another, not {along} and {axis}")
    if axis == along:
        raise ValueError("rows along the axis of the blocks are not supported")
    indices = node.input(1)
    rows, places = shape[axis], len(shape_of(indices))
    shape[-1] *= packed
    blocks = node.shape(2)[along]
    if blocks != -(-shape[along] // block):
        raise ValueError(f"{blocks} scales along an axis of {shape[along]} elements in blocks of {block}")
    default = 1 << bits - 1 if kind == "uint8" else 0

    def number(table: te.Tensor, at: Sequence[tirx.Expr]) -> tirx.Expr:
        if packed == 1:
            return table[tuple(at)].astype("int32")
        *outer, last = at
        byte = table[(*outer, last // packed)].astype("int32")
        return (byte >> (last % packed * bits).astype("int32")) & tirx.const((1 << bits) - 1, "int32")

    def gathered(table: te.Tensor, chosen: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Var) -> tirx.Expr:
            row = tirx.Cast("int64", chosen[tuple(i[axis : axis + places])])
            row = tirx.Select(row < 0, row + rows, row)
            row = tirx.max(tirx.min(row, tirx.const(rows - 1, "int64")), 0)
            at = [*i[:axis], row, *i[axis + places :]]
            of_block = [index // block if k == along else index for k, index in enumerate(at)]
            zero = number(zeros[0], of_block) if zeros else tirx.const(default, "int32")
            scale = scales[tuple(of_block)].astype("float32")
            return ((number(table, at) - zero).astype("float32") * scale).astype(str(scales.dtype))

        return te.compute([*shape[:axis], *chosen.shape, *shape[axis + 1 :]], element, name="gathered")

    zeros = [node.input(3)] if node.has(3) else []
    return node.compute(gathered, node.input(0), indices, node.input(2), *zeros)
