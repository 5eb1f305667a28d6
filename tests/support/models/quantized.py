"""Models of one product with a quantized weight, and its result by the definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass(frozen=True, kw_only=True)
class QuantizedCase:
    """A MatMulNBits.

    zero: "none", "uint8" or "float" zero points.
    """

    m: int
    k: int
    n: int
    bits: int = 4
    block: int = 32
    zero: str = "none"
    has_bias: bool = False
    dtype: str = "float32"

    def model(self, seed: int = 0, **attributes: int) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
        """Return the model, an input and the result in double precision. Half of the scales are negative."""
        rng = np.random.default_rng(seed)
        blocks = -(-self.k // self.block)
        codes = rng.integers(0, 1 << self.bits, (self.n, blocks * self.block)).astype(np.uint8)
        scales = rng.uniform(0.5, 1.5, (self.n, blocks)) * rng.choice([-1, 1], (self.n, blocks)) / (1 << self.bits)
        scales = scales.astype(self.dtype)
        data = rng.standard_normal((self.m, self.k)).astype(self.dtype)
        zeros = np.full((self.n, blocks), 1 << self.bits - 1, np.float64)
        arrays = {"packed": packed(codes, self.bits).reshape(self.n, blocks, -1), "scales": scales.reshape(-1)}
        if self.zero == "uint8":
            points = rng.integers(0, 1 << self.bits, (self.n, blocks)).astype(np.uint8)
            zeros, arrays["zeros"] = points.astype(np.float64), packed(points, self.bits)
        elif self.zero == "float":
            arrays["zeros"] = rng.uniform(0, 1 << self.bits, (self.n, blocks)).astype(self.dtype)
            zeros = arrays["zeros"].astype(np.float64)
        weight = (codes.reshape(self.n, blocks, -1) - zeros[:, :, None]) * scales.astype(np.float64)[:, :, None]
        result = data.astype(np.float64) @ weight.reshape(self.n, -1)[:, : self.k].T
        names = list(arrays)
        if self.has_bias:
            arrays["bias"] = rng.standard_normal(self.n).astype(self.dtype)
            result = result + arrays["bias"].astype(np.float64)
            names += ["", "", "bias"][len(names) - 2 :]
        return self._graph(arrays, names, attributes), data, result

    def _graph(self, arrays: dict[str, np.ndarray], names: list[str], attributes: dict[str, int]) -> onnx.ModelProto:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        numbers = {"K": self.k, "N": self.n, "bits": self.bits, "block_size": self.block, **attributes}
        node = helper.make_node("MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", **numbers)
        return model_of(
            [node],
            [helper.make_tensor_value_info("x", element, [self.m, self.k])],
            [helper.make_tensor_value_info("y", element, [self.m, self.n])],
            arrays,
        )


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    arrays: dict[str, np.ndarray],
) -> onnx.ModelProto:
    """Return a model of opset 21 with onnxruntime's operators."""
    graph = helper.make_graph(
        nodes, "quantized", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return rows of codes as rows of bytes, the first code in the low bits."""
    per_byte = 8 // bits
    full = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_byte))).reshape(len(codes), -1, per_byte)
    rows: np.ndarray = np.bitwise_or.reduce(full << np.arange(0, 8, bits, dtype=np.uint8), axis=-1)
    return rows
