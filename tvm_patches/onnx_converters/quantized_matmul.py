"""Products with matrices of 2, 4 or 8 bits (com.microsoft), which the wheel lacks. Weights stay packed."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvm_patches.onnx_converters.node import MICROSOFT, Node, converter
from tvm_patches.quantized_matrix import QuantizedMatrix, unpacked

# Pattern kind of TVM for functions into which element-wise consumers are fused.
_OUT_ELEMWISE_FUSABLE = 4


@converter("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(node: Node) -> relax.Expr:
    """Return A x B^T + bias for B of shape (N, ceil(K / block_size), block_size * bits / 8)."""
    matrix, shape = _matrix_of(node), node.shape()
    if shape[-1] != matrix.k:
        raise ValueError(f"a row of activations has {shape[-1]} elements, but K={matrix.k}")
    rows = node.input(0) if len(shape) == 2 else node.emit(relax.op.reshape(node.input(0), (-1, shape[-1])))
    work = matrix.product(math.prod(shape[:-1]), node.dtype())
    result = node.builder.emit_te(
        work.define,
        rows,
        *map(relax.const, matrix.arrays),
        primfunc_name_hint="quantized_product",
        primfunc_attrs={"op_pattern": _OUT_ELEMWISE_FUSABLE},
    )
    if len(shape) != 2:
        result = node.emit(relax.op.reshape(result, (*shape[:-1], work.n)))
    return relax.op.add(result, node.input(5)) if node.has(5) else result


def _matrix_of(node: Node) -> QuantizedMatrix:
    n, k = int(node.attributes["N"]), int(node.attributes["K"])
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes["block_size"])
    packed, scales, zeros = (node.constant(index) for index in (1, 2, 3))
    if packed is None or scales is None or (zeros is None and node.has(3)):
        raise ValueError("its weight is computed at run time")
    if node.has(4) and not is_identity(node.constant(4), k, block):
        raise ValueError("g_idx reorders the blocks")
    if node.attributes.get("weight_prepacked", 0):
        raise ValueError("its weight is packed for CUDA kernels of onnxruntime")
    blocks = -(-k // block)
    codes = unpacked(packed.reshape(n, -1), bits, k)
    if zeros is not None:
        zeros = unpacked(zeros.reshape(n, -1), bits, blocks) if zeros.dtype == np.uint8 else zeros.reshape(n, blocks)
    return QuantizedMatrix.pack(codes, scales.reshape(n, blocks), zeros, bits=bits, block=block)


def is_identity(indices: np.ndarray | None, k: int, block: int) -> bool:
    """Return whether each element's group is its own block. The last block may be padded."""
    if indices is None or indices.size not in (k, -(-k // block) * block):
        return False
    return np.array_equal(indices.reshape(-1), np.arange(indices.size) // block)
