"""Products with matrices of 2, 4 or 8 bits (com.microsoft), which the wheel lacks. Weights stay packed."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvm_patches.domains import MICROSOFT
from tvm_patches.onnx_converters.node import Node, converter
from tvm_patches.quantized_matrix import QuantizedMatrix, unpacked

# Pattern kind of TVM for functions into which element-wise consumers are fused.
_OUT_ELEMWISE_FUSABLE = 4
# Numbers that the codes of MatMulBnb4 stand for, of bitsandbytes: (quant_type, code).
_FP4 = (0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_TABLES = np.array([(*_FP4, *(-number for number in _FP4)), _NF4], np.float32)
# Fewest codes of a block that kernels have: a vector.
_LEAST_BLOCK = 4


@converter("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(node: Node) -> relax.Expr:
    """Return A x B^T + bias for B of shape (N, ceil(K / block_size), block_size * bits / 8)."""
    matrix, shape = _matrix_of(node), node.shape()
    if shape[-1] != matrix.k:
        raise ValueError(f"a row of activations has {shape[-1]} elements, but K={matrix.k}")
    result = _product(node, matrix)
    return relax.op.add(result, node.input(5)) if node.has(5) else result


@converter("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(node: Node) -> relax.Expr:
    """Return A x B^T for B of shape (N, K), whose codes are four-bit floats of bitsandbytes.

    A byte holds two codes, the first one in its high bits. Blocks lie along the flattened matrix. If they do not end
    with the rows, kernels have shorter blocks that do.
    """
    packed, largest = node.constant(1), node.constant(2)
    if packed is None or largest is None:
        raise ValueError("its weight is computed at run time")
    n, k, block = (int(node.attributes[name]) for name in ("N", "K", "block_size"))
    table = _TABLES[int(node.attributes["quant_type"])]
    codes = np.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], axis=-1).reshape(-1)[: n * k].reshape(n, k)
    shorter = block_of_rows(k, block)
    if shorter is None:
        scales = np.repeat(largest.reshape(-1).astype(np.float32), block)[: n * k].reshape(n, k)
        weight = np.ascontiguousarray((table[codes] * scales).T)
        return relax.op.matmul(node.input(0), relax.const(weight.astype(node.dtype()), node.dtype()))
    scales = np.repeat(largest.reshape(-1), block // shorter)[: n * k // shorter].reshape(n, -1)
    return _product(node, QuantizedMatrix.pack(codes, scales, table=table, bits=4, block=shorter))


def block_of_rows(k: int, block: int) -> int | None:
    """Return the longest block of rows of `k` codes that divides blocks of the flattened matrix.

    None if kernels have no block that short.
    """
    divisor = math.gcd(k, block)
    power_of_two = divisor & -divisor
    return power_of_two if power_of_two >= _LEAST_BLOCK else None


def _product(node: Node, matrix: QuantizedMatrix) -> relax.Expr:
    """Return the product of the node's first input with the matrix."""
    shape = node.shape()
    rows = node.input(0) if len(shape) == 2 else node.emit(relax.op.reshape(node.input(0), (-1, shape[-1])))
    work = matrix.product(math.prod(shape[:-1]), node.dtype())
    result = node.builder.emit_te(
        work.define,
        rows,
        *map(relax.const, matrix.arrays),
        primfunc_name_hint="quantized_product",
        primfunc_attrs={"op_pattern": _OUT_ELEMWISE_FUSABLE},
    )
    return result if len(shape) == 2 else node.emit(relax.op.reshape(result, (*shape[:-1], work.n)))


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
