"""Operators without a contraction, on odd and prime shapes: name -> the function that makes them, and the shapes of
their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tvm import relax
from tvm.relax import op

StreamCase: TypeAlias = tuple["Callable[..., relax.Expr] | Sequence[int]", ...]

ELEMENTWISE: dict[str, StreamCase] = {
    "chain": (lambda a, b: op.nn.relu(op.add(op.multiply(a, b), a)), (3, 7, 11), (3, 7, 11)),
    "broadcast": (lambda a, b, c: op.sigmoid(op.add(op.multiply(a, b), c)), (5, 6, 12), (12,), (6, 1)),
    "leaky relu": (lambda a: op.nn.leakyrelu(a, 0.1), (1, 3, 9, 13, 4)),
    "gelu": (lambda a: op.nn.gelu(a), (13, 24)),
    "transpose": (lambda a: op.permute_dims(a, [0, 2, 1]), (2, 13, 20)),
    "reshape and transpose": (
        lambda a: op.multiply(
            op.permute_dims(op.reshape(a, (1, 16, 3, 8)), [0, 2, 1, 3]), relax.const(0.5, str(a.ty.dtype))
        ),
        (16, 24),
    ),
    "slice": (lambda a: op.strided_slice(a, [1, 2], [1, 0], [9, 17], [2, 1]), (3, 10, 17)),
    "concat": (lambda a, b: op.concat([a, b], axis=1), (2, 3, 5, 7, 4), (2, 4, 5, 7, 4)),
    "concat of rows": (lambda a, b: op.concat([a, b], axis=1), (5, 7), (5, 13)),
    "resize": (
        lambda a: op.image.resize2d(a, (14, 10), method="nearest_neighbor", rounding_method="floor"),
        (1, 3, 7, 5),
    ),
    "interpolation": (lambda a: op.image.resize2d(a, (15, 11), method="linear"), (1, 5, 7, 6)),
    "interpolated texels": (lambda a: op.image.resize2d(a, (9, 11), method="linear", layout="NCHW4c"), (2, 7, 5, 4, 4)),
    "prime": (lambda a: op.exp(a), (1009,)),
    "one": (lambda a: op.tanh(a), (1, 1)),
    "scalar": (lambda a, b: op.subtract(op.tanh(a), b), (), ()),
    "scalar operand": (lambda a, b: op.maximum(op.exp(a), op.reshape(b, ())), (3, 7, 11), ()),
    "pack": (lambda a: op.exp(op.permute_dims(op.reshape(a, (2, 3, 4, 5, 8)), [0, 1, 3, 4, 2])), (2, 12, 5, 8)),
    "pack of odd rows": (lambda a: op.permute_dims(op.reshape(a, (2, 3, 4, 5, 7)), [0, 1, 3, 4, 2]), (2, 12, 5, 7)),
    "transpose of odd rows": (lambda a: op.permute_dims(a, [0, 2, 1]), (2, 20, 13)),
    "unpack": (lambda a: op.reshape(op.permute_dims(op.exp(a), [0, 1, 4, 2, 3]), (2, 12, 7, 9)), (2, 3, 7, 9, 4)),
    "unpack of prime rows": (
        lambda a: op.reshape(op.permute_dims(op.exp(a), [0, 1, 4, 2, 3]), (2, 12, 3, 19)),
        (2, 3, 3, 19, 4),
    ),
}
# Arithmetic with scalars, and tensors that may be in images if no graph decides. None takes a maximum: there a scalar
# stays a vector of copies.
WITH_SCALARS: dict[str, StreamCase] = {
    "texels": (
        lambda a, b, c: op.multiply(op.add(op.multiply(a, b), c), relax.const(3, str(a.ty.dtype))),
        (1, 3, 7, 11, 4),
        (11, 1),
        (1, 3, 7, 11, 4),
    ),
    "rows": (lambda a, b, c: op.divide(op.subtract(b, a), op.add(c, op.exp(a))), (5, 13, 20), (13, 1), (1,)),
    "packed": (
        lambda a, b: op.subtract(op.permute_dims(op.reshape(a, (2, 3, 4, 5, 7)), [0, 1, 3, 4, 2]), b),
        (2, 12, 5, 7),
        (1,),
    ),
}
POOL: dict[str, StreamCase] = {
    "max pool": (lambda a: op.nn.max_pool2d(a, (3, 3), (2, 2), (1, 1, 1, 1), layout="NCHW4c"), (1, 3, 13, 17, 4)),
    "max pool, ceil": (
        lambda a: op.nn.max_pool2d(a, (3, 3), (2, 2), (0, 0, 0, 0), ceil_mode=True, layout="NCHW4c"),
        (1, 5, 14, 12, 4),
    ),
    "max pool, dilated": (
        lambda a: op.nn.max_pool2d(a, (3, 2), (1, 2), (2, 0, 1, 1), dilation=(2, 3), layout="NCHW4c"),
        (2, 2, 11, 13, 4),
    ),
    "average pool": (lambda a: op.nn.avg_pool2d(a, (3, 3), (1, 1), (1, 1, 1, 1), layout="NCHW4c"), (1, 4, 17, 17, 4)),
    "average pool, pads counted": (
        lambda a: op.nn.relu(
            op.nn.avg_pool2d(a, (2, 3), (2, 1), (1, 0, 1, 2), count_include_pad=True, layout="NCHW4c")
        ),
        (1, 3, 7, 11, 4),
    ),
    "plain max pool": (lambda a: op.nn.max_pool2d(a, (3, 3), (2, 2), (1, 1, 1, 1)), (1, 5, 13, 11)),
    "plain average pool": (lambda a: op.nn.avg_pool2d(a, (2, 2), (2, 2), (0, 0, 1, 1), ceil_mode=True), (2, 3, 9, 13)),
    "large windows": (lambda a: op.nn.avg_pool2d(a, (23, 19), (23, 19), layout="NCHW4c"), (1, 3, 47, 40, 4)),
    "row of windows": (lambda a: op.nn.max_pool1d(a, (5,), (3,), (2, 2)), (2, 7, 31)),
}
ROWS: dict[str, StreamCase] = {
    "softmax": (lambda a: op.nn.softmax(a, axis=-1), (2, 5, 37)),
    "softmax of long rows": (lambda a: op.nn.softmax(a, axis=-1), (3, 1012)),
    "softmax of channels": (lambda a: op.nn.softmax(a, axis=1), (2, 13, 20)),
    "log softmax": (lambda a: op.nn.log_softmax(a, axis=-1), (7, 24)),
    "layer norm": (lambda a, b, c: op.nn.layer_norm(a, b, c, axes=[-1]), (3, 7, 48), (48,), (48,)),
    "group norm": (lambda a, b, c: op.nn.group_norm(a, b, c, 2, 1, [2, 3]), (1, 6, 5, 7), (6,), (6,)),
    "instance norm": (lambda a, b, c: op.nn.instance_norm(a, b, c, 1, [2, 3]), (2, 3, 9, 4), (3,), (3,)),
    "global average": (lambda a: op.mean(a, axis=[2, 3], keepdims=True), (1, 5, 7, 7, 4)),
    "global maximum": (lambda a: op.max(a, axis=[2, 3]), (2, 3, 11, 13)),
    "sum of squares": (lambda a: op.sum(op.multiply(a, a), axis=[-1]), (11, 52)),
    "maximum of a long row": (lambda a: op.max(a, axis=[1]), (2, 70001)),
    "sum of a long row": (lambda a: op.sum(a, axis=[1]), (2, 3001)),
    "sum of columns": (lambda a: op.sum(a, axis=[0]), (31, 60)),
}
OPERATORS: dict[str, StreamCase] = {**ELEMENTWISE, **POOL, **ROWS}
