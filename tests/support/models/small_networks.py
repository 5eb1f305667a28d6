"""Small ONNX graphs for tests, with odd channel counts on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class NetworkBuilder:
    """Builds an ONNX graph node by node. Weights are seeded."""

    def __init__(self, inputs: Mapping[str, Sequence[int | str]], seed: int = 0, dtype: str = "float32"):
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(dtype)
        self.element = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.inputs = [helper.make_tensor_value_info(n, self.element, list(s)) for n, s in inputs.items()]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, *shape: int, scale: float | None = None, positive: bool = False) -> str:
        fan_in = int(np.prod(shape[1:])) or 1
        values = self.rng.standard_normal(shape) * (scale if scale is not None else fan_in**-0.5)
        values = np.abs(values) + 0.5 if positive else values
        return self.constant(values.astype(self.dtype))

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: tuple[int, ...] = (3, 3), groups: int = 1, **attributes: object
    ) -> str:
        return self.add(
            "Conv",
            x,
            self.weight(outputs, inputs // groups, *kernel),
            self.weight(outputs, scale=0.1),
            kernel_shape=kernel,
            group=groups,
            **attributes,
        )

    def norm(self, x: str, channels: int) -> str:
        weights = [
            self.weight(channels, positive=True),
            self.weight(channels),
            self.weight(channels),
            self.weight(channels, positive=True),
        ]
        return self.add("BatchNormalization", x, *weights)

    def model(self, *outputs: str) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(o, self.element, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "small", self.inputs, values, self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(proto)


def residual_net(channels: int = 10, size: int = 11, dtype: str = "float32") -> onnx.ModelProto:
    """Return a stem, a residual block with batch norm, depthwise, squeeze-excite, concat, pools and a classifier."""
    g = NetworkBuilder({"image": (1, 3, size, size)}, dtype=dtype)
    x = g.add("Relu", g.norm(g.conv("image", 3, channels, strides=[2, 2], pads=[1, 1, 1, 1]), channels))
    y = g.add("Relu", g.conv(x, channels, channels, pads=[1, 1, 1, 1]))
    x = g.add("Relu", g.add("Add", g.norm(g.conv(y, channels, channels, pads=[1, 1, 1, 1]), channels), x))
    d = g.add(
        "Clip",
        g.conv(x, channels, channels, groups=channels, pads=[1, 1, 1, 1]),
        g.constant(g.dtype.type(0)),
        g.constant(g.dtype.type(6)),
    )
    s = g.add("GlobalAveragePool", d)
    s = g.add("Sigmoid", g.conv(g.add("Relu", g.conv(s, channels, 3, (1, 1))), 3, channels, (1, 1)))
    d = g.add("Mul", d, s)
    a = g.conv(d, channels, 8, (1, 1))
    b = g.conv(d, channels, 5, (1, 3), pads=[0, 1, 0, 1])
    x = g.add("Concat", a, b, axis=1)
    x = g.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = g.add("AveragePool", x, kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    return g.model(g.add("Softmax", g.add("Gemm", x, g.weight(7, 13), g.weight(7), transB=1)))


def products_net(rows: int = 24, dtype: str = "float32") -> onnx.ModelProto:
    """Return dense layers and a product with a softmax. Between them are images of rows if a device prefers images."""
    g = NetworkBuilder({"x": (rows, 16)}, dtype=dtype)
    hidden = g.add("Sigmoid", g.add("MatMul", "x", g.weight(16, 48)))
    keys = g.add("Relu", g.add("MatMul", hidden, g.weight(48, 20)))
    scores = g.add("Softmax", g.add("MatMul", keys, g.add("Transpose", keys, perm=[1, 0])), axis=-1)
    return g.model(g.add("MatMul", scores, g.add("Tanh", g.add("MatMul", hidden, g.weight(48, 12)))))


def attention_net(heads: int = 3, size: int = 8, rows: int = 13, dtype: str = "float32") -> onnx.ModelProto:
    """Return a layer norm and attention. Reshapes cut its heads out of rows and join them again, and a dense layer of
    the result is added to the layer norm.
    """
    width = heads * size
    g = NetworkBuilder({"x": (1, rows, width)}, dtype=dtype)

    def normal(x: str) -> str:
        return g.add("LayerNormalization", x, g.weight(width, positive=True), g.weight(width), axis=-1)

    def head(perm: Sequence[int]) -> str:
        projected = g.add("Add", g.add("MatMul", x, g.weight(width, width)), g.weight(width))
        return g.add("Transpose", g.add("Reshape", projected, g.constant(np.array([1, rows, heads, size]))), perm=perm)

    x = normal("x")
    queries, keys, values = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    found = g.add("MatMul", g.add("Softmax", g.add("MatMul", queries, keys), axis=-1), values)
    joined = g.add("Reshape", g.add("Transpose", found, perm=[0, 2, 1, 3]), g.constant(np.array([1, rows, width])))
    return g.model(normal(g.add("Add", g.add("MatMul", joined, g.weight(width, width)), x)))


def prime_net() -> onnx.ModelProto:
    """Return a 7x1 convolution of 31 channels at 17x17 into 37, and a dense layer of 37 into 31."""
    g = NetworkBuilder({"image": (1, 31, 17, 17)})
    x = g.add("Relu", g.conv("image", 31, 37, (7, 1), pads=[3, 0, 3, 0]))
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    return g.model(g.add("Gemm", x, g.weight(31, 37), g.weight(31), transB=1))


def short_net(channels: int = 6, dtype: str = "float32") -> onnx.ModelProto:
    """Return a convolution, a pointwise one that adds its input, and a pool: three kernels, for tests that need any
    model.
    """
    g = NetworkBuilder({"image": (1, channels, 9, 9)}, dtype=dtype)
    x = g.add("Relu", g.conv("image", channels, 8, pads=[1, 1, 1, 1]))
    return g.model(g.add("MaxPool", g.add("Add", g.conv(x, 8, 8, (1, 1)), x), kernel_shape=[2, 2]))


def shared_outputs_net(size: int = 7) -> onnx.ModelProto:
    """Return a model with outputs that no kernel writes: a weight, a folded constant, the input, views of them, and one
    output three times.
    """
    g = NetworkBuilder({"x": (3, size)})
    weight, flat = g.weight(3, size), g.constant(np.array([3 * size]))
    y = g.add("Mul", "x", weight)
    names = [g.add("Identity", one) for one in ("x", y)]
    views = [g.add("Reshape", one, flat) for one in ("x", y, weight)]
    return g.model(y, g.add("Add", weight, weight), weight, *names, *views)


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Return normal values for every input of a model with static shapes."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        found[value.name] = rng.standard_normal(shape).astype(
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
    return found


def rotary() -> onnx.ModelProto:
    """Return a rotary embedding of positions that are an input."""
    g = NetworkBuilder({})
    g.inputs = [helper.make_tensor_value_info("positions", TensorProto.INT64, [1, 5])]
    p = g.add("Unsqueeze", g.add("Cast", "positions", to=TensorProto.FLOAT), g.constant(np.array([1])))
    angle = g.add(
        "Transpose",
        g.add("MatMul", g.constant((1e4 ** -(np.arange(8) / 8)).astype(np.float32)[None, :, None]), p),
        perm=[0, 2, 1],
    )
    return g.model(g.add("Cos", angle), g.add("Sin", angle))


def timestep() -> onnx.ModelProto:
    """Return the embedding of a diffusion model's timestep, and a layer behind it."""
    g = NetworkBuilder({"t": (1,)})
    angle = g.add(
        "Mul",
        g.add("Unsqueeze", "t", g.constant(np.array([1]))),
        g.constant((1e4 ** -(np.arange(64) / 64)).astype(np.float32)[None]),
    )
    return g.model(g.add("MatMul", g.add("Concat", g.add("Sin", angle), g.add("Cos", angle), axis=1), g.weight(128, 6)))
