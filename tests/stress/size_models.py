"""Random models with one to three dimensions of any size, by number: the same seed and number give the same model.

A model is a chain of blocks over sequences (batch, tokens, features) or over images (batch, channels, height, width),
which may go on as sequences of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Block = Callable[["_Blocks", str], str]
_SMALL, _LARGE = (1, 2, 3, 4), (13, 16, 21, 24, 32, 37, 48, 64)
# Strides and windows make an axis empty below this size.
_LEAST = 12


@dataclass(frozen=True)
class SizeModel:
    """A model and the ranges of its free dimensions.

    blocks: names of its blocks, in order.
    fixed: sizes of its other named dimensions.
    """

    model: onnx.ModelProto
    dims: Mapping[str, range]
    fixed: Mapping[str, int]
    blocks: tuple[str, ...]

    def points(self, rng: np.random.Generator, count: int) -> list[dict[str, int]]:
        """Return the bound, then `count` different combinations of sizes at most, the least ones first."""
        least, most = ({name: each[place] for name, each in self.dims.items()} for place in (0, -1))
        drawn = [{name: int(rng.choice(each)) for name, each in self.dims.items()} for _ in range(4 * count)]
        found = {tuple(point.values()): point for point in (most, least, *drawn)}
        return list(found.values())[: count + 1]

    def inputs(self, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
        """Return random inputs for sizes of the free dimensions."""
        known, rng = {**self.fixed, **sizes}, np.random.default_rng(seed)
        shapes = {
            value.name: [known[d.dim_param] if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in self.model.graph.input
        }
        return {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


class _Blocks:
    """A network in the making.

    width: features of a sequence, or channels of an image.
    least: the least size that its shares and windows take.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int | str, ...], width: int) -> None:
        self.draw, self.width, self.least = rng, width, 1
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int, scale: float | None = None, positive: bool = False) -> str:
        scale = (int(np.prod(shape[1:])) or 1) ** -0.5 if scale is None else scale
        values = self.draw.standard_normal(shape) * scale
        return self.constant((np.abs(values) + 0.5 if positive else values).astype("float32"))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: tuple[int, ...] = (3, 3), groups: int = 1, **attributes: Any
    ) -> str:
        weights = self.weight(outputs, inputs // groups, *kernel), self.weight(outputs, scale=0.1)
        return self.add("Conv", x, *weights, kernel_shape=kernel, group=groups, **attributes)

    def model(self, output: str) -> onnx.ModelProto:
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "sizes", [self.input], [result], self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(proto)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, "int64"))

    def count(self, x: str, axis: int) -> str:
        """Return the extent of an axis at run time, a tensor of one element."""
        return self.add("Slice", self.add("Shape", x), self.ints(axis), self.ints(axis + 1))

    def share(self, x: str, axis: int) -> str:
        self.least = _LEAST
        return self.add("Div", self.count(x, axis), self.ints(int(self.draw.choice((2, 2, 3, 4)))))

    def pick(self, *options: str) -> str:
        return str(self.draw.choice(options))

    def several(self, op: str, inputs: list[str], outputs: int, **attributes: Any) -> list[str]:
        """Add a node of several outputs."""
        names = [f"t{len(self.nodes)}_{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names


def _dense(g: _Blocks, x: str) -> str:
    wide = int(g.draw.choice((8, 12, 20)))
    y = g.add("Add", g.add("MatMul", x, g.weight(g.width, wide)), g.weight(wide))
    g.width = wide
    return g.add(g.pick("Relu", "Tanh", "Sigmoid", "Identity"), y)


def _normal(g: _Blocks, x: str) -> str:
    return g.add("LayerNormalization", x, g.weight(g.width, positive=True), g.weight(g.width), axis=-1, epsilon=1e-2)


def _attention(g: _Blocks, x: str) -> str:
    q, k, v = (g.add("MatMul", x, g.weight(g.width, g.width)) for _ in range(3))
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1]))
    return g.add("Add", x, g.add("MatMul", g.add("Softmax", scores, axis=-1), v))


def _heads(g: _Blocks, x: str) -> str:
    heads, width = 2, g.width
    shape = g.ints(0, 0, heads, width // heads)

    def split(order: list[int]) -> str:
        return g.add("Transpose", g.add("Reshape", g.add("MatMul", x, g.weight(width, width)), shape), perm=order)

    scores = g.add("MatMul", split([0, 2, 1, 3]), split([0, 2, 3, 1]))
    mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), split([0, 2, 1, 3]))
    return g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints(0, 0, width))


