"""Attention of onnxruntime's domain com.microsoft: with caches of keys and values, shared heads, masks and rotations.

The wheel lacks it, or converts it without caches and masks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax, te, tirx

from tvm_patches.domains import MICROSOFT
from tvm_patches.onnx_converters.microsoft import Heads
from tvm_patches.onnx_converters.node import Node, Result, converter, shape_of

op = relax.op

# Positions of the inputs of GroupQueryAttention.
_SEQLENS, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS, _SINK, _Q_NORM, _K_NORM, _QUERIES = 5, 6, 7, 8, 9, 10, 11, 14, 15, 16


@dataclass(frozen=True, kw_only=True)
class _Progress:
    """The positions of a step: new token s of batch b is at begin(b) + s.

    tensors: last position of each batch, and the number of new tokens if rows are padding.
    rows: number of new tokens, with padding.
    """

    tensors: tuple[relax.Expr, ...]
    rows: int

    def count(self, tensors: Sequence[te.Tensor], b: tirx.Expr) -> tirx.Expr:
        """Return the number of new tokens without padding, if that is known."""
        return tirx.Cast("int64", tensors[1][b]) if len(tensors) > 1 else tirx.const(self.rows, "int64")

    def begin(self, tensors: Sequence[te.Tensor], b: tirx.Expr) -> tirx.Expr:
        """Return the number of tokens before the step. A first prompt may be padded on its right."""
        return tirx.max(tirx.Cast("int64", tensors[0][b]) + 1 - self.count(tensors, b), tirx.const(0, "int64"))


@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: Node) -> Sequence[relax.Expr]:
    """Attend to a cache, in which each head of keys and values serves several heads of queries.

    The cache has a fixed length. How much of it is in use is read from `seqlens_k`, so one kernel serves all lengths.
    """
    _refuse(node)
    heads, shared = node.attributes["num_heads"], node.attributes["kv_num_heads"]
    batch, rows, _ = node.shape()
    queries, key, value = _heads_of(node, heads, shared)
    size = value.size
    lasts = node.emit(op.reshape(node.input(_SEQLENS), [batch]))
    progress = _Progress(tensors=(lasts, *([node.input(_QUERIES)] if node.has(_QUERIES) else [])), rows=rows)
    turned, key = (_turned(node, _normal(node, x, at), progress) for x, at in ((queries, _Q_NORM), (key, _K_NORM)))
    keys, values = (_cached(node, new, at, progress) for new, at in ((key, 3), (value, 4)))
    group = heads // shared
    # Heads of one group are rows of one product, so each key is read once for all of them.
    query = op.permute_dims(op.reshape(turned.joined(node), [batch, rows, shared, group, size]), [0, 2, 3, 1, 4])
    query = node.emit(op.reshape(query, [batch, shared, group * rows, size]))
    scores = _scores(node, query, keys, size)
    if cap := node.attributes.get("softcap", 0.0):
        limit = relax.const(cap, str(scores.ty.dtype))
        scores = op.multiply(op.tanh(op.divide(scores, limit)), limit)
    scores = _masked(node, node.emit(scores), progress, group)
    result = node.emit(op.matmul(_weights(node, scores, group), values))
    result = op.permute_dims(op.reshape(result, [batch, shared, group, rows, size]), [0, 3, 1, 2, 4])
    return [op.reshape(result, [batch, rows, heads * size]), keys, values]


def _refuse(node: Node) -> None:
    """Raise ValueError for forms without a conversion."""
    attributes = node.attributes
    for name in ("k_quant_type", "v_quant_type"):
        if attributes.get(name, "NONE") != "NONE":
            raise ValueError(f"{name}={attributes[name]}: a quantized cache is not supported")
    for name in ("sliding_window_cache", "qk_output"):
        if attributes.get(name, 0):
            raise ValueError(f"{name}={attributes[name]} is not supported")
    if not node.has(_SEQLENS):
        raise ValueError("seqlens_k is missing")
    if attributes["num_heads"] % attributes["kv_num_heads"]:
        raise ValueError(f"{attributes['num_heads']} heads do not share {attributes['kv_num_heads']} heads evenly")


def _heads_of(node: Node, heads: int, shared: int) -> tuple[Heads, Heads, Heads]:
    """Return the heads of queries, keys and values in one packed input or in three."""
    width = node.shape()[2]
    size = width // (heads if node.has(1) else heads + 2 * shared)
    firsts = (0, 0, 0) if node.has(1) else (0, heads * size, (heads + shared) * size)
    query, key, value = (
        Heads(data=node.input(i if node.has(1) else 0), count=count, size=size, first=first)
        for i, (count, first) in enumerate(zip((heads, shared, shared), firsts, strict=True))
    )
    return query, key, value


def _normal(node: Node, heads: Heads, weight: int) -> Heads:
    """Normalize each head, if the node has weights for that."""
    if not node.has(weight):
        return heads
    epsilon = node.attributes.get("qk_norm_epsilon", 1e-6)
    epsilon = node.attributes.get("q_norm_epsilon" if weight == _Q_NORM else "k_norm_epsilon", epsilon)
    batch, rows, width = node.shape()[0], heads.rows, heads.count * heads.size
    data = node.emit(op.reshape(heads.joined(node), [batch, rows, heads.count, heads.size]))
    normal = node.emit(op.nn.rms_norm(data, node.input(weight), [-1], epsilon))
    return replace(heads, data=node.emit(op.reshape(normal, [batch, rows, width])), first=0)


def _turned(node: Node, heads: Heads, progress: _Progress) -> Heads:
    """Rotate the heads, if the node does that."""
    if not node.attributes.get("do_rotary", 0):
        return heads

    def position(given: Sequence[te.Tensor], b: tirx.Expr, s: tirx.Expr) -> tirx.Expr:
        if node.has(_POSITIONS):
            return tirx.Cast("int64", given[0][b, s])
        return progress.begin(given, b) + tirx.Cast("int64", s)

    return heads.rotated(
        node,
        (node.input(_COS), node.input(_SIN)),
        (node.input(_POSITIONS),) if node.has(_POSITIONS) else progress.tensors,
        position,
        is_interleaved=bool(node.attributes.get("rotary_interleaved", 0)),
    )


def _cached(node: Node, new: Heads, past: int, progress: _Progress) -> relax.Expr:
    """Return a cache (batch, heads, length, size) with the rows of `new` in their places.

    Its length is that of the past cache, or the total length if that is a constant and longer.
    """
    batch, rows = node.shape()[0], new.rows
    total = node.constant(_TOTAL)
    before = node.shape(past)[2] if node.has(past) else 0
    length = max(before or rows, int(total.reshape(-1)[0]) if total is not None else 0)
    old = [node.input(past)] if before else []

    def cached(data: te.Tensor, *others: te.Tensor) -> te.Tensor:
        tensors = others[len(old) :]

        def element(b: tirx.Var, h: tirx.Var, at: tirx.Var, d: tirx.Var) -> tirx.Expr:
            row = tirx.Cast("int64", at) - progress.begin(tensors, b)
            kept = others[0][b, h, at, d] if old else tirx.const(0, str(data.dtype))
            if old and before < length:
                kept = tirx.if_then_else(at < before, kept, tirx.const(0, str(data.dtype)))
            is_new = tirx.all(row >= 0, row < progress.count(tensors, b))
            return tirx.if_then_else(is_new, new.load(data, b, row, h, d), kept)

        return te.compute((batch, new.count, length, new.size), element, name="cached")

    return node.compute(cached, new.data, *old, *progress.tensors)


def _scores(node: Node, query: relax.Expr, keys: relax.Expr, size: int) -> relax.Expr:
    # A default of 0 is the usual scale.
    scale = relax.const(node.attributes.get("scale", 0.0) or 1 / math.sqrt(size), str(query.ty.dtype))
    return node.emit(op.matmul(op.multiply(query, scale), op.permute_dims(keys, [0, 1, 3, 2])))


def _masked(node: Node, scores: relax.Expr, progress: _Progress, group: int) -> relax.Expr:
    """Add the bias, and hide keys that a token may not see. Row r of a group is token r % rows of head r // rows."""
    window, is_causal = node.attributes.get("local_window_size", -1), node.attributes.get("causal", 1)
    bias = [node.input(_BIAS)] if node.has(_BIAS) else []
    lowest = tirx.const(float(np.finfo(str(scores.ty.dtype)).min), str(scores.ty.dtype))

    def masked(scores: te.Tensor, *others: te.Tensor) -> te.Tensor:
        def element(b: tirx.Var, h: tirx.Var, r: tirx.Var, k: tirx.Var) -> tirx.Expr:
            score, key = scores[b, h, r, k], tirx.Cast("int64", k)
            at = progress.begin(others[len(bias) :], b) + tirx.Cast("int64", r % progress.rows)
            if bias:
                # An extent of one is for all.
                of_all = (b, h * group + r // progress.rows, r % progress.rows, tirx.min(k, bias_shape[3] - 1))
                index = tuple(i if extent > 1 else 0 for i, extent in zip(of_all, bias_shape, strict=True))
                score = score + others[0][index]
            is_seen = key <= (at if is_causal else tirx.Cast("int64", others[len(bias)][b]))
            if window > 0:
                is_seen = tirx.all(is_seen, key > at - window)
            return tirx.Select(is_seen, score, lowest)

        return te.compute(scores.shape, element, name="masked")

    bias_shape = shape_of(bias[0]) if bias else ()
    return node.compute(masked, scores, *bias, *progress.tensors)


def _weights(node: Node, scores: relax.Expr, group: int) -> relax.Expr:
    """Return the softmax of scores. A sink is one more score without a value."""
    has_sink = node.has(_SINK)
    if not has_sink and node.attributes.get("smooth_softmax", 0) <= 0:
        return op.nn.softmax(scores, axis=-1)
    _, shared, lines, _ = shape_of(scores)
    wide = node.emit(op.astype(scores, "float32"))
    sink = relax.const(np.zeros((1, 1, 1, 1), "float32"), "float32")
    if has_sink:
        sink = op.reshape(op.astype(node.input(_SINK), "float32"), [1, shared, group, 1, 1])
        sink = op.broadcast_to(sink, [1, shared, group, lines // group, 1])
        sink = node.emit(op.reshape(sink, [1, shared, lines, 1]))
    peak = node.emit(op.maximum(op.max(wide, [-1], keepdims=True), sink))
    powers = node.emit(op.exp(op.subtract(wide, peak)))
    total = op.add(op.sum(powers, [-1], keepdims=True), op.exp(op.subtract(sink, peak)))
    return node.emit(op.astype(op.divide(powers, total), str(scores.ty.dtype)))


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: Node) -> Sequence[relax.Expr]:
    """Attend with as many heads of keys as of queries. A past of keys and values comes before the new ones."""
    if node.has(8) or node.has(9) or any(node.is_wanted[3:]):
        raise ValueError("shared buffers, beams and the scores as an output are not supported")
    heads = node.attributes["num_heads"]
    if len(node.shape()) == 5:
        query, key, value = (_split_at(node, node.input(0), i) for i in range(3))
    elif node.has(1) and len(node.shape(1)) == 5:
        query = _outer(node, node.input(0), heads)
        key, value = (_split_at(node, node.input(1), i) for i in range(2))
    else:
        query, key, value = (_outer(node, _with_bias(node, i), heads) for i in range(3))
    if node.has(3) and (len(node.shape()) == 5 or len(node.shape(1)) != 3):
        raise ValueError("a bias of packed inputs or of heads is not supported")
    if node.has(6):
        key, value = (node.emit(op.concat([node.input(past), new], axis=2)) for past, new in ((6, key), (7, value)))
    return [_attended(node, query, key, value, mask=4, bias=5), key, value]


@converter("Attention", domain=MICROSOFT)
def attention(node: Node) -> Result:
    """Attend to the input itself, through one product for queries, keys and values."""
    if node.attributes.get("do_rotary", 0) or node.has(6):
        raise ValueError("rotations and shared buffers are not supported")
    heads, width = node.attributes["num_heads"], node.shape(1)[1]
    sizes = node.attributes.get("qkv_hidden_sizes", ()) or (width // 3,) * 3
    product = op.matmul(node.input(0), node.input(1))
    product = node.emit(op.add(product, node.input(2)) if node.has(2) else product)
    ends = np.cumsum((0, *sizes)).tolist()
    query, key, value = (
        _outer(node, op.strided_slice(product, [2], [begin], [end]), heads) for begin, end in itertools.pairwise(ends)
    )
    if node.has(4):
        olds = [op.squeeze(op.take(node.input(4), relax.const([i], "int64"), axis=0), [0]) for i in range(2)]
        key, value = (node.emit(op.concat([old, new], axis=2)) for old, new in zip(olds, (key, value), strict=True))
    output = _attended(node, query, key, value, mask=3, bias=5)
    return [output, op.stack([key, value], axis=0)] if any(node.is_wanted[1:]) else output


def _split_at(node: Node, packed: relax.Expr, index: int) -> relax.Expr:
    """Return part `index` of (batch, rows, heads, parts, size) as (batch, heads, rows, size)."""
    batch, rows, heads, _, size = shape_of(packed)
    part = op.reshape(op.strided_slice(packed, [3], [index], [index + 1]), [batch, rows, heads, size])
    return node.emit(op.permute_dims(part, [0, 2, 1, 3]))


def _with_bias(node: Node, index: int) -> relax.Expr:
    """Return queries, keys or values plus their part of the bias."""
    if not node.has(3):
        return node.input(index)
    widths = [node.shape(i)[2] if len(node.shape(i)) == 3 else 0 for i in range(3)]
    begin = sum(widths[:index])
    return op.add(node.input(index), op.strided_slice(node.input(3), [0], [begin], [begin + widths[index]]))


def _outer(node: Node, data: relax.Expr, heads: int) -> relax.Expr:
    """Return (batch, rows, heads * size) as (batch, heads, rows, size)."""
    data = node.emit(data)
    if len(shape_of(data)) == 4:
        return data
    batch, rows, width = shape_of(data)
    return node.emit(op.permute_dims(op.reshape(data, [batch, rows, heads, width // heads]), [0, 2, 1, 3]))


def _attended(node: Node, query: relax.Expr, key: relax.Expr, value: relax.Expr, *, mask: int, bias: int) -> relax.Expr:
    """Return softmax(scores) x values as (batch, rows, heads * size). mask, bias: positions of these inputs."""
    batch, _, rows, size = shape_of(query)
    total, dtype = shape_of(key)[2], str(query.ty.dtype)
    scores = _scores(node, query, key, size)
    if node.has(mask):
        filtered = relax.const(node.attributes.get("mask_filter_value", -10000.0), dtype)
        scores = op.add(scores, op.where(_is_valid(node, mask, batch, total), relax.const(0.0, dtype), filtered))
    if node.has(bias):
        scores = op.add(scores, node.input(bias))
    if node.attributes.get("unidirectional", 0):
        seen = relax.const(np.arange(total) <= np.arange(rows)[:, None] + total - rows)
        scores = op.where(seen, scores, relax.const(float(np.finfo(dtype).min), dtype))
    result = node.emit(op.matmul(op.nn.softmax(scores, axis=-1), value))
    batch, heads, rows, size = shape_of(result)
    return op.reshape(op.permute_dims(result, [0, 2, 1, 3]), [batch, rows, heads * size])


def _is_valid(node: Node, mask: int, batch: int, total: int) -> relax.Expr:
    """Return which keys each row sees: (batch, 1, rows or 1, keys)."""
    given, shape = node.input(mask), node.shape(mask)
    if shape == (batch,):
        at = relax.const(np.arange(total, dtype=np.int32).reshape(1, 1, 1, total), node.dtype(mask))
        return op.less(at, op.reshape(given, [batch, 1, 1, 1]))
    if len(shape) not in (2, 3) or (shape[0], shape[-1]) != (batch, total):
        raise ValueError(f"a mask of the shape {shape} is not supported")
    rows = shape[1] if len(shape) == 3 else 1
    return op.reshape(op.greater(given, relax.const(0, node.dtype(mask))), [batch, 1, rows, total])
