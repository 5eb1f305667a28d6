"""A small decoder of a language model, in the form that onnxruntime-genai exports: int4 weights and a cache.

    ids -> GatherBlockQuantized -> layers -> SkipSimplifiedLayerNormalization -> MatMulNBits -> logits

    layer: norm -> MatMulNBits (Q, K, V) -> GroupQueryAttention -> MatMulNBits -> norm -> gated MatMulNBits

The embedding and the last product read one weight. The numbers are seeded: the decoder knows no language, but computes
what a real one of its shape computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

_MICROSOFT = "com.microsoft"
# Standard deviation of whole numbers from -7 to 7. Their mean is 0, else all tokens would have one successor.
_DEVIATION = 4.3
# Factor of the products that end a layer's halves.
_GAIN = 4.0


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The sizes of a decoder. The defaults are small; `FULL` has those of a model of half a billion weights.

    heads, shared: heads of queries, and of keys and values.
    size: elements of a head.
    inner: width of the gated part of a layer.
    words: rows of the embedding.
    longest: tokens that a cache has room for.
    bits: 4, or 32 for products with fp32 weights.
    """

    layers: int = 2
    width: int = 512
    heads: int = 8
    shared: int = 2
    size: int = 64
    inner: int = 1536
    words: int = 4096
    longest: int = 256
    block: int = 32
    bits: int = 4

    @property
    def weights(self) -> int:
        """Weights that a token reads in products."""
        attention = self.width * self.size * (2 * self.heads + 2 * self.shared)
        return self.layers * (attention + 3 * self.width * self.inner) + self.width * self.words


FULL = DecoderShape(layers=24, width=896, heads=14, inner=4864, words=151936, longest=2048)


def decoder(shape: DecoderShape | None = None, *, seed: int = 0) -> onnx.ModelProto:
    """Return a decoder of one token at a time. Other shapes of its inputs make it read a prompt."""
    builder = _Builder(shape or DecoderShape(), np.random.default_rng(seed))
    builder.build()
    return builder.model()


