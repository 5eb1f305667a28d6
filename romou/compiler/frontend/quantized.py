"""Products with quantized weights: refused forms, and blocked weights as MatMulNBits.

    DequantizeLinear(int4 [N, K], axis=1, block_size) -> Transpose -> MatMul
        ->      MatMulNBits, whose weight stays packed on the device

It has to happen before constants are folded, which would make floats of the weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from romou.base.errors import ModelError
from romou.compiler.frontend.onnx_graph import (
    Shapes,
    constant_tensors,
    drop_unread_weights,
    free_name,
    replace_nodes,
    shapes_of,
    type_name,
    without_unread,
)
from tvm_patches.onnx_converters.node import MICROSOFT
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


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


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
    attributes = _attributes(node)
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


# Name of a matrix, and whether its rows are outputs, not its columns -> the matrix, or None if it stays as it is.
WeightOf = Callable[[str, bool], "Weight | None"]


def with_packed_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products of blocked, dequantized weights as MatMulNBits."""
    return with_products(model, _Dequantized(model).weight)


def with_packed_weights_of_few_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products of few rows and dequantized weights as MatMulNBits.

    These are products of floats, as of activations of 16 bits. A weight has one scale, or one for each output. Products
    of more rows stay: they are bound by arithmetic, and products of floats have more kinds of kernels.
    """
    shapes = shapes_of(model.graph)

    def has_few_rows(node: onnx.NodeProto) -> bool:
        shape = shapes.get(node.input[0])
        return shape is not None and 0 < math.prod(shape[:-1]) <= _MOST_FEW

    return with_products(model, _Dequantized(model).weight_of_channels, has_few_rows)


def with_products(
    model: onnx.ModelProto, weight_of: WeightOf, is_taken: Callable[[onnx.NodeProto], bool] = lambda _: True
) -> onnx.ModelProto:
    """Return the model with MatMul and Gemm as MatMulNBits if they are taken and `weight_of` has their weight.

    is_taken: whether a MatMul or Gemm may be one.
    """
    packer = _Packer(model, weight_of, is_taken)
    nodes = list(itertools.chain.from_iterable(map(packer.packed, model.graph.node)))
    if not packer.tensors:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    if not any(entry.domain == MICROSOFT for entry in result.opset_import):
        result.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    result.graph.initializer.extend(packer.tensors)
    replace_nodes(result.graph, without_unread(nodes, {value.name for value in result.graph.output}))
    drop_unread_weights(result.graph)
    return result


class _Packer:
    """The products of a model, one after the other, and the constants that they need."""

    def __init__(self, model: onnx.ModelProto, weight_of: WeightOf, is_taken: Callable[[onnx.NodeProto], bool]) -> None:
        self._graph, self._weight_of, self._is_taken = model.graph, weight_of, is_taken
        self.tensors: list[onnx.TensorProto] = []
        # Name of a matrix, and whether its rows are outputs -> inputs 1 to 3 and attributes of its products.
        self._weights: dict[tuple[str, bool], tuple[list[str], dict[str, Any]] | None] = {}

    def packed(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the product in place of a node, or the node."""
        attributes = _attributes(node)
        is_gemm = node.op_type == "Gemm" and not attributes.get("transA", 0)
        is_plain = node.domain in ("", "ai.onnx") and (is_gemm or node.op_type == "MatMul")
        has_factors = attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0
        if not is_plain or has_factors or not self._is_taken(node):
            yield node
            return
        key = node.input[1], bool(attributes.get("transB", 0))
        if key not in self._weights:
            self._weights[key] = self._packed_weight(*key)
        weight = self._weights[key]
        if weight is None:
            yield node
            return
        inputs, numbers = weight
        bias = [*[""] * (4 - len(inputs)), node.input[2]] if len(node.input) > 2 else []
        yield helper.make_node(
            PRODUCT, [node.input[0], *inputs, *bias], node.output, name=node.name, domain=MICROSOFT, **numbers
        )

    def _packed_weight(self, name: str, is_rows: bool) -> tuple[list[str], dict[str, Any]] | None:
        weight = self._weight_of(name, is_rows)
        if weight is None:
            return None
        n, k = weight.codes.shape
        packed = _bytes_of(weight.codes, weight.bits, weight.block * weight.bits // 8)
        arrays = {
            "packed": packed.reshape(n, -(-k // weight.block), -1),
            "scales": weight.scales,
        }
        if weight.zeros is not None:
            arrays["zeros"] = _bytes_of(weight.zeros, weight.bits, 1)
        inputs = []
        for role, values in arrays.items():
            inputs.append(free_name(self._graph, f"{name}/{role}" + ("/rows" if is_rows else "")))
            self.tensors.append(numpy_helper.from_array(values, inputs[-1]))
        return inputs, {"K": k, "N": n, "bits": weight.bits, "block_size": weight.block}


class _Dequantized:
    """The blocked, dequantized weights of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._constants = constant_tensors(model.graph)
        self._made_by = {name: node for node in model.graph.node for name in node.output}

    def weight(self, name: str, is_rows: bool) -> Weight | None:
        """Return the blocked weight that a name holds. is_rows: whether its rows are outputs, not its columns."""
        source = self._source(name, is_rows)
        if source is None or source.block < LEAST_BLOCK or source.block & (source.block - 1):
            return None
        return _weight_of(source) if source.axis == (1 if source.is_rows else 0) else None

    def weight_of_channels(self, name: str, is_rows: bool) -> Weight | None:
        """Return the weight that a name holds, if it has one scale, or one for each output."""
        source = self._source(name, is_rows)
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

    def _source(self, name: str, is_rows: bool) -> _Source | None:
        """Return what is dequantized to a matrix of 2, 4 or 8 bits, perhaps transposed behind that."""
        node = self._made_by.get(name)
        while (
            node is not None and node.op_type == "Transpose" and list(_attributes(node).get("perm", (1, 0))) == [1, 0]
        ):
            is_rows, node = not is_rows, self._made_by.get(node.input[0])
        if node is None or node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
            return None
        attributes = _attributes(node)
        names = [input_name for input_name in node.input if input_name]
        arrays = [numpy_helper.to_array(self._constants[name]) for name in names if name in self._constants]
        if len(arrays) < len(names) or arrays[0].dtype.name not in _BITS_OF or arrays[0].ndim != 2:
            return None
        if arrays[1].dtype.name not in ("float32", "float16") or attributes.get("output_dtype", 0):
            return None
        block, axis = int(attributes.get("block_size", 0)), int(attributes.get("axis", 1)) % 2
        return _Source(arrays=arrays, block=block, axis=axis, is_rows=is_rows)


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
