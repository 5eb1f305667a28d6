"""Estimate the floating-point operations of each node from shapes."""

from __future__ import annotations

import math
from collections.abc import Container

import onnx

from romou.compiler.frontend.host_groups import Values
from romou.compiler.frontend.onnx_graph import Shapes, first_output

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv"})
_PRODUCTS = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"})
# Operators that only move or rename numbers.
_FREE = frozenset(
    {
        "Cast",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
    }
    | {"Reshape", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)


def flops_by_node(model: onnx.ModelProto) -> dict[str, int]:
    """Return (first output of a node -> operations of one run).

    A sum of n products counts 2 n operations, any other operator one per element. Integer operations count as well.
    Nodes of unknown shapes, and nodes that only move numbers, count 0.
    """
    values = Values(model)
    return {
        first_output(node): 0
        if node.op_type in _FREE or _is_constant(node, values.constants)
        else _flops(node, values.shapes)
        for node in values.nodes
    }


def _is_constant(node: onnx.NodeProto, constants: Container[str]) -> bool:
    return bool(node.input) and all(name in constants for name in node.input if name)


def _flops(node: onnx.NodeProto, shapes: Shapes) -> int:
    inputs = [shapes.get(name, ()) for name in node.input]
    written = max((math.prod(shapes[name]) for name in node.output if name in shapes), default=0)
    read = max((math.prod(shapes[name]) for name in node.input if name in shapes), default=0)
    if node.op_type in _CONVOLUTIONS:
        weight = inputs[3 if node.op_type == "QLinearConv" else 1]
        return 2 * written * math.prod(weight[1:]) if weight else 0
    if node.op_type == "ConvTranspose":
        return 2 * math.prod(inputs[0]) * math.prod(inputs[1][1:]) if inputs[0] and inputs[1] else 0
    if node.op_type in _PRODUCTS and inputs[0]:
        is_transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return 2 * written * inputs[0][-2 if is_transposed and len(inputs[0]) > 1 else -1]
    if node.op_type in ("LSTM", "GRU", "RNN") and len(inputs) > 2 and inputs[0] and inputs[1] and inputs[2]:
        steps = math.prod(inputs[0][:2])
        return 2 * steps * (math.prod(inputs[1]) + math.prod(inputs[2]))
    # Pooling reads one window per element.
    window = next((math.prod(attribute.ints) for attribute in node.attribute if attribute.name == "kernel_shape"), 1)
    return max(written * window, read)
