"""Rules for operators that also work on packed channels: element-wise, where, pooling, means, resizing, concat, slice.

Rows (n, c, w) and volumes (n, c, d, h, w) are packed as images (`romou/compiler/tir/images.py`).

The lanes that pad a tensor's last texel hold arbitrary finite values. Weights are zero in these lanes, so no stored
result depends on them. An operator that could make an infinity or NaN of a zero (division) keeps the plain layout if
the last texel is not full.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from tvm import relax, te, tirx, topi

from romou.compiler.operators.families.bases.contraction import OPAQUE
from romou.compiler.operators.family import Graph
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import FLOATS, dtype_of, is_constant, shape_of, static_shape
from romou.compiler.tir.images import RANKS, array_as_images, as_images, frames_of
from romou.compiler.tir.primitives import LANES

# Operators of one tensor and further scalars. Their value at zero is finite.
UNARY = {
    f"relax.{name}"
    for name in [
        "abs",
        "astype",
        "ceil",
        "clip",
        "cos",
        "erf",
        "exp",
        "floor",
        "negative",
        "round",
        "sigmoid",
        "sign",
        "sin",
        "sqrt",
        "square",
        "tanh",
        "nn.gelu",
        "nn.gelu_tanh",
        "nn.leakyrelu",
        "nn.relu",
        "nn.relu6",
        "nn.silu",
        "nn.softplus",
    ]
}
BINARY = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")}
COMPARISON = {f"relax.{name}" for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")}
WHERE = "relax.where"
# Operators of integers, and the types of these, that quantized models have between convolutions.
_OF_INTEGERS = {f"relax.{name}" for name in ("add", "astype", "maximum", "minimum", "multiply", "subtract")}
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
# Operators that may make an infinity or NaN of the zeros that pad the last texel.
FULL_TEXELS = {f"relax.{name}" for name in ("log", "rsqrt", "power")}
POOL = {f"relax.nn.{name}" for name in ("avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d")}
MEAN = "relax.mean"


class PackedGraph(Graph, Protocol):
    """The graph interface of operator families, extended by the packed tensors.

    packed: variable of the old graph -> its packed form.
    packing: Relax operators that families rewrite into packed tensors, each in a separate kernel.
    """

    packed: dict[relax.Var, relax.Expr]
    packing: frozenset[str]


def keep_packed(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    """Return a call in packed form. None if the operator needs the plain layout or reads no packed tensor."""
    rule, shape = _RULES.get(op_name(call)), shape_of(call)
    if rule is None or shape is None or len(shape) not in RANKS:
        return None
    if dtype_of(call) not in FLOATS and not (dtype_of(call) in _INTEGERS and op_name(call) in _OF_INTEGERS):
        return None
    if op_name(call) in FULL_TEXELS and shape[1] % LANES:
        return None
    reads = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else call.args
    return rule(call, graph) if any(arg in graph.packed for arg in reads) else None


def _unary(call: relax.Call, graph: PackedGraph) -> relax.Expr:
    return graph.bb.emit(relax.Call(call.op, [graph.packed[call.args[0]], *call.args[1:]], call.attrs))


def _where(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    """Return a packed `where` whose condition compares packed tensors.

    The comparison is emitted again in packed form, because no kernel stores texels of booleans.
    """
    condition = graph.bound.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
    if condition is None or op_name(condition) not in COMPARISON or shape_of(condition) is None:
        return None
    shape, tested = static_shape(call), static_shape(condition)
    if len(tested) != len(shape) or as_images(tested)[0] not in (1, as_images(shape)[0]):
        return None
    test, values = _packed_operands(condition, graph), _packed_operands(call, graph, first=1)
    if test is None or values is None:
        return None
    return graph.bb.emit(relax.op.where(graph.bb.emit(relax.Call(condition.op, test(), condition.attrs)), *values()))


def _broadcast(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    operands = _packed_operands(call, graph)
    return None if operands is None else graph.bb.emit(relax.Call(call.op, operands(), call.attrs))


def _packed_operands(call: relax.Call, graph: PackedGraph, first: int = 0) -> Callable[[], list[relax.Expr]] | None:
    """Return a function that emits the operands from index `first` on in packed form, or None."""
    shape = static_shape(call)
    divides = call.op.name == "relax.divide"
    operands = []
    for position, arg in enumerate(call.args[first:]):
        operand_shape = shape_of(arg)
        divisor = divides and position == 1
        if operand_shape is None or len(operand_shape) > len(shape):
            return None
        full = (1,) * (len(shape) - len(operand_shape)) + operand_shape
        images = as_images(full)[0]
        if int(np.prod(full)) == 1 and is_constant(arg):
            operands.append(relax.const(arg.value.numpy().reshape(()), dtype_of(arg)))
        elif images not in (1, as_images(shape)[0]):
            # The operand broadcasts along the frames of each batch element, or the other way round.
            return None
        elif full[1] == 1:
            # One lane that broadcasts to all channels.
            if not is_constant(arg):
                return None
            operands.append(relax.const(array_as_images(arg.value.numpy().reshape(full))[..., None], dtype_of(arg)))
        elif is_constant(arg):
            operands.append(
                relax.const(
                    _pack_constant(array_as_images(arg.value.numpy().reshape(full)), float(divisor)), dtype_of(arg)
                )
            )
        elif len(operand_shape) == len(shape) and not (divisor and shape[1] % LANES):
            operands.append(arg)
        else:
            return None
    # Packing is delayed until every operand is known to work: a transform must not be left over for a plain operator.
    return lambda: [arg if is_constant(arg) else graph.packed_expr(arg) for arg in operands]


def _pool(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    """Pool images. Rows are images of height 1."""
    attrs, rank = call.attrs, len(static_shape(call))
    op = relax.op.nn.max_pool2d if "max_pool" in call.op.name else relax.op.nn.avg_pool2d
    pads = [int(p) for p in attrs.padding]
    return graph.bb.emit(
        op(
            graph.packed[call.args[0]],
            pool_size=[1, *map(int, attrs.pool_size)][-2:],
            strides=[1, *map(int, attrs.strides)][-2:],
            padding=pads if rank == 4 else [0, pads[0], 0, pads[-1]],
            dilation=[1, *map(int, attrs.dilation)][-2:],
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
            layout=f"NCHW{LANES}c",
        )
    )


def _mean(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    """Take the mean over all pixels, for volumes over each frame's pixels and then over the frames."""
    shape = static_shape(call.args[0])
    if tuple(int(a) for a in call.attrs.axis or ()) != tuple(range(2, len(shape))) or not call.attrs.keepdims:
        return None
    means = graph.bb.emit(relax.op.mean(graph.packed[call.args[0]], axis=[2, 3], keepdims=True))
    if frames_of(shape) == 1:
        return means
    n, (_, *texels) = shape[0], static_shape(means)
    frames = graph.bb.emit(relax.op.reshape(means, (n, frames_of(shape), *texels)))
    return graph.bb.emit(relax.op.mean(frames, axis=[1]))


