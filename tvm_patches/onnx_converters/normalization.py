"""Normalizations of the forms that the wheel gets wrong: over several axes, with statistics as outputs, in training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from tvm_patches.onnx_converters.node import Node, Result, converter

op = relax.op


@converter("LayerNormalization")
def layer_normalization(node: Node) -> Result:
    """Normalize over the last axis by one operator, over several axes by mean, deviation and scale."""
    rank = len(node.shape())
    axes = list(range(node.attributes["axis"] % rank, rank))
    if (
        len(axes) == 1
        and not any(node.is_wanted[1:])
        and node.shape(1) == node.shape()[-1:]
        and (not node.has(2) or node.shape(2) == node.shape(1))
    ):
        return node.wheel(**node.attributes)
    data = _computed(node, node.input(0))
    mean, centred = _centred(node, data, axes)
    inverse = _inverse_deviation(node, centred, axes, node.attributes["epsilon"])
    result = op.multiply(_stored(node, op.multiply(centred, inverse)), node.input(1))
    return [op.add(result, node.input(2)) if node.has(2) else result, mean, inverse]


@converter("RMSNormalization")
def rms_normalization(node: Node) -> relax.Expr:
    """Normalize over the last axis by one operator, over several axes by products."""
    rank = len(node.shape())
    axes = list(range(node.attributes["axis"] % rank, rank))
    if len(axes) == 1 and node.shape(1) == node.shape()[-1:]:
        return node.wheel(**node.attributes)
    data = _computed(node, node.input(0))
    inverse = _inverse_deviation(node, data, axes, node.attributes["epsilon"])
    return op.multiply(_stored(node, op.multiply(data, inverse)), node.input(1))


@converter("BatchNormalization")
def batch_normalization(node: Node) -> Result:
    """Normalize by running statistics, or in training by the batch's, with new running statistics as outputs."""
    if not node.attributes.get("spatial", 1):
        raise ValueError("statistics for each position (spatial=0) are not supported")
    # Until opset 13, a node with several outputs is in training.
    if not node.attributes.get("training_mode", node.opset < 14 and any(node.is_wanted[1:])):
        return node.wheel(**node.attributes)
    data, scale, bias, running_mean, running_variance = (node.input(i) for i in range(5))
    shape = node.shape()
    axes, across = [i for i in range(len(shape)) if i != 1], [shape[1], *[1] * (len(shape) - 2)]
    mean, centred = _centred(node, _computed(node, data), axes)
    variance = node.emit(op.mean(op.multiply(centred, centred), axes, keepdims=True))
    normal = _stored(node, op.divide(centred, op.sqrt(op.add(variance, _scalar(variance, node.attributes["epsilon"])))))
    result = op.add(op.multiply(normal, op.reshape(scale, across)), op.reshape(bias, across))
    old = node.attributes["momentum"]
    outputs = [result]
    for running, batch in ((running_mean, mean), (running_variance, variance)):
        batch = op.astype(op.reshape(batch, [shape[1]]), str(running.ty.dtype))
        outputs.append(
            op.add(op.multiply(running, _scalar(running, old)), op.multiply(batch, _scalar(running, 1 - old)))
        )
    statistics = [op.astype(op.reshape(value, [shape[1]]), node.dtype(3)) for value in (mean, variance)]
    return [*outputs, *statistics]


@converter("InstanceNormalization")
def instance_normalization(node: Node) -> relax.Expr:
    """Normalize the channels of fp16 in fp32. The wheel computes in the input's type."""
    return _groups_normalized(node, node.shape()[1]) if node.dtype() == "float16" else node.wheel(**node.attributes)


@converter("GroupNormalization")
def group_normalization(node: Node) -> relax.Expr:
    """Normalize groups of channels by the operators that an exported Reshape, InstanceNormalization, Reshape, Mul and
    Add are converted to. Relax's own operator is one kernel that no family takes.
    """
    return _groups_normalized(node, node.attributes["num_groups"])


