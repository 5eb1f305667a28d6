"""Quantize the constant weights of products by rounding to the nearest code, without data.

    MatMul(x, w: fp32 [K, N])      ->      MatMulNBits(x, codes, scales)

Each block of a row has one scale. The number with the largest magnitude gets the lowest code, which has no positive
counterpart, so scales may be negative and all codes are used.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from romou.compiler.frontend.onnx_graph import Graph
from romou.compiler.frontend.quantized import Weight, with_products


def rounded_codes(weight: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (n, k) and scales (n, blocks) of a weight (n, k)."""
    n, k = weight.shape
    blocks, middle = -(-k // block), 1 << bits - 1
    split = np.pad(weight.astype(np.float32), ((0, 0), (0, blocks * block - k))).reshape(n, blocks, block)
    extreme = np.take_along_axis(split, np.abs(split).argmax(axis=2, keepdims=True), axis=2)
    # The scale is rounded before the codes are chosen for it.
    scales = (extreme / -middle).astype(weight.dtype).astype(np.float32)
    quotients = np.divide(split, scales, out=np.zeros_like(split), where=scales != 0)
    codes = np.clip(np.rint(quotients) + middle, 0, 2 * middle - 1).astype(np.uint8)
    return codes.reshape(n, -1)[:, :k], scales[:, :, 0].astype(weight.dtype)


def with_rounded_weights(model: onnx.ModelProto, bits: int, block: int) -> tuple[onnx.ModelProto, dict[str, float]]:
    """Return the model with quantized weights of products, and the relative L2 error of each weight by its name.

    Weights of fewer rows than a block stay as they are.
    """
    errors = dict[str, float]()

    def weight_of(graph: Graph, name: str, is_rows: bool) -> Weight | None:
        tensor = graph.constants.get(name)
        if tensor is None or tensor.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
            return None
        values = numpy_helper.to_array(tensor)
        if values.ndim != 2 or (weight := values if is_rows else values.T).shape[1] < block:
            return None
        codes, scales = rounded_codes(weight, bits, block)
        steps = np.repeat(scales.astype(np.float64), block, axis=1)[:, : weight.shape[1]]
        difference = (codes.astype(np.float64) - (1 << bits - 1)) * steps - weight
        length = float(np.linalg.norm(weight.astype(np.float64)))
        errors[name] = float(np.linalg.norm(difference)) / length if length else 0.0
        return Weight(codes=codes, scales=scales, zeros=None, bits=bits, block=block)

    return with_products(model, weight_of), errors