def _concat(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    fields = list(call.args[0].fields)
    if int(call.attrs.axis) != 1:
        return None
    channels = [static_shape(field)[1] for field in fields]
    if any(count % LANES for count in channels[:-1]):
        is_packed = all(isinstance(field, relax.Var) and field in graph.packed for field in fields)
        # Readers of the plain layout, as a shuffle of channels, read the parts themselves.
        if not (is_packed and _stays_packed(call, graph)):
            return None
        parts = [graph.packed[field] for field in fields]
        return graph.bb.emit_te(partial(_shifted, channels), *parts, primfunc_name_hint="concatenate")
    packed = [graph.packed_expr(field) for field in fields]
    if not _is_free(fields, graph):
        return graph.bb.emit(relax.op.concat(packed, axis=1))
    define: Callable[..., te.Tensor] = lambda *parts: topi.concatenate(parts, axis=1)
    return graph.bb.emit_te(define, *packed, primfunc_name_hint="concatenate", primfunc_attrs={"op_pattern": OPAQUE})


def _stays_packed(call: relax.Call, graph: PackedGraph) -> bool:
    """Return whether only operators that take packed tensors read the result of a concatenation."""
    (field, *_) = call.args[0].fields
    results = [user for user in graph.users.get(field, ()) if call.same_as(graph.bound.get(user))]
    readers = [reader for result in results for reader in graph.users.get(result, ())]
    return bool(readers) and all(op_name(graph.bound.get(r)) in graph.packing | _RULES.keys() for r in readers)


def _shifted(channels: Sequence[int], *parts: te.Tensor) -> te.Tensor:
    """Return a concatenation of packed channels whose texels may have lanes of several parts.

    channels: of each part.
    """
    starts = list(itertools.accumulate(channels, initial=0))
    n, _, *pixels, _ = parts[0].shape
    texels = -(-starts[-1] // LANES)

    def number(image: tirx.Var, texel: tirx.Var, *place: tirx.Var) -> tirx.Expr:
        *pixel, lane = place
        channel, value = texel * LANES + lane, tirx.const(0, str(parts[0].dtype))
        for part, start, end in reversed(list(zip(parts, starts, starts[1:], strict=False))):
            index, last = channel - start, int(part.shape[1]) - 1
            inside = tirx.max(tirx.min(tirx.floordiv(index, LANES), last), 0)
            read = part[(image, inside, *pixel, tirx.floormod(index, LANES))]
            # The lanes that pad the last part may pad the result.
            is_padded = end == starts[-1] and texels * LANES - start <= (last + 1) * LANES
            value = read if is_padded else tirx.Select(channel < end, read, value)
        return value

    return te.compute((n, texels, *pixels, LANES), number, name="concatenate")


def _is_free(fields: Sequence[relax.Expr], graph: PackedGraph) -> bool:
    """Return whether `share_buffers` is expected to remove the copies of this concatenation.

    Fusing an operator into the concatenation would make it a kernel. If several inputs then needed kernels that only
    copy, one kernel for all of them is better.
    """

    def is_only_here(field: relax.Expr) -> bool:
        return (
            isinstance(field, relax.Var)
            and sum(op_name(graph.bound.get(user)) == "relax.concat" for user in graph.users.get(field, ())) == 1
        )

    has_pixels = all(any(extent > 1 for extent in static_shape(f)[2:]) for f in fields)
    return (
        has_pixels
        and all(map(is_only_here, fields))
        and len({*fields}) == len(fields)
        and sum(not _ends_a_kernel(f, graph) for f in fields) <= 1
    )


def _ends_a_kernel(expr: relax.Expr, graph: PackedGraph) -> bool:
    """Return whether an input is a kernel's output even if other operators follow it."""
    value = graph.bound.get(expr) if isinstance(expr, relax.Var) else None
    if isinstance(value, relax.Call) and op_name(value) in UNARY | BINARY | FULL_TEXELS | {WHERE}:
        return any(len(graph.users.get(arg, ())) == 1 and _ends_a_kernel(arg, graph) for arg in value.args)
    return op_name(value) in graph.packing | POOL | {MEAN}


def _slice(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    """Slice a range of whole texels of channels."""
    data, *numbers = call.args
    if not all(
        isinstance(number, relax.Tuple) and len(number.fields) == 1 and isinstance(number.fields[0], tirx.IntImm)
        for number in numbers
    ):
        return None
    axis, low, high, step = (*(int(number.fields[0]) for number in numbers), 1)[:4]
    channels, rank = static_shape(data)[1], len(static_shape(data))
    if axis % rank != 1 or step != 1 or not 0 <= low < high or low % LANES or (high % LANES and high < channels):
        return None
    return graph.bb.emit(
        relax.op.strided_slice(graph.packed[data], [1], [low // LANES], [-(-min(high, channels) // LANES)])
    )


def _resize(call: relax.Call, graph: PackedGraph) -> relax.Expr | None:
    if call.attrs.layout != "NCHW":
        return None
    data, size = call.args
    names = (
        "method",
        "coordinate_transformation_mode",
        "rounding_method",
        "cubic_alpha",
        "cubic_exclude",
        "extrapolation_value",
        "out_dtype",
    )
    kept = {name: getattr(call.attrs, name) for name in names}
    region = [float(edge) for edge in call.attrs.roi]
    return graph.bb.emit(relax.op.image.resize2d(graph.packed[data], size, region, layout=f"NCHW{LANES}c", **kept))


def _pack_constant(array: np.ndarray, fill: float) -> np.ndarray:
    """Pack NCHW as NCHW4c. The lanes that pad the last texel hold `fill`."""
    n, c, h, w = array.shape
    full = np.full((n, -(-c // LANES) * LANES, h, w), fill, array.dtype)
    full[:, :c] = array
    return np.ascontiguousarray(full.reshape(n, -1, LANES, h, w).transpose(0, 1, 3, 4, 2))


_RULES: dict[str, Callable[[relax.Call, PackedGraph], relax.Expr | None]] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(FULL_TEXELS - {"relax.power"}, _unary),
    **dict.fromkeys(BINARY | {"relax.power"}, _broadcast),
    WHERE: _where,
    **dict.fromkeys(POOL, _pool),
    MEAN: _mean,
    "relax.concat": _concat,
    "relax.strided_slice": _slice,
    "relax.image.resize2d": _resize,
}
