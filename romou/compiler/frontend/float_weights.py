"""Quantized weights that become floats at compile time, because no kernel reads them packed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
from onnx import helper

from romou.base.model_bytes import FloatWeight
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.onnx_graph import Graph, first_output
from romou.compiler.frontend.precision import AS_GIVEN, Precision
from tvm_patches.domains import MICROSOFT
from tvm_patches.onnx_converters.quantized_matmul import block_of_rows

_BITS_OF = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16}


def float_weights(model: onnx.ModelProto, folded: onnx.ModelProto, precision: Precision) -> tuple[FloatWeight, ...]:
    """Return the weights that became floats. Vectors, such as a bias, are left out.

    model: the model before its constants are folded, with products of packed weights.
    folded: the model to import.
    """
    graph = Graph(model)
    computed = {first_output(node) for node in folded.graph.node if node.op_type == "DequantizeLinear"}
    wide = precision.kept if precision.kind != AS_GIVEN else None
    weights = []
    for node in graph.nodes:
        if first_output(node) in computed:
            continue
        counts = _counts(node, graph.constants)
        if counts is None:
            continue
        elements, bits, width = counts
        if wide is not None:
            width = 4 if wide.intersection(_readers(graph, node)) else 2
        weights.append(
            FloatWeight(node=node_name(node), packed_bytes=-(-elements * bits // 8), float_bytes=elements * width)
        )
    return tuple(weights)


def _counts(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> tuple[int, int, int] | None:
    """Return elements of a node's constant matrix, bits of its codes, and bytes of the scales' type.

    None if the node has no such matrix, or if it stays packed.
    """
    if any(name and name not in constants for name in node.input[1:]) or len(node.input) < 2:
        return None
    if node.op_type == "DequantizeLinear" and node.domain in ("", "ai.onnx") and node.input[0] in constants:
        codes, scales = (constants[name] for name in node.input[:2])
        bits = _BITS_OF.get(onnx.TensorProto.DataType.Name(codes.data_type))
        if bits is None or sum(extent > 1 for extent in codes.dims) < 2:
            return None
        return math.prod(codes.dims), bits, _width(scales)
    if node.op_type == "MatMulBnb4" and node.domain == MICROSOFT:
        numbers = {a.name: a.i for a in node.attribute}
        if block_of_rows(numbers["K"], numbers["block_size"]) is None:
            return numbers["N"] * numbers["K"], 4, _width(constants[node.input[2]])
    return None


def _readers(graph: Graph, node: onnx.NodeProto) -> Iterator[str]:
    """Yield the first outputs of a node and of its readers, also behind transpositions, which are folded."""
    yield first_output(node)
    for reader, _ in graph.uses(first_output(node)):
        yield from _readers(graph, reader) if reader.op_type == "Transpose" else [first_output(reader)]


def _width(tensor: onnx.TensorProto) -> int:
    return int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
