"""Products with quantized weights: refused forms, and blocked weights as MatMulNBits.

    DequantizeLinear(int4 [N, K], axis=1, block_size) -> Transpose -> MatMul
        ->      MatMulNBits, whose weight stays packed on the device

It has to happen before constants are folded, which would make floats of the weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from romou.base.errors import ModelError
from romou.compiler.frontend.onnx_graph import (
    STANDARD,
    Graph,
    Shapes,
    attributes_of,
    constant_tensors,
    rule,
    shapes_of,
    type_name,
)
from tvm_patches.domains import MICROSOFT
from tvm_patches.onnx_converters.quantized_matmul import is_identity
from tvm_patches.quantized_matrix import BITS

PRODUCT = "MatMulNBits"
# Fewest elements of a block. ONNX Runtime's kernels have the same limit.
LEAST_BLOCK = 16
# Most rows of activations of a product that is bound by the bytes of its weight.
_MOST_FEW = 8
# Elements of a row that share a scale, if all elements of a row have the same one.
_BLOCK_OF_CHANNELS = 128
_BITS_OF = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


def check_products(model: onnx.ModelProto) -> None:
    """Raise ModelError for a MatMulNBits of a form that no kernel has."""
    constants, shapes = constant_tensors(model.graph), shapes_of(model.graph)
    for node in model.graph.node:
        if node.op_type == PRODUCT and node.domain == MICROSOFT:
            reason = _refusal(node, constants, shapes)
            if reason is not None:
                where = f"{PRODUCT} (node {node.name!r})" if node.name else PRODUCT
                raise ModelError(f"{where}: {reason}", operator=PRODUCT, node=node.name)


def _refusal(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], shapes: Shapes) -> str | None:
    """Return the reason to refuse a product, or None."""
    attributes = attributes_of(node)
    missing = [name for name in ("K", "N", "block_size") if name not in attributes]
    if missing:
        return f"it has no attribute {', '.join(missing)}; export the model again"
    n, k, block = (int(attributes[name]) for name in ("N", "K", "block_size"))
    bits = int(attributes.get("bits", 4))
    if bits not in BITS:
        return f"bits={bits}; kernels exist for {', '.join(map(str, BITS))}; quantize the model again"
    if block < LEAST_BLOCK or block & (block - 1):
        return f"block_size={block} is no power of two from {LEAST_BLOCK} on; quantize the model again"
    if attributes.get("weight_prepacked", 0):
        return "weight_prepacked: its weight has the layout of one CUDA kernel of onnxruntime; export it without"
    if n < 1 or k < 1:
        return f"N={n}, K={k}; both are at least 1; export the model again"
    names = dict(enumerate(node.input))
    row = (shapes.get(names[0]) or (k,))[-1]
    if isinstance(row, int) and row != k:
        return f"a row of activations has {row} elements, but K={k}; export the model again"
    if names.get(4) and not (
        names[4] in constants and is_identity(numpy_helper.to_array(constants[names[4]]), k, block)
    ):
        return "g_idx reorders the blocks; quantize the model without act-order (desc_act=False)"
    blocks = -(-k // block)
    is_packed = names.get(3) in constants and constants[names[3]].data_type == onnx.TensorProto.UINT8
    zero_points = n * -(-blocks * bits // 8) if is_packed else n * blocks
    for index, role, wanted in (
        (1, "the weight", n * blocks * (block * bits // 8)),
        (2, "scales", n * blocks),
        (3, "zero points", zero_points),
        (5, "the bias", n),
    ):
        tensor = constants.get(names.get(index, ""))
        if index == 1 and tensor is not None and tensor.data_type != onnx.TensorProto.UINT8:
            return f"{role} is {type_name(tensor.data_type)}; packed codes are uint8"
        count = None if tensor is None else int(np.prod(tensor.dims))
        if count is not None and count != wanted:
            return f"{role}: {count} elements, but N={n}, K={k}, block_size={block}, bits={bits} need {wanted}"
    return None


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A quantized weight as rows of outputs.

    codes: (n, k) without sign.
    scales, zeros: (n, blocks). Zeros are codes, None for 2^(bits - 1).
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    bits: int
    block: int


# Graph, name of a matrix, and whether its rows are outputs, not its columns -> the matrix, or None if it stays.
WeightOf = Callable[[Graph, str, bool], "Weight | None"]


def with_packed_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products of blocked, dequantized weights as MatMulNBits."""
    return with_products(model, _blocked_weight)