def _recurrent(g: _Blocks, x: str) -> str:
    kind, gates = [("LSTM", 4), ("GRU", 3), ("RNN", 1)][int(g.draw.integers(3))]
    direction = g.pick("forward", "reverse", "bidirectional")
    ways, hidden = 1 + (direction == "bidirectional"), int(g.draw.choice((4, 6)))
    weights = [g.weight(ways, gates * hidden, size, scale=0.4) for size in (g.width, hidden)]
    weights.append(g.weight(ways, 2 * gates * hidden, scale=0.4))
    steps = g.add("Transpose", x, perm=[1, 0, 2])
    y, last = g.several(kind, [steps, *weights], 2, hidden_size=hidden, direction=direction)
    g.width = ways * hidden
    # (steps, ways, batch, hidden)  ->  (batch, steps, width)
    y = g.add("Reshape", g.add("Transpose", y, perm=[2, 0, 1, 3]), g.ints(0, 0, g.width))
    if g.draw.random() < 0.6:
        last = g.add("Reshape", g.add("Transpose", last, perm=[1, 0, 2]), g.ints(0, 1, g.width))
        y = g.add("Add", y, last)
    return y


def _conv_tokens(g: _Blocks, x: str) -> str:
    stride, kernel, wide = int(g.draw.choice((1, 1, 2, 3))), int(g.draw.choice((1, 3, 5))), int(g.draw.choice((8, 12)))
    pads = [kernel // 2, int(g.draw.choice((kernel // 2, 0)))]
    rows = g.add("Transpose", x, perm=[0, 2, 1])
    y = g.conv(rows, g.width, wide, (kernel,), strides=[stride], pads=pads)
    g.width = wide
    return g.add("Transpose", g.add("Relu", y), perm=[0, 2, 1])


def _pool_tokens(g: _Blocks, x: str) -> str:
    op, size = g.pick("MaxPool", "AveragePool"), int(g.draw.choice((2, 3)))
    rows = g.add("Transpose", x, perm=[0, 2, 1])
    y = g.add(op, rows, kernel_shape=[size], strides=[size], ceil_mode=int(g.draw.integers(2)))
    return g.add("Transpose", y, perm=[0, 2, 1])


def _half(g: _Blocks, x: str) -> str:
    """Return the first or the last n // k tokens."""
    share = g.share(x, 1)
    if g.draw.random() < 0.5:
        return g.add("Slice", x, g.ints(0), share, g.ints(1))
    return g.add("Slice", x, g.add("Neg", share), g.ints(1 << 40), g.ints(1))


def _roll(g: _Blocks, x: str) -> str:
    share = g.share(x, 1)
    first = g.add("Slice", x, g.ints(0), share, g.ints(1))
    return g.add("Concat", g.add("Slice", x, share, g.ints(1 << 40), g.ints(1)), first, axis=1)


def _stepped(g: _Blocks, x: str) -> str:
    start, stop, step = ((0, 1 << 40, 2), (0, 1 << 40, 3), (-1, -(1 << 40), -1))[int(g.draw.integers(3))]
    return g.add("Slice", x, g.ints(start), g.ints(stop), g.ints(1), g.ints(step))


def _join(g: _Blocks, x: str) -> str:
    other = x if g.draw.random() < 0.5 else g.add("ReduceMean", x, axes=[1], keepdims=1)
    return g.add("Concat", *((x, other) if g.draw.random() < 0.5 else (other, x)), axis=1)


def _pad(g: _Blocks, x: str) -> str:
    before, after = (int(each) for each in g.draw.integers(0, 4, 2))
    return g.add("Pad", x, g.ints(0, before, 0, 0, after, 0))


def _over_tokens(g: _Blocks, x: str) -> str:
    if g.draw.random() < 0.4:
        return g.add("Softmax", x, axis=1)
    mean = g.add(g.pick("ReduceMean", "ReduceMax", "ReduceMin"), x, axes=[1], keepdims=1)
    return g.add("Sub", x, mean)


def _flat(g: _Blocks, x: str) -> str:
    """Multiply rows of batch and tokens together, or features of all tokens in one row."""
    if g.draw.random() < 0.5:
        rows = g.add("Relu", g.add("MatMul", g.add("Reshape", x, g.ints(-1, g.width)), g.weight(g.width, g.width)))
        return g.add("Reshape", rows, g.add("Shape", x))
    flat = g.add("Reshape", x, g.ints(0, -1))
    return g.add("Reshape", g.add("Softmax", flat, axis=-1), g.add("Shape", x))


def _positions(g: _Blocks, x: str) -> str:
    table = g.weight(400, g.width, scale=1.0)
    return g.add("Add", x, g.add("Slice", table, g.ints(0), g.count(x, 1), g.ints(0)))


def _causal(g: _Blocks, x: str) -> str:
    scores = g.add("MatMul", x, g.add("Transpose", x, perm=[0, 2, 1]))
    return g.add("MatMul", g.add("Trilu", scores, upper=int(g.draw.integers(2))), g.add("Tanh", x))


def _parity(g: _Blocks, x: str) -> str:
    """Add the remainder of the number of tokens."""
    rest = g.add("Mod", g.count(x, 1), g.ints(int(g.draw.choice((2, 3)))))
    return g.add("Add", x, g.add("Cast", rest, to=TensorProto.FLOAT))


def _running(g: _Blocks, x: str) -> str:
    return g.add("CumSum", x, g.constant(np.array(1, "int64")))


def _conv(g: _Blocks, x: str) -> str:
    stride, kernel, wide = int(g.draw.choice((1, 1, 2))), int(g.draw.choice((1, 3))), int(g.draw.choice((4, 8, 12)))
    y = g.conv(x, g.width, wide, (kernel, kernel), strides=[stride] * 2, pads=[kernel // 2] * 4)
    g.width = wide
    return g.add(g.pick("Relu", "Sigmoid", "Identity"), y)


def _depthwise(g: _Blocks, x: str) -> str:
    stride = int(g.draw.choice((1, 2)))
    return g.conv(x, g.width, g.width, groups=g.width, strides=[stride, 1], pads=[1] * 4)


def _pool(g: _Blocks, x: str) -> str:
    size = int(g.draw.choice((2, 3)))
    pads = [0, 0, size // 2, size // 2] if g.draw.random() < 0.5 else [0] * 4
    return g.add(g.pick("MaxPool", "AveragePool"), x, kernel_shape=[size] * 2, strides=[2, 2], pads=pads)


def _scale(g: _Blocks, x: str) -> str:
    gate = g.add("Sigmoid", g.conv(g.add("GlobalAveragePool", x), g.width, g.width, (1, 1)))
    return g.add("Mul", x, gate)


def _residual(g: _Blocks, x: str) -> str:
    return g.add("Add", x, g.add("Relu", g.conv(x, g.width, g.width, pads=[1] * 4)))


def _grow(g: _Blocks, x: str) -> str:
    return g.add("Resize", x, "", g.constant(np.array([1, 1, 2, 2], "float32")), mode="nearest")


def _pad_image(g: _Blocks, x: str) -> str:
    pads = [int(each) for each in g.draw.integers(0, 3, 4)]
    return g.add("Pad", x, g.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), mode=g.pick("constant", "edge"))


def _half_image(g: _Blocks, x: str) -> str:
    share = g.share(x, 3)
    return g.add("Slice", x, g.ints(0), share, g.ints(3))


def _join_image(g: _Blocks, x: str) -> str:
    y = g.conv(x, g.width, 4, (1, 1))
    g.width += 4
    return g.add("Concat", x, y, axis=1)


SEQUENCES: tuple[Block, ...] = (
    *(_dense, _normal, _attention, _heads, _recurrent, _recurrent, _conv_tokens, _pool_tokens, _half, _roll),
    *(_stepped, _join, _pad, _over_tokens, _flat, _positions, _causal, _parity, _running),
)
IMAGES: tuple[Block, ...] = (_conv, _conv, _depthwise, _pool, _scale, _residual, _grow, _pad_image, _half_image)
IMAGES = (*IMAGES, _join_image)


def _columns(g: _Blocks, x: str) -> str:
    """Make the columns of an image tokens: (batch, channels, height, width)  ->  (batch, width, channels)."""
    return g.add("Transpose", g.add("ReduceMean", x, axes=[2], keepdims=0), perm=[0, 2, 1])


def model_of(seed: int, number: int) -> SizeModel:
    """Return the model of a number."""
    rng = np.random.default_rng([seed, number])
    is_image = bool(rng.random() < 0.4)
    names = ("batch", "height", "width") if is_image else ("batch", "tokens")
    wanted = int(rng.choice((1, 1, 1, 2, 2, 3))) if is_image else int(rng.choice((1, 1, 2)))
    free = sorted(rng.choice(len(names), wanted, replace=False))
    width = int(rng.choice((4, 8)))
    shape = ("batch", width, "height", "width") if is_image else ("batch", "tokens", width)
    g, x, blocks = _Blocks(rng, shape, width), "x", list[str]()

    def add(kinds: tuple[Block, ...], most: int) -> None:
        nonlocal x
        for _ in range(int(rng.integers(1, most + 1))):
            block = kinds[int(rng.integers(len(kinds)))]
            x = block(g, x)
            blocks.append(block.__name__.strip("_"))

    add(IMAGES if is_image else SEQUENCES, 4)
    if is_image and rng.random() < 0.3:
        x = _columns(g, x)
        blocks.append("columns")
        add(SEQUENCES, 2)
    dims, fixed = {}, {}
    for place, name in enumerate(names):
        most = int(rng.choice(_SMALL if name == "batch" else _LARGE))
        least = 1 if name == "batch" else min(most, max(g.least, 1 if rng.random() < 0.5 else _LEAST))
        if place in free:
            dims[name] = range(least, max(most, least + 1) + 1)
        else:
            fixed[name] = most
    return SizeModel(g.model(x), dims, fixed, tuple(blocks))
