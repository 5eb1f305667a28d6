"""Small ONNX graphs with named dimensions: a recogniser of text lines, and an encoder of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

import romou
from romou.compiler.frontend.onnxruntime_session import cpu_session
from support.models.small_networks import NetworkBuilder


def recogniser(height: int = 8, classes: int = 11) -> onnx.ModelProto:
    """Return convolutions that halve the width twice, and a dense layer over the columns: a class for each column."""
    g = NetworkBuilder({"image": ("batch", 1, height, "width")})
    x = g.add("Relu", g.conv("image", 1, 8, strides=[2, 2], pads=[1, 1, 1, 1]))
    x = g.add("Relu", g.conv(x, 8, 12, strides=[2, 2], pads=[1, 1, 1, 1]))
    x = g.add("Relu", g.conv(x, 12, 16, (height // 4, 1)))
    columns = g.add("Transpose", g.add("Squeeze", x, g.constant(np.array([2]))), perm=[0, 2, 1])
    scores = g.add("Add", g.add("MatMul", columns, g.weight(16, classes)), g.weight(classes))
    return g.model(g.add("Softmax", scores, axis=-1))


def encoder(layers: int = 1, heads: int = 2, size: int = 8, words: int = 50, longest: int = 512) -> onnx.ModelProto:
    """Return a transformer of token ids and their mask, with learned positions. Masked tokens get no attention."""
    width = heads * size
    g = NetworkBuilder({})
    integers = {"ids": ["batch", "tokens"], "mask": ["batch", "tokens"]}
    g.inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in integers.items()]
    count = g.add("Slice", g.add("Shape", "ids"), g.constant(np.array([1])), g.constant(np.array([2])))
    first, step = g.constant(np.array([0])), g.constant(np.array([1]))
    places = g.add("Slice", g.weight(longest, width, scale=1.0), first, count, first, step)
    x = g.add("Add", g.add("Gather", g.weight(words, width, scale=1.0), "ids"), places)
    floats = g.add("Cast", "mask", to=TensorProto.FLOAT)
    hidden = g.add("Mul", g.add("Sub", g.constant(np.float32(1)), floats), g.constant(np.float32(-1e9)))
    bias = g.add("Unsqueeze", hidden, g.constant(np.array([1, 2])))
    for _ in range(layers):
        x = _layer(g, x, bias, heads, size)
    return g.model(x)


def _layer(g: NetworkBuilder, x: str, bias: str, heads: int, size: int) -> str:
    width = heads * size

    def split(order: list[int]) -> str:
        rows = g.add("Reshape", g.add("MatMul", x, g.weight(width, width)), g.constant(np.array([0, 0, heads, size])))
        return g.add("Transpose", rows, perm=order)

    queries, keys, values = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
    scores = g.add("Mul", g.add("MatMul", queries, keys), g.constant(np.float32(size**-0.5)))
    weights = g.add("Softmax", g.add("Add", scores, bias), axis=-1)
    joined = g.add("Transpose", g.add("MatMul", weights, values), perm=[0, 2, 1, 3])
    rows = g.add("Reshape", joined, g.constant(np.array([0, 0, width])))
    x = _normal(g, g.add("Add", x, g.add("MatMul", rows, g.weight(width, width))), width)
    inner = g.add("Relu", g.add("MatMul", x, g.weight(width, 2 * width)))
    return _normal(g, g.add("Add", x, g.add("MatMul", inner, g.weight(2 * width, width))), width)


def _normal(g: NetworkBuilder, x: str, width: int) -> str:
    return g.add("LayerNormalization", x, g.weight(width, positive=True), g.weight(width), axis=-1)


def recurrent(kind: str = "LSTM", units: int = 3) -> onnx.ModelProto:
    """Return a recurrent layer over a free number of steps, with its last states."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    g = NetworkBuilder({"x": ("steps", 2, 4)})
    weights = [g.weight(1, gates * units, size, scale=0.4) for size in (4, units)]
    g.nodes.append(helper.make_node(kind, ["x", *weights], ["y", "last"], hidden_size=units))
    return g.model("y", "last")


def rolled(share: int = 2) -> onnx.ModelProto:
    """Return rows whose first n // share are moved to the end."""
    g = NetworkBuilder({"x": ("rows", 6)})
    first, second = g.constant(np.array([0])), g.constant(np.array([1]))
    count = g.add("Div", g.add("Slice", g.add("Shape", "x"), first, second), g.constant(np.array([share])))
    end = g.constant(np.array([1 << 40]))
    moved, rest = g.add("Slice", "x", first, count, first), g.add("Slice", "x", count, end, first)
    return g.model(g.add("Concat", rest, moved, axis=0))


def wrong_points(
    model: romou.TunedModel,
    network: onnx.ModelProto,
    points: Sequence[tuple[int, ...]],
    inputs_of: Callable[..., Mapping[str, np.ndarray]],
) -> list[tuple[int, ...]]:
    """Return the points, sizes of all free dimensions, at which an output of a model is not onnxruntime's.

    A run of the largest sizes before each one leaves NaN in all memory, or other numbers if the inputs are integers.
    """
    session = cpu_session(network)
    poison = {
        name: np.full(shape, np.nan, dtype) if "float" in dtype else np.ones(shape, dtype)
        for name, (shape, dtype) in model.inputs.items()
    }
    wrong = []
    for point in points:
        model.run(poison)
        pairs = zip(model.run(inputs_of(*point)), session.run(None, inputs_of(*point)), strict=True)
        if not all(a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs):
            wrong.append(point)
    return wrong