def with_packed_weights_of_few_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products of few rows and dequantized weights as MatMulNBits.

    These are products of floats, as of activations of 16 bits. A weight has one scale, or one for each output. Products
    of more rows stay: they are bound by arithmetic, and products of floats have more kinds of kernels.
    """
    return with_products(model, _weight_of_channels, _MOST_FEW)


@rule("Gemm", "MatMul", drops=("DequantizeLinear", "Transpose"))
def with_products(node: onnx.NodeProto, graph: Graph, weight_of: WeightOf, most_rows: int | None = None) -> None:
    """Replace a product by MatMulNBits if `weight_of` has its weight.

    most_rows: most rows of its activations. None: any number.
    """
    attributes = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0} | attributes_of(node)
    if (attributes["alpha"], attributes["beta"], attributes["transA"]) != (1.0, 1.0, 0):
        return
    shape = graph.shapes.get(node.input[0])
    if most_rows is not None and (shape is None or not 0 < math.prod(shape[:-1]) <= most_rows):
        return
    name, is_rows = node.input[1], bool(attributes["transB"])
    weight = weight_of(graph, name, is_rows)
    if weight is None:
        return
    n, k = weight.codes.shape
    packed = _bytes_of(weight.codes, weight.bits, weight.block * weight.bits // 8)
    arrays = {"packed": packed.reshape(n, -(-k // weight.block), -1), "scales": weight.scales}
    if weight.zeros is not None:
        arrays["zeros"] = _bytes_of(weight.zeros, weight.bits, 1)
    rows = "/rows" if is_rows else ""
    inputs = [
        graph.once(f"{name}/{role}{rows}", functools.partial(graph.constant, value=values))
        for role, values in arrays.items()
    ]
    bias = [*[""] * (3 - len(inputs)), "", node.input[2]] if len(node.input) > 2 else []
    numbers = {"K": k, "N": n, "bits": weight.bits, "block_size": weight.block}
    graph.import_domain(MICROSOFT)
    product = helper.make_node(PRODUCT, [node.input[0], *inputs, *bias], node.output, node.name, domain=MICROSOFT)
    product.attribute.extend(helper.make_attribute(*each) for each in numbers.items())
    graph.replace(node, product)


def _blocked_weight(graph: Graph, name: str, is_rows: bool) -> Weight | None:
    """Return the blocked weight that a name holds. is_rows: whether its rows are outputs, not its columns."""
    source = _source(graph, name, is_rows)
    if source is None or source.block < LEAST_BLOCK or source.block & (source.block - 1):
        return None
    return _weight_of(source) if source.axis == (1 if source.is_rows else 0) else None


def _weight_of_channels(graph: Graph, name: str, is_rows: bool) -> Weight | None:
    """Return the weight that a name holds, if it has one scale, or one for each output."""
    source = _source(graph, name, is_rows)
    if source is None or source.block or any(array.ndim > 1 for array in source.arrays[1:]):
        return None
    if source.arrays[1].size > 1 and source.axis != (0 if source.is_rows else 1):
        return None
    outputs, k = source.arrays[0].shape if source.is_rows else source.arrays[0].shape[::-1]
    blocks = -(-k // _BLOCK_OF_CHANNELS)
    if any(array.size not in (1, outputs) for array in source.arrays[1:]):
        return None
    along = [np.broadcast_to(array.reshape(-1, 1), (outputs, blocks)) for array in source.arrays[1:]]
    spread = [array if source.is_rows else array.T for array in along]
    return _weight_of(replace(source, arrays=[source.arrays[0], *spread], block=_BLOCK_OF_CHANNELS))


def _source(graph: Graph, name: str, is_rows: bool) -> _Source | None:
    """Return what is dequantized to a matrix of 2, 4 or 8 bits, perhaps transposed behind that."""
    node = graph.producers.get(name)
    while node is not None and node.op_type == "Transpose" and list(attributes_of(node).get("perm", (1, 0))) == [1, 0]:
        is_rows, node = not is_rows, graph.producers.get(node.input[0])
    if node is None or node.op_type != "DequantizeLinear" or node.domain not in STANDARD:
        return None
    attributes = attributes_of(node)
    arrays = [graph.array(input_name) for input_name in node.input if input_name]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or known[0].dtype.name not in _BITS_OF or known[0].ndim != 2:
        return None
    if known[1].dtype.name not in ("float32", "float16") or attributes.get("output_dtype", 0):
        return None
    block, axis = int(attributes.get("block_size", 0)), int(attributes.get("axis", 1)) % 2
    return _Source(arrays=known, block=block, axis=axis, is_rows=is_rows)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The inputs of a DequantizeLinear: codes, scales and perhaps zero points.

    block: 0 without blocks.
    is_rows: whether rows of the codes are outputs, not their columns.
    """

    arrays: list[np.ndarray]
    block: int
    axis: int
    is_rows: bool


def _weight_of(source: _Source) -> Weight:
    """Return the weight of codes whose scales and zero points are those of blocks."""
    codes, scales, *zeros = source.arrays
    bits, is_signed = _BITS_OF[codes.dtype.name], codes.dtype.name.startswith("int")
    offset = 1 << bits - 1 if is_signed else 0
    arrays = [codes, *zeros] if zeros else [codes, np.zeros(scales.shape, np.int8)]
    unsigned = [(values.astype(np.int16) + offset).astype(np.uint8) for values in arrays]
    rows = [values if source.is_rows else values.T for values in (unsigned[0], scales, unsigned[1])]
    is_symmetric = is_signed and bool(np.all(rows[2] == offset))
    zero_points = None if is_symmetric else rows[2]
    return Weight(codes=rows[0], scales=rows[1], zeros=zero_points, bits=bits, block=source.block)


def _bytes_of(codes: np.ndarray, bits: int, multiple: int) -> np.ndarray:
    """Return codes (n, count) packed into rows of bytes, a multiple of `multiple`. The first code has the low bits."""
    per_byte = 8 // bits
    full = np.pad(codes, ((0, 0), (0, -codes.shape[1] % (per_byte * multiple))))
    split = full.reshape(len(codes), -1, per_byte)
    packed = np.zeros(split.shape[:2], np.uint8)
    for position in range(per_byte):
        packed |= split[:, :, position] << np.uint8(bits * position)
    return packed
