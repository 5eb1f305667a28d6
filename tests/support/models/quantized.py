"""Models of one product with a quantized weight, and its result by the definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import te, tirx

from romou.compiler.task import TunableTask
from tvm_patches.quantized_matrix import QuantizedMatrix


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The numbers of a product. zeros: None for 2^(bits - 1). bias, table: None for none."""

    data: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    bias: np.ndarray | None
    case: QuantizedCase
    table: np.ndarray | None = None

    @property
    def result(self) -> np.ndarray:
        """The result by the definition, in double precision."""
        case = self.case
        zeros = np.full(self.scales.shape, 1 << case.bits - 1) if self.zeros is None else self.zeros
        scales, points = (
            np.repeat(a.astype(np.float64), case.block, axis=1)[:, : case.k] for a in (self.scales, zeros)
        )
        numbers = self.codes - points if self.table is None else self.table[self.codes].astype(np.float64)
        result: np.ndarray = self.data.astype(np.float64) @ (numbers * scales).T
        return result if self.bias is None else result + self.bias.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class QuantizedCase:
    """A MatMulNBits.

    zero: "none", "uint8" or "float" zero points, or "table" for codes that stand for random numbers.
    """

    m: int
    k: int
    n: int
    bits: int = 4
    block: int = 32
    zero: str = "none"
    has_bias: bool = False
    dtype: str = "float32"

    def draw(self, seed: int = 0) -> Drawn:
        """Return random numbers. Half of the scales are negative."""
        rng = np.random.default_rng(seed)
        blocks = -(-self.k // self.block)
        scales = rng.uniform(0.5, 1.5, (self.n, blocks)) * rng.choice([-1, 1], (self.n, blocks)) / (1 << self.bits)
        zeros = {
            "none": lambda: None,
            "table": lambda: None,
            "uint8": lambda: rng.integers(0, 1 << self.bits, (self.n, blocks)).astype(np.uint8),
            "float": lambda: rng.uniform(0, 1 << self.bits, (self.n, blocks)).astype(self.dtype),
        }[self.zero]()
        return Drawn(
            data=rng.standard_normal((self.m, self.k)).astype(self.dtype),
            codes=rng.integers(0, 1 << self.bits, (self.n, self.k)).astype(np.uint8),
            scales=scales.astype(self.dtype),
            zeros=zeros,
            bias=rng.standard_normal(self.n).astype(self.dtype) if self.has_bias else None,
            case=self,
            table=rng.standard_normal(1 << self.bits).astype(np.float32) if self.zero == "table" else None,
        )

    def matrix(self, drawn: Drawn) -> QuantizedMatrix:
        """Return the weight as kernels read it."""
        return QuantizedMatrix.pack(
            drawn.codes, drawn.scales, drawn.zeros, drawn.table, bits=self.bits, block=self.block
        )

    def model(self, seed: int = 0, **attributes: int) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
        """Return the model, an input and the result in double precision."""
        drawn = self.draw(seed)
        n, blocks = drawn.scales.shape
        full = np.pad(drawn.codes, ((0, 0), (0, blocks * self.block - self.k)))
        arrays = {"packed": packed(full, self.bits).reshape(n, blocks, -1), "scales": drawn.scales.reshape(-1)}
        if drawn.zeros is not None:
            arrays["zeros"] = packed(drawn.zeros, self.bits) if self.zero == "uint8" else drawn.zeros
        names = list(arrays)
        if drawn.bias is not None:
            arrays["bias"] = drawn.bias
            names += ["", "", "bias"][len(names) - 2 :]
        return self._graph(arrays, names, attributes), drawn.data, drawn.result

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


def quantized_task(case: QuantizedCase, *, has_epilogue: bool = False) -> TunableTask:
    """Return the product as a task, perhaps followed by a bias, a ReLU and a product with another tensor."""
    drawn = case.draw()
    matrix = case.matrix(drawn)
    arrays = [drawn.data, *matrix.arrays]
    operands = [te.placeholder(a.shape, str(a.dtype), name) for a, name in zip(arrays, "dwsz", strict=False)]
    total = matrix.product(case.m, case.dtype).define(*operands)
    if has_epilogue:
        bias, other = (
            te.placeholder(shape, case.dtype, name) for name, shape in (("b", (case.n,)), ("o", total.shape))
        )
        operands += [bias, other]
        total = te.compute(
            total.shape, lambda i, j: te.max(total[i, j] + bias[j], tirx.const(0, case.dtype)) * other[i, j]
        )
    task = TunableTask.of(te.create_prim_func([*operands, total]))
    assert task is not None
    return task
