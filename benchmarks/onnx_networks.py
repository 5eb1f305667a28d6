"""Networks of kinds that the bundled ones lack, written in ONNX: a graph of points (DGCNN), sound (Demucs), lines of text
(SVTR), tables (TabNet) and an encoder with relative positions (T5). Weights are random, sizes those of the papers or less.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Net:
    """Builds an ONNX graph node by node."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: int = onnx.TensorProto.FLOAT) -> None:
        self.name, self.rng = name, np.random.default_rng(len(name))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.given = helper.make_tensor_value_info("x", dtype, shape)

    def const(self, values: Any) -> str:
        """Add a constant: floats are fp32, and whole numbers int64."""
        array = np.asarray(values)
        name = f"c{len(self.constants)}"
        self.constants.append(
            numpy_helper.from_array(array.astype("float32") if array.dtype.kind == "f" else array, name)
        )
        return name

    def weight(self, *shape: int, fan_in: int = 1) -> str:
        return self.const(self.rng.standard_normal(shape) * fan_in**-0.5)

    def add(self, operator: str, *reads: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node. Return the name of its output, or a tuple of names."""
        names = [f"{operator}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(reads), names, **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def conv(self, x: str, inputs: int, outputs: int, window: tuple[int, ...] = (3, 3), **attributes: Any) -> str:
        attributes.setdefault("pads", [(k - 1) // 2 for k in window] * 2)
        weight = self.weight(outputs, inputs, *window, fan_in=inputs * int(np.prod(window)))
        return str(self.add("Conv", x, weight, self.weight(outputs), kernel_shape=window, **attributes))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", x, self.weight(inputs, outputs, fan_in=inputs))
        return str(self.add("Add", product, self.weight(outputs)))

    def reshape(self, x: str, *shape: int, perm: tuple[int, ...] = ()) -> str:
        """Add a reshape, and a transpose of its result."""
        y = self.add("Reshape", x, self.const(shape))
        return str(self.add("Transpose", y, perm=perm) if perm else y)

    def gelu(self, y: str) -> str:
        half = self.add(
            "Mul",
            self.add("Add", self.add("Erf", self.add("Div", y, self.const(2**0.5))), self.const(1.0)),
            self.const(0.5),
        )
        return str(self.add("Mul", y, half))

    def glu(self, y: str, axis: int = 1) -> str:
        value, gate = self.add("Split", y, outputs=2, axis=axis, num_outputs=2)
        return str(self.add("Mul", value, self.add("Sigmoid", gate)))

    def attention(self, x: str, tokens: int, width: int, heads: int, bias: str | None = None) -> str:
        """Add attention of all tokens to all. bias: added to the scores."""
        perms = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        q, k, v = (
            self.reshape(self.linear(x, width, width), 1, tokens, heads, width // heads, perm=perm) for perm in perms
        )
        scores = self.add("Mul", self.add("MatMul", q, k), self.const((width / heads) ** -0.5))
        scores = scores if bias is None else self.add("Add", scores, bias)
        mixed = self.add("Transpose", self.add("MatMul", self.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        return self.linear(self.reshape(mixed, 1, tokens, width), width, width)

    def model(self, output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, self.name, [self.given], [helper.make_empty_tensor_value_info(output)], self.constants
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)


def dgcnn(points: int = 1024, nearest: int = 20) -> onnx.ModelProto:
    """Four convolutions of edges to the nearest points, in the space of each layer's features."""
    net = Net("dgcnn", (1, 3, points))
    x, channels, layers = "x", 3, []
    for width in (64, 64, 128, 256):
        inner = net.add("Mul", net.add("MatMul", net.add("Transpose", x, perm=[0, 2, 1]), x), net.const(-2.0))
        squares = net.add("ReduceSum", net.add("Mul", x, x), net.const([1]), keepdims=1)
        apart = net.add("Add", net.add("Add", inner, squares), net.add("Transpose", squares, perm=[0, 2, 1]))
        _, at = net.add("TopK", net.add("Neg", apart), net.const([nearest]), outputs=2, axis=-1)
        flat = net.reshape(net.add("Transpose", x, perm=[0, 2, 1]), points, channels)
        edges = 1, points, nearest, channels
        others = net.reshape(net.add("Gather", flat, net.reshape(at, points * nearest), axis=0), *edges)
        own = net.add("Expand", net.reshape(flat, 1, points, 1, channels), net.const(edges))
        pairs = net.add("Transpose", net.add("Concat", net.add("Sub", others, own), own, axis=3), perm=[0, 3, 1, 2])
        x = net.add(
            "ReduceMax",
            net.add("LeakyRelu", net.conv(pairs, 2 * channels, width, (1, 1)), alpha=0.2),
            net.const([-1]),
            keepdims=0,
        )
        layers.append(x)
        channels = width
    y = net.add("LeakyRelu", net.conv(net.add("Concat", *layers, axis=1), 512, 1024, (1,)), alpha=0.2)
    y = net.add("Flatten", net.add("Concat", net.add("GlobalMaxPool", y), net.add("GlobalAveragePool", y), axis=1))
    return net.model(net.linear(net.add("LeakyRelu", net.linear(y, 2048, 256), alpha=0.2), 256, 40))


def demucs(samples: int = 16384) -> onnx.ModelProto:
    """Convolutions of sound with strides, two LSTMs of both directions, and transposed convolutions."""
    net = Net("demucs", (1, 2, samples))
    skips, channels, y = [], 2, "x"
    for width in (32, 64, 128, 128):
        y = net.add("Relu", net.conv(y, channels, width, (8,), strides=[4], pads=[2, 2]))
        y = net.glu(net.conv(y, width, 2 * width, (1,)))
        skips.append((y, width))
        channels, samples = width, samples // 4
    y = net.add("Transpose", y, perm=[2, 0, 1])
    for inputs in (128, 256):
        weights = net.weight(2, 512, inputs, fan_in=inputs), net.weight(2, 512, 128, fan_in=128), net.weight(2, 1024)
        y, _, _ = net.add("LSTM", y, *weights, outputs=3, hidden_size=128, direction="bidirectional")
        y = net.reshape(net.add("Transpose", y, perm=[0, 2, 1, 3]), samples, 1, 256)
    y = net.add("Transpose", net.linear(y, 256, 128), perm=[1, 2, 0])
    for (skip, width), outputs in zip(reversed(skips), (128, 64, 32, 2), strict=True):
        y = net.glu(net.conv(net.add("Add", y, skip), width, 2 * width, (3,)))
        kernel, bias = net.weight(width, outputs, 8, fan_in=2 * width), net.weight(outputs)
        y = net.add("ConvTranspose", y, kernel, bias, kernel_shape=[8], strides=[4], pads=[2, 2])
        y = net.add("Relu", y) if outputs > 2 else y
    return net.model(y)


def svtr() -> onnx.ModelProto:
    """Mixing blocks of a line of text of 32 x 100 pixels, near patches first and all later."""
    net = Net("svtr", (1, 3, 32, 100))
    y = net.gelu(net.conv(net.gelu(net.conv("x", 3, 32, strides=[2, 2])), 32, 64, strides=[2, 2]))
    tall, wide, width, heads = 8, 25, 64, 2

    def normed(y: str) -> str:
        return str(net.add("LayerNormalization", y, net.weight(width), net.weight(width), axis=-1))

    for stage, blocks in enumerate((3, 6, 3)):
        tokens = tall * wide
        y, at = net.reshape(y, 1, width, tokens, perm=(0, 2, 1)), np.arange(tokens)
        rows, columns = (abs(each[:, None] - each) for each in np.divmod(at, wide))
        near = net.const(np.where((rows <= 3) & (columns <= 5), 0.0, -1e9)[None, None])
        for block in range(blocks):
            is_local = 6 * stage + 2 * block < 12
            y = net.add("Add", y, net.attention(normed(y), tokens, width, heads, near if is_local else None))
            inner = net.gelu(net.linear(normed(y), width, 4 * width))
            y = net.add("Add", y, net.linear(inner, 4 * width, width))
        y = net.reshape(net.add("Transpose", y, perm=[0, 2, 1]), 1, width, tall, wide)
        if stage < 2:
            y, tall, width, heads = net.conv(y, width, 2 * width, strides=[2, 1]), tall // 2, 2 * width, 2 * heads
            y = net.add("Transpose", normed(net.add("Transpose", y, perm=[0, 2, 3, 1])), perm=[0, 3, 1, 2])
    y = net.add("Transpose", net.add("ReduceMean", y, net.const([2]), keepdims=0), perm=[0, 2, 1])
    return net.model(net.add("Softmax", net.linear(y, width, 97), axis=-1))


def tabnet(rows: int = 256, features: int = 54, width: int = 64) -> onnx.ModelProto:
    """Three steps over a table, each with a sparse choice of its columns (sparsemax)."""
    net = Net("tabnet", (rows, features))

    def block(y: str, inputs: int) -> str:
        return net.glu(net.linear(y, inputs, 4 * width))

    def transformed(y: str) -> str:
        y = block(y, features)
        for _ in range(3):
            y = net.add("Mul", net.add("Add", y, block(y, 2 * width)), net.const(0.5**0.5))
        return y

    def chosen(z: str) -> str:
        ordered, _ = net.add("TopK", z, net.const([features]), outputs=2, axis=-1)
        sums = net.add("CumSum", ordered, net.const(1))
        ranked = net.add("Mul", ordered, net.const(np.arange(1.0, features + 1)[None]))
        is_in = net.add("Greater", net.add("Add", ranked, net.const(1.0)), sums)
        count = net.add("ReduceSum", net.add("Cast", is_in, to=onnx.TensorProto.INT64), net.const([1]), keepdims=1)
        last = net.add("GatherElements", sums, net.add("Sub", count, net.const(1)), axis=1)
        threshold = net.add(
            "Div", net.add("Sub", last, net.const(1.0)), net.add("Cast", count, to=onnx.TensorProto.FLOAT)
        )
        return str(net.add("Relu", net.add("Sub", z, threshold)))

    def half(y: str, begin: int) -> str:
        return str(net.add("Slice", y, net.const([begin]), net.const([begin + width]), net.const([1])))

    prior, decisions, y = net.const(np.ones((rows, features))), [], transformed("x")
    for _ in range(3):
        mask = chosen(net.add("Mul", net.linear(half(y, width), width, features), prior))
        prior = net.add("Mul", prior, net.add("Sub", net.const(1.3), mask))
        y = transformed(net.add("Mul", mask, "x"))
        decisions.append(net.add("Relu", half(y, 0)))
    return net.model(net.linear(net.add("Sum", *decisions), width, 7))


def t5(tokens: int = 64, width: int = 512, heads: int = 8, layers: int = 4) -> onnx.ModelProto:
    """An encoder with RMS norms written out, gated layers, and biases by classes of distances."""
    net = Net("t5", (1, tokens), onnx.TensorProto.INT64)
    y = net.add("Gather", net.weight(1000, width), net.add("Mod", net.add("Abs", "x"), net.const(1000)))
    at = net.add("Range", net.const(0), net.const(tokens), net.const(1))
    apart = net.add("Sub", net.add("Unsqueeze", at, net.const([0])), net.add("Unsqueeze", at, net.const([1])))
    far = net.add(
        "Log", net.add("Div", net.add("Cast", net.add("Abs", apart), to=onnx.TensorProto.FLOAT), net.const(8.0))
    )
    far = net.add("Cast", net.add("Mul", far, net.const(8 / np.log(16))), to=onnx.TensorProto.INT64)
    far = net.add("Min", net.add("Add", far, net.const(8)), net.const(15))
    side = net.add(
        "Mul", net.add("Cast", net.add("Greater", apart, net.const(0)), to=onnx.TensorProto.INT64), net.const(16)
    )
    is_near = net.add("Less", net.add("Abs", apart), net.const(8))
    classes = net.add("Add", side, net.add("Where", is_near, net.add("Abs", apart), far))
    bias = net.add(
        "Unsqueeze",
        net.add("Transpose", net.add("Gather", net.weight(32, heads), classes), perm=[2, 0, 1]),
        net.const([0]),
    )

    def normed(y: str) -> str:
        mean = net.add("ReduceMean", net.add("Pow", y, net.const(2.0)), net.const([-1]))
        inverse = net.add("Reciprocal", net.add("Sqrt", net.add("Add", mean, net.const(1e-6))))
        return str(net.add("Mul", net.add("Mul", y, inverse), net.weight(width)))

    for _ in range(layers):
        y = net.add("Add", y, net.attention(normed(y), tokens, width, heads, bias))
        z = normed(y)
        gated = net.add("Mul", net.gelu(net.linear(z, width, 2 * width)), net.linear(z, width, 2 * width))
        y = net.add("Add", y, net.linear(gated, 2 * width, width))
    return net.model(normed(y))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {f.__name__: f for f in (dgcnn, demucs, svtr, tabnet, t5)}