class _Builder:
    """The nodes and the weights of a decoder while it is built."""

    def __init__(self, shape: DecoderShape, rng: np.random.Generator) -> None:
        self.shape, self._rng = shape, rng
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def model(self) -> onnx.ModelProto:
        from onnx import helper

        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, self._weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def build(self) -> None:
        """Add all nodes, inputs and outputs."""
        s = self.shape
        self._input("input_ids", (1, 1), "int64")
        self._input("attention_mask", (1, s.longest), "int64")
        one = self._constant("one", np.array([1], np.int64))
        last = self._node("Sub", [self._node("ReduceSum", ["attention_mask", one], "length", keepdims=0), one], "last")
        lengths = (self._node("Cast", [last], "seqlens_k", to=6), self._total(one))
        angles = np.arange(s.longest)[:, None] / 10000 ** (np.arange(0, s.size, 2) / s.size)[None]
        caches = [
            self._constant(f"{name}_cache", getattr(np, name)(angles).astype("float32")) for name in ("cos", "sin")
        ]
        hidden, total = self._embedded(), ""
        for layer in range(s.layers):
            hidden, total = self._layer(layer, hidden, total, [*lengths, *caches])
        normal, _ = self._normal("final_norm", hidden, total)
        self._product("lm_head", normal, s.width, s.words, "logits")
        self._output("logits", (1, 1, s.words))

    def _total(self, one: str) -> str:
        extents = self._node("Shape", ["attention_mask"], "mask_shape")
        total = self._node("Gather", [extents, one], "total", axis=0)
        return self._node("Cast", [total], "total_sequence_length", to=6)

    def _embedded(self) -> str:
        s = self.shape
        if s.bits != 4:
            return self._node("Gather", [self._normals("embedding", (s.words, s.width)), "input_ids"], "embedded")
        blocks = s.width // s.block
        weight, scales = self._quantized("lm_head", s.words, s.width)
        rows = self._node(
            "Reshape", [weight, self._constant("rows", np.array([s.words, s.width // 2]))], "rows_of_words"
        )
        rows_of_scales = self._constant("scales_shape", np.array([s.words, blocks]))
        scales = self._node("Reshape", [scales, rows_of_scales], "scales_of_words")
        inputs = [rows, "input_ids", scales]
        return self._node(
            "GatherBlockQuantized", inputs, "embedded", bits=4, block_size=s.block, gather_axis=0, quantize_axis=1
        )

    def _layer(self, layer: int, hidden: str, total: str, others: Sequence[str]) -> tuple[str, str]:
        """Add a layer. Return its result, and the sum that it belongs to."""
        s, name = self.shape, f"layers.{layer}"
        normal, total = self._normal(f"{name}.input_norm", hidden, total)
        packed = self._product(f"{name}.qkv", normal, s.width, (s.heads + 2 * s.shared) * s.size)
        pasts = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        presents = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        for past, present in zip(pasts, presents, strict=True):
            self._input(past, (1, s.shared, s.longest, s.size), "float32")
            self._output(present, (1, s.shared, s.longest, s.size))
        attended = self._node(
            "GroupQueryAttention",
            [packed, "", "", *pasts, *others],
            [f"{name}.attended", *presents],
            num_heads=s.heads,
            kv_num_heads=s.shared,
            do_rotary=1,
        )
        projected = self._product(f"{name}.o", attended, s.heads * s.size, s.width)
        normal, total = self._normal(f"{name}.inner_norm", projected, total)
        gate = self._product(f"{name}.gate", normal, s.width, s.inner)
        up = self._product(f"{name}.up", normal, s.width, s.inner)
        gate = self._node("Mul", [gate, self._node("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.swish")
        inner = self._node("Mul", [gate, up], f"{name}.gated")
        return self._product(f"{name}.down", inner, s.inner, s.width), total

    def _normal(self, name: str, hidden: str, total: str) -> tuple[str, str]:
        """Normalize the sum of a layer's result and of what came before. Return both."""
        weight = self._constant(f"{name}.weight", (1 + 0.1 * self._rng.standard_normal(self.shape.width)).astype("f4"))
        if not total:
            return self._node("SimplifiedLayerNormalization", [hidden, weight], name, axis=-1, epsilon=1e-6), hidden
        outputs = [name, "", "", f"{name}.sum"]
        self._node("SkipSimplifiedLayerNormalization", [total, hidden, weight], outputs, epsilon=1e-6)
        return name, outputs[-1]

    def _product(self, name: str, data: str, inside: int, outside: int, output: str = "") -> str:
        output = output or f"{name}.result"
        if self.shape.bits != 4:
            return self._node("MatMul", [data, self._normals(f"{name}.weight", (inside, outside))], output)
        inputs = [data, *self._quantized(name, outside, inside)]
        return self._node("MatMulNBits", inputs, output, K=inside, N=outside, bits=4, block_size=self.shape.block)

    def _quantized(self, name: str, rows: int, columns: int) -> tuple[str, str]:
        """Return the names of a weight of int4 and of its scales, which are made once."""
        names = f"{name}.weight_Q4", f"{name}.weight_scales"
        if all(tensor.name != names[0] for tensor in self._weights):
            blocks = columns // self.shape.block
            low, high = self._rng.integers(1, 16, (2, rows, blocks, self.shape.block // 2), dtype=np.uint8)
            self._constant(names[0], low | high << 4)
            # What layers add outweighs the embedding. Else the embedding's own token would be the most likely one.
            gain = _GAIN if rows == self.shape.width else 1.0
            scales = gain * self._rng.uniform(0.8, 1.2, rows * blocks) / (_DEVIATION * np.sqrt(columns))
            self._constant(names[1], scales.astype(np.float32))
        return names

    def _normals(self, name: str, shape: tuple[int, int]) -> str:
        return self._constant(name, (self._rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def _constant(self, name: str, values: np.ndarray) -> str:
        from onnx import numpy_helper

        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def _node(self, operator: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> str:
        """Add a node, and return the name of its first output."""
        import onnx
        from onnx import helper

        names = [outputs] if isinstance(outputs, str) else list(outputs)
        is_standard = operator == "SimplifiedLayerNormalization" or onnx.defs.has(operator)
        domain = "" if is_standard else _MICROSOFT
        self._nodes.append(helper.make_node(operator, list(inputs), names, name=names[0], domain=domain, **attributes))
        return names[0]

    def _input(self, name: str, shape: Sequence[int], dtype: str) -> None:
        from onnx import helper

        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))

    def _output(self, name: str, shape: Sequence[int]) -> None:
        from onnx import TensorProto, helper

        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