def _groups_normalized(node: Node, groups: int) -> relax.Expr:
    shape = node.shape()
    rows = node.emit(op.reshape(_computed(node, node.input(0)), [shape[0], groups, math.prod(shape[1:]) // groups]))
    variance = node.emit(op.variance(rows, [2], keepdims=True))
    deviation = op.sqrt(op.add(variance, _scalar(variance, node.attributes["epsilon"])))
    normal = op.divide(op.subtract(rows, op.mean(rows, [2], keepdims=True)), deviation)
    scale, shift = (op.reshape(_computed(node, node.input(i)), [shape[1], *[1] * (len(shape) - 2)]) for i in (1, 2))
    return _stored(node, op.add(op.multiply(op.reshape(normal, shape), scale), shift))


@converter("MeanVarianceNormalization", is_single=True)
def mean_variance_normalization(node: Node) -> relax.Expr:
    """Return (x - mean) / deviation. The wheel subtracts the squared mean from the mean of squares, which cancels."""
    axes = list(node.attributes["axes"])
    _, centred = _centred(node, node.input(0), axes)
    deviation = node.emit(op.sqrt(op.mean(op.multiply(centred, centred), axes, keepdims=True)))
    return op.divide(centred, op.add(deviation, _scalar(deviation, 1e-9)))


@converter("LpNormalization", is_single=True)
def lp_normalization(node: Node) -> relax.Expr:
    """Divide x by the sum of its absolute values or the root of the sum of its squares.

    The result is zero if the divisor is zero.
    """
    data, axis = node.input(0), [node.attributes["axis"]]
    squared = node.attributes["p"] == 2
    norm = op.sum(op.multiply(data, data) if squared else op.abs(data), axis, keepdims=True)
    norm = node.emit(op.sqrt(norm) if squared else norm)
    zero, one = _scalar(norm, 0.0), _scalar(norm, 1.0)
    return op.where(op.equal(norm, zero), zero, op.divide(data, op.where(op.equal(norm, zero), one, norm)))


@converter("LRN")
def local_response_normalization(node: Node) -> relax.Expr:
    """Convert nodes with windows of an even size, and inputs of any rank. The wheel converts the rest.

    Such a window has one more channel above than below.
    """
    size, alpha, beta, bias = (node.attributes[name] for name in ("size", "alpha", "beta", "bias"))
    if size % 2 and len(node.shape()) in (3, 4) and node.dtype() == "float32":
        return node.wheel(**node.attributes)
    data = _computed(node, node.input(0))
    rows = op.reshape(op.multiply(data, data), [node.shape()[0], 1, node.shape()[1], math.prod(node.shape()[2:])])
    means = op.nn.avg_pool2d(rows, [size, 1], padding=[(size - 1) // 2, 0, size // 2, 0], count_include_pad=True)
    sums = op.reshape(means, list(node.shape()))
    scale = op.power(
        op.add(op.multiply(sums, relax.const(alpha, "float32")), relax.const(bias, "float32")),
        relax.const(beta, "float32"),
    )
    return _stored(node, op.divide(data, scale))


def _computed(node: Node, value: relax.Expr) -> relax.Expr:
    """Return the value in the type of the statistics, because sums of fp16 overflow."""
    return node.emit(op.astype(value, "float32")) if str(value.ty.dtype) == "float16" else value


def _stored(node: Node, value: relax.Expr) -> relax.Expr:
    return op.astype(value, node.dtype()) if node.dtype() == "float16" else value


def _centred(node: Node, data: relax.Expr, axes: Sequence[int]) -> tuple[relax.Expr, relax.Expr]:
    mean = node.emit(op.mean(data, list(axes), keepdims=True))
    return mean, node.emit(op.subtract(data, mean))


def _inverse_deviation(node: Node, centred: relax.Expr, axes: Sequence[int], epsilon: float) -> relax.Expr:
    variance = node.emit(op.mean(op.multiply(centred, centred), list(axes), keepdims=True))
    return node.emit(op.divide(_scalar(variance, 1.0), op.sqrt(op.add(variance, _scalar(variance, epsilon)))))


def _scalar(like: relax.Expr, value: float) -> relax.Expr:
    return relax.const(value, str(like.ty.dtype))
