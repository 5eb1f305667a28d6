"""Small graphs of the building blocks of networks, with inputs. Each one must be right and run in kernels only.

Sizes are odd or prime on purpose, and small, so that all of them compile in minutes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Draw = Callable[[np.random.Generator], np.ndarray]
OPSET = 18


@dataclass(frozen=True, kw_only=True)
class NetworkBlock:
    """A graph and a function that draws its inputs.

    plain: operators that no family has kernels for yet: products of doubles
    tolerance: largest relative L2 error of an output in fp32
    """

    name: str
    model: onnx.ModelProto
    draws: Mapping[str, Draw]
    plain: tuple[str, ...] = ()
    tolerance: float = 1e-4

    def inputs(self, seed: int) -> dict[str, np.ndarray]:
        """Return fresh random inputs."""
        rng = np.random.default_rng(seed)
        return {name: draw(rng) for name, draw in self.draws.items()}


class Net:
    """Builds an ONNX graph node by node. Weights are seeded by the graph's name."""

    def __init__(self, name: str, opset: int = OPSET) -> None:
        self.name, self.opset = name, opset
        self.rng = np.random.default_rng([ord(letter) for letter in name])
        self.draws: dict[str, Draw] = {}
        self.given: list[onnx.ValueInfoProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def input(self, shape: tuple[int, ...], dtype: str = "float32", below: int = 2) -> str:
        """Add an input of standard normal floats, or of whole numbers from 0 to `below` - 1."""
        name = f"x{len(self.given)}"
        self.given.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape))
        if np.issubdtype(np.dtype(dtype), np.floating):
            self.draws[name] = lambda rng: rng.standard_normal(shape).astype(dtype)
        else:
            self.draws[name] = lambda rng: rng.integers(0, below, shape).astype(dtype)
        return name

    def const(self, values: Any, dtype: str | None = None) -> str:
        """Add an initializer: whole numbers are int64 and others float32 unless `dtype` says otherwise."""
        array = np.asarray(values, dtype)
        if dtype is None and array.dtype == np.float64:
            array = array.astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def weight(self, *shape: int, dtype: str = "float32") -> str:
        """Add a random initializer. Products with it keep the magnitude of the other factor."""
        fan_in = int(np.prod(shape[1:])) or 1
        return self.const((self.rng.standard_normal(shape) * fan_in**-0.5).astype(dtype))

    def add(self, operator: str, *reads: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node. Return the name of its output, or a tuple of names."""
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(reads), names, name=f"n{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def conv(
        self, x: str, inputs: int, outputs: int, window: tuple[int, ...] = (3, 3), group: int = 1, **attributes: Any
    ) -> str:
        """Add a convolution with a bias that keeps the size, unless `pads` say otherwise."""
        attributes.setdefault("pads", [(k - 1) // 2 for k in window] * 2)
        reads = (x, self.weight(outputs, inputs // group, *window), self.weight(outputs))
        return self.add("Conv", *reads, kernel_shape=window, group=group, **attributes)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Add a product with a weight, and a bias."""
        return self.add(
            "Add",
            self.add("MatMul", x, self.const(self.rng.standard_normal((inputs, outputs)) * inputs**-0.5)),
            self.weight(outputs),
        )

    def block(self, *outputs: str, **more: Any) -> NetworkBlock:
        """Return the graph with these outputs."""
        values = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.given, values, self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        return NetworkBlock(
            name=self.name, model=onnx.shape_inference.infer_shapes(proto, data_prop=True), draws=self.draws, **more
        )


def dense_block() -> NetworkBlock:
    net = Net("dense_block")
    x = net.input((1, 10, 9, 11))
    for channels in (10, 15, 20):
        scales = (
            net.const(np.ones(channels)),
            net.const(np.zeros(channels)),
            net.weight(channels),
            net.const(np.full(channels, 1.5)),
        )
        y = net.add("Relu", net.add("BatchNormalization", x, *scales))
        x = net.add("Concat", x, net.conv(net.add("Relu", net.conv(y, channels, 12, (1, 1))), 12, 5), axis=1)
    return net.block(x)


def sppf() -> NetworkBlock:
    net = Net("sppf")
    x = net.conv(net.input((1, 13, 11, 11)), 13, 10, (1, 1))
    pools = [x]
    for _ in range(3):
        pools.append(net.add("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4))
    y = net.conv(net.add("Concat", *pools, axis=1), 40, 14, (1, 1))
    return net.block(net.add("Mul", y, net.add("Sigmoid", y)))


def squeeze_excite() -> NetworkBlock:
    net = Net("squeeze_excite")
    x = net.add("HardSwish", net.conv(net.input((1, 12, 13, 13)), 12, 21, (1, 1)))
    gate = net.add("Relu", net.conv(net.add("GlobalAveragePool", x), 21, 6, (1, 1)))
    gate = net.add("HardSigmoid", net.conv(gate, 6, 21, (1, 1)), alpha=1 / 6)
    return net.block(net.conv(net.add("Mul", x, gate), 21, 10, (1, 1)))


def group_norm() -> NetworkBlock:
    net = Net("group_norm")
    x = net.input((2, 12, 7, 9))
    for _ in range(2):
        ones, zeros = net.const(np.ones(4)), net.const(np.zeros(4))
        y = net.add("InstanceNormalization", net.add("Reshape", x, net.const([2, 4, -1])), ones, zeros)
        y = net.add("Reshape", y, net.const([2, 12, 7, 9]))
        y = net.add("Add", net.add("Mul", y, net.weight(12, 1, 1)), net.weight(12, 1, 1))
        x = net.conv(net.add("Mul", y, net.add("Sigmoid", y)), 12, 12)
    return net.block(x)


def geglu() -> NetworkBlock:
    net = Net("geglu")
    y = net.linear(net.input((2, 11, 20)), 20, 54)
    left, right = net.add("Split", y, outputs=2, axis=-1, num_outputs=2)
    erf = net.add("Erf", net.add("Div", right, net.const(2**0.5)))
    gelu = net.add("Mul", net.add("Mul", right, net.add("Add", erf, net.const(1.0))), net.const(0.5))
    return net.block(net.linear(net.add("Mul", left, gelu), 27, 20))


def rms_norm() -> NetworkBlock:
    net = Net("rms_norm")
    x = net.input((1, 13, 24))
    mean = net.add("ReduceMean", net.add("Pow", x, net.const(2.0)), net.const([-1]))
    scaled = net.add("Div", x, net.add("Sqrt", net.add("Add", mean, net.const(1e-6))))
    return net.block(net.add("Add", x, net.linear(net.add("Mul", scaled, net.weight(24)), 24, 24)))


def attention(
    net: Net,
    x: str,
    tokens: int,
    width: int,
    heads: int,
    mask: Callable[[str], str] = lambda scores: scores,
    batch: int = 1,
) -> str:
    """Add multi-head attention in the form that exporters write. `mask` changes the scores, (batch, heads, tokens,
    tokens).
    """

    def split(y: str, perm: list[int]) -> str:
        return str(
            net.add("Transpose", net.add("Reshape", y, net.const([batch, tokens, heads, width // heads])), perm=perm)
        )

    q, k, v = (split(net.linear(x, width, width), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = net.add("Mul", net.add("MatMul", q, k), net.const((width // heads) ** -0.5))
    mixed = net.add("MatMul", net.add("Softmax", mask(scores), axis=-1), v)
    mixed = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), net.const([batch, tokens, width]))
    return net.linear(mixed, width, width)


def window_attention() -> NetworkBlock:
    """Return a shifted window of Swin: padded to whole windows, rolled, cut into windows, attended, and all of it
    reversed.
    """
    net = Net("window_attention")
    x = net.input((1, 7, 7, 12))
    y = net.add("Pad", x, net.const([0, 0, 0, 0, 0, 1, 1, 0]))
    for axis in (1, 2):
        head = net.add("Slice", y, net.const([2]), net.const([8]), net.const([axis]))
        y = net.add("Concat", head, net.add("Slice", y, net.const([0]), net.const([2]), net.const([axis])), axis=axis)
    y = net.add("Transpose", net.add("Reshape", y, net.const([1, 2, 4, 2, 4, 12])), perm=[0, 1, 3, 2, 4, 5])
    bias = net.weight(2, 16, 16)
    y = attention(
        net,
        net.add("Reshape", y, net.const([4, 16, 12])),
        16,
        12,
        2,
        lambda scores: net.add("Add", scores, bias),
        batch=4,
    )
    y = net.add("Transpose", net.add("Reshape", y, net.const([1, 2, 2, 4, 4, 12])), perm=[0, 1, 3, 2, 4, 5])
    y = net.add("Reshape", y, net.const([1, 8, 8, 12]))
    for axis in (1, 2):
        head = net.add("Slice", y, net.const([6]), net.const([8]), net.const([axis]))
        y = net.add("Concat", head, net.add("Slice", y, net.const([0]), net.const([6]), net.const([axis])), axis=axis)
    return net.block(net.add("Add", x, net.add("Slice", y, net.const([0, 0]), net.const([7, 7]), net.const([1, 2]))))


def pixel_shuffle() -> NetworkBlock:
    net = Net("pixel_shuffle")
    x = net.add("PRelu", net.conv(net.input((1, 7, 9, 11)), 7, 20), net.const(np.full((20, 1, 1), 0.2)))
    y = net.conv(net.add("DepthToSpace", x, blocksize=2, mode="CRD"), 5, 12)
    return net.block(net.add("Tanh", net.add("DepthToSpace", y, blocksize=2)))


def depthwise_1d() -> NetworkBlock:
    net = Net("depthwise_1d")
    y = net.conv(net.input((1, 14, 101)), 14, 14, (7,), group=14)
    y = net.conv(net.add("Relu", y), 14, 21, (1,))
    return net.block(net.conv(y, 21, 21, (3,), group=3, strides=[2]))


def gated_tcn() -> NetworkBlock:
    net = Net("gated_tcn")
    x = net.input((1, 9, 83))
    for dilation in (1, 2, 4):
        gates = [net.conv(x, 9, 9, (2,), dilations=[dilation], pads=[dilation, 0]) for _ in range(2)]
        gated = net.add("Mul", net.add("Tanh", gates[0]), net.add("Sigmoid", gates[1]))
        x = net.add("Add", x, net.conv(gated, 9, 9, (1,)))
    return net.block(x)


def recurrent(operator: str, gates: int, steps: int, directions: int = 1) -> NetworkBlock:
    net = Net(f"{operator.lower()}_{steps}")
    size, width = 11, 7
    reads = (
        net.input((steps, 2, width)),
        net.weight(directions, gates * size, width),
        net.weight(directions, gates * size, size),
    )
    way = "bidirectional" if directions == 2 else "forward"
    y = net.add(operator, *reads, net.weight(directions, 2 * gates * size), hidden_size=size, direction=way)
    y = net.add("Reshape", net.add("Transpose", y, perm=[2, 0, 1, 3]), net.const([2, steps, -1]))
    return net.block(net.linear(y, directions * size, 5))


def conv_3d() -> NetworkBlock:
    net = Net("conv_3d")
    y = net.add("Relu", net.conv(net.input((1, 3, 7, 9, 11)), 3, 10, (3, 3, 3)))
    return net.block(net.add("Relu", net.conv(y, 10, 13, (3, 1, 3), strides=[2, 1, 2])))


def deconvolution() -> NetworkBlock:
    net = Net("deconvolution")
    x = net.input((1, 10, 7, 9))
    options: dict[str, Any] = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
    y = net.add("Relu", net.add("ConvTranspose", x, net.weight(10, 6, 3, 3), net.weight(6), **options))
    return net.block(net.add("ConvTranspose", y, net.weight(6, 3, 4, 4), strides=[2, 2], pads=[1] * 4))


def einsum() -> NetworkBlock:
    net = Net("einsum")
    q, k = net.input((2, 9, 3, 8)), net.input((2, 11, 3, 8))
    scores = net.add("Softmax", net.add("Einsum", q, k, equation="bqhd,bkhd->bhqk"), axis=-1)
    return net.block(net.add("Einsum", scores, k, equation="bhqk,bkhd->bqhd"))


def top_k() -> NetworkBlock:
    net = Net("top_k")
    scores = net.add("Softmax", net.linear(net.input((3, 20)), 20, 37), axis=-1)
    values, indices = net.add("TopK", scores, net.const([5]), outputs=2, axis=-1)
    return net.block(values, indices)


def chosen_queries() -> NetworkBlock:
    """Return the 300 best of three maps' positions and their boxes and features, as RT-DETR chooses its queries."""
    net = Net("chosen_queries")
    maps = [net.conv(net.input((1, 6, side, side)), 6, 8, (1, 1)) for side in (32, 16, 8)]
    rows = [net.add("Transpose", net.add("Reshape", m, net.const([1, 8, -1])), perm=[0, 2, 1]) for m in maps]
    memory = net.add("Concat", *rows, axis=1)
    best = net.add("ReduceMax", net.linear(memory, 8, 5), net.const([-1]), keepdims=0)
    _, places = net.add("TopK", best, net.const([300]), outputs=2, axis=1)
    at = net.add("Unsqueeze", places, net.const([-1]))
    boxes = net.add("Sigmoid", net.linear(memory, 8, 4))

    def rows_of(data: str, width: int) -> str:
        gathered: str = net.add("GatherElements", data, net.add("Expand", at, net.const([1, 300, width])), axis=1)
        return gathered

    return net.block(places, rows_of(boxes, 4), rows_of(memory, 8))


def neighbour_graph() -> NetworkBlock:
    """Return the largest features of edges to the 20 nearest points, as DGCNN computes them."""
    net = Net("neighbour_graph")
    x = net.input((1, 3, 64))
    inner = net.add("Mul", net.add("MatMul", net.add("Transpose", x, perm=[0, 2, 1]), x), net.const(-2.0))
    squares = net.add("ReduceSum", net.add("Mul", x, x), net.const([1]), keepdims=1)
    distance = net.add("Add", net.add("Add", inner, squares), net.add("Transpose", squares, perm=[0, 2, 1]))
    _, nearest = net.add("TopK", distance, net.const([20]), outputs=2, axis=-1, largest=0)
    points = net.add("Reshape", net.add("Transpose", x, perm=[0, 2, 1]), net.const([64, 3]))
    others = net.add("Gather", points, net.add("Reshape", nearest, net.const([64, 20])), axis=0)
    edges = net.add("Sub", others, net.add("Unsqueeze", points, net.const([1])))
    edges = net.add("Unsqueeze", net.add("Transpose", edges, perm=[2, 0, 1]), net.const([0]))
    return net.block(net.add("ReduceMax", net.conv(edges, 3, 8, (1, 1), pads=[0] * 4), net.const([-1])))


def beam_step() -> NetworkBlock:
    """Return the best continuations of four beams: their scores, beams and tokens, of 4 * 5,000 candidates."""
    net = Net("beam_step")
    scores = net.add("LogSoftmax", net.linear(net.input((2, 4, 16)), 16, 5000), axis=-1)
    total = net.add("Add", scores, net.input((2, 4, 1)))
    flat = net.add("Reshape", total, net.const([2, 20000]))
    values, places = net.add("TopK", flat, net.const([8]), outputs=2, axis=-1)
    beams, tokens = net.add("Div", places, net.const([5000])), net.add("Mod", places, net.const([5000]))
    return net.block(values, beams, tokens)


def positions() -> NetworkBlock:
    """Return embeddings of the positions that a mask with padding leaves, as decoders compute them."""
    net = Net("positions")
    mask = net.input((2, 37), "int64")
    places = net.add("Mul", net.add("CumSum", mask, net.const(1)), mask)
    return net.block(places, net.add("Gather", net.weight(40, 8), places, axis=0))


def yolo_head() -> NetworkBlock:
    """Return boxes from a grid of anchors, as YOLOv5 writes it."""
    net = Net("yolo_head")
    heads = []
    for side, stride in ((8, 8), (4, 16)):
        y = net.conv(net.input((1, 14, side, side)), 14, 3 * 9, (1, 1))
        y = net.add("Transpose", net.add("Reshape", y, net.const([1, 3, 9, side, side])), perm=[0, 1, 3, 4, 2])
        xy, wh, rest = net.add("Split", net.add("Sigmoid", y), net.const([2, 2, 5]), outputs=3, axis=-1)
        grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1)[None, None] - 0.5
        xy = net.add(
            "Mul", net.add("Add", net.add("Mul", xy, net.const(2.0)), net.const(grid)), net.const(float(stride))
        )
        anchors = net.const(np.arange(1.0, 7.0).reshape(1, 3, 1, 1, 2) * stride)
        wh = net.add("Mul", net.add("Pow", net.add("Mul", wh, net.const(2.0)), net.const(2.0)), anchors)
        heads.append(net.add("Reshape", net.add("Concat", xy, wh, rest, axis=-1), net.const([1, -1, 9])))
    return net.block(net.add("Concat", *heads, axis=1))


def masked_attention() -> NetworkBlock:
    """Return attention with a mask of -1e9 from an input of zeros and ones. One of its rows masks everything."""
    net = Net("masked_attention")
    x, seen = net.input((1, 9, 12)), net.input((1, 1, 9, 9), "int64")
    net.draws[seen] = lambda rng: np.where(np.arange(9)[None, None, :, None] == 4, 0, rng.integers(0, 2, (1, 1, 9, 9)))
    away = net.add(
        "Mul", net.add("Sub", net.const(1.0), net.add("Cast", seen, to=onnx.TensorProto.FLOAT)), net.const(-1e9)
    )
    return net.block(attention(net, x, 9, 12, 3, lambda scores: net.add("Add", scores, away)))


def boolean_attention() -> NetworkBlock:
    """Return scores chosen by a boolean mask, and a boolean output that marks the positive results."""
    net = Net("boolean_attention")
    x, seen = net.input((2, 9, 12)), net.input((2, 1, 9, 9), "bool")
    y = attention(net, x, 9, 12, 3, lambda scores: net.add("Where", seen, scores, net.const(-1e9)), batch=2)
    weighted = net.add(
        "Add", net.linear(y, 12, 8), net.add("Cast", net.input((2, 9, 8), "bool"), to=onnx.TensorProto.FLOAT)
    )
    return net.block(weighted, net.add("Greater", net.linear(y, 12, 16), net.const(0.0)))


def rotary() -> NetworkBlock:
    """Return rotary positions by halves, with angles computed in the graph from positions."""
    net = Net("rotary")
    x, positions = net.input((1, 4, 13, 16)), net.input((1, 13), "int64", below=2000)
    steps = net.const((1e4 ** (-np.arange(8) / 8)).reshape(1, 1, 8))
    at = net.add("Unsqueeze", net.add("Cast", positions, to=onnx.TensorProto.FLOAT), net.const([-1]))
    angles = net.add("Mul", at, steps)
    angles = net.add("Unsqueeze", net.add("Concat", angles, angles, axis=-1), net.const([1]))
    low = net.add("Slice", x, net.const([0]), net.const([8]), net.const([-1]))
    high = net.add("Slice", x, net.const([8]), net.const([2**62]), net.const([-1]))
    halves = net.add("Concat", net.add("Neg", high), low, axis=-1)
    return net.block(
        net.add("Add", net.add("Mul", x, net.add("Cos", angles)), net.add("Mul", halves, net.add("Sin", angles)))
    )


def quantized_conv() -> NetworkBlock:
    """Return int8 weights and uint8 activations between QuantizeLinear and DequantizeLinear, as onnxruntime's static
    quantization writes them.
    """
    net = Net("quantized_conv")

    def through(x: str, scale: float, zero: int) -> str:
        reads = net.const(scale), net.const(zero, "uint8")
        return str(net.add("DequantizeLinear", net.add("QuantizeLinear", x, *reads), *reads))

    x = through(net.input((1, 5, 9, 11)), 0.03, 120)
    scales = net.const(np.linspace(0.005, 0.02, 10)), net.const(np.zeros(10), "int8")
    w = net.add("DequantizeLinear", net.const(net.rng.integers(-127, 128, (10, 5, 3, 3)), "int8"), *scales, axis=0)
    y = net.add("Relu", net.add("Conv", x, w, net.weight(10), pads=[1] * 4))
    return net.block(through(y, 0.02, 0), tolerance=2e-3)


def dynamic_linear() -> NetworkBlock:
    """Return a product of onnxruntime's dynamic quantization."""
    net = Net("dynamic_linear")
    x, scale, zero = net.add("DynamicQuantizeLinear", net.input((7, 20)), outputs=3)
    weight = net.const(net.rng.integers(-127, 128, (20, 13)), "int8")
    product = net.add(
        "Cast", net.add("MatMulInteger", x, weight, zero, net.const(0, "int8")), to=onnx.TensorProto.FLOAT
    )
    return net.block(net.add("Add", net.add("Mul", product, net.add("Mul", scale, net.const(0.01))), net.weight(13)))


def dynamic_conv() -> NetworkBlock:
    """Return a convolution of onnxruntime's dynamic quantization, with a bias."""
    net = Net("dynamic_conv")
    x, scale, zero = net.add("DynamicQuantizeLinear", net.input((1, 6, 9, 7)), outputs=3)
    weight = net.const(net.rng.integers(-127, 128, (10, 6, 3, 3)), "int8")
    product = net.add(
        "Cast", net.add("ConvInteger", x, weight, zero, net.const(0, "int8"), pads=[1] * 4), to=onnx.TensorProto.FLOAT
    )
    product = net.add("Mul", product, net.add("Mul", scale, net.const(0.01)))
    return net.block(net.add("Relu", net.add("Add", product, net.weight(1, 10, 1, 1))))


def bool_masks() -> NetworkBlock:
    net = Net("bool_masks")
    x, left, right = net.input((2, 7, 9)), net.input((2, 7, 1), "bool"), net.input((2, 1, 9), "bool")
    both = net.add("And", left, net.add("Not", right))
    either = net.add("Transpose", net.add("Or", both, net.add("Greater", x, net.const(0.5))), perm=[0, 2, 1])
    return net.block(net.add("Where", both, x, net.const(-3.0)), either)


def constant_outputs() -> NetworkBlock:
    """Return a graph with constant anchors as outputs, beside results that a kernel computes from them."""
    net = Net("constant_outputs")
    anchors = net.const(np.arange(26.0).reshape(1, 13, 2))
    boxes = net.add("Add", net.linear(net.input((1, 13, 6)), 6, 2), anchors)
    return net.block(boxes, net.add("Identity", anchors))


def float64() -> NetworkBlock:
    net = Net("float64")
    x = net.input((5, 9), "float64")
    y = net.add("MatMul", x, net.const(net.rng.standard_normal((9, 1)) @ np.ones((1, 6)), "float64"))
    # Only roots and quotients: Vulkan's GLSL has no other functions of doubles.
    share = net.add("Div", y, net.add("ReduceMax", net.add("Abs", y), net.const([-1])))
    return net.block(net.add("Sqrt", net.add("Abs", share)), tolerance=1e-6, plain=("MatMul",))


def token_ids() -> NetworkBlock:
    net = Net("token_ids")
    ids = net.input((2, 13), "int64", below=31)
    y = net.add("Add", net.add("Gather", net.weight(31, 12), ids), net.weight(13, 12))
    y = net.add("LayerNormalization", y, net.weight(12), net.weight(12))
    padded = net.add("Cast", net.add("Equal", ids, net.const(0)), to=onnx.TensorProto.INT64)
    return net.block(
        net.linear(y, 12, 10), net.add("Sub", net.const(13), net.add("ReduceSum", padded, net.const([1]), keepdims=0))
    )


def channel_shuffle() -> NetworkBlock:
    net = Net("channel_shuffle")
    x = net.input((1, 12, 9, 7))
    for _ in range(2):
        left, right = net.add("Split", x, outputs=2, axis=1, num_outputs=2)
        right = net.conv(net.add("Relu", net.conv(right, 6, 6, (1, 1))), 6, 6, group=6)
        x = net.add("Concat", left, net.add("Relu", net.conv(right, 6, 6, (1, 1))), axis=1)
        x = net.add("Transpose", net.add("Reshape", x, net.const([1, 2, 6, 9, 7])), perm=[0, 2, 1, 3, 4])
        x = net.add("Reshape", x, net.const([1, 12, 9, 7]))
    return net.block(x)


def leaky_residual() -> NetworkBlock:
    net = Net("leaky_residual")
    x = net.input((1, 11, 9, 9))
    y = net.add("LeakyRelu", net.conv(x, 11, 14), alpha=0.1)
    return net.block(net.add("Elu", net.add("Add", net.conv(y, 14, 11), x)))


def feature_pyramid() -> NetworkBlock:
    net = Net("feature_pyramid")
    x = net.conv(net.input((1, 3, 16, 16)), 3, 10, strides=[2, 2])
    y = net.add("Relu", net.conv(x, 10, 13, strides=[2, 2]))
    y = net.add(
        "Resize",
        y,
        "",
        net.const([1.0, 1.0, 2.0, 2.0]),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    y = net.conv(net.add("Concat", x, y, axis=1), 23, 9)
    return net.block(net.add("Resize", y, "", net.const([1.0, 1.0, 2.0, 2.0]), mode="linear"))


def vision_transformer() -> NetworkBlock:
    net = Net("vision_transformer")
    y = net.conv(net.input((1, 3, 12, 12)), 3, 12, (4, 4), strides=[4, 4], pads=[0] * 4)
    y = net.add("Transpose", net.add("Reshape", y, net.const([1, 12, 9])), perm=[0, 2, 1])
    y = net.add("Add", net.add("Concat", net.weight(1, 1, 12), y, axis=1), net.weight(1, 10, 12))
    y = net.add("Add", y, attention(net, net.add("LayerNormalization", y, net.weight(12), net.weight(12)), 10, 12, 3))
    return net.block(net.linear(net.add("Gather", y, net.const(0), axis=1), 12, 7))


def reflection() -> NetworkBlock:
    """Return paddings that repeat elements of the map, and a map that is reversed."""
    net = Net("reflection")
    x = net.add("Pad", net.input((1, 5, 9, 7)), net.const([0, 0, 2, 1, 0, 0, 1, 2]), mode="reflect")
    y = net.add("Pad", net.conv(x, 5, 10, pads=[0] * 4), net.const([0, 0, 1, 1, 0, 0, 1, 1]), net.const(-2.0))
    return net.block(net.add("Slice", y, net.const([-1]), net.const([-(2**62)]), net.const([3]), net.const([-1])))


BLOCKS: dict[str, Callable[[], NetworkBlock]] = {
    make.__name__: make
    for make in (
        dense_block, sppf, squeeze_excite, group_norm, geglu, rms_norm, window_attention, pixel_shuffle, depthwise_1d, gated_tcn, conv_3d,  # noqa: E501
        deconvolution, einsum, top_k, yolo_head, masked_attention, boolean_attention, rotary, quantized_conv, dynamic_linear, dynamic_conv, bool_masks,  # noqa: E501
        chosen_queries, beam_step, positions, neighbour_graph,
        constant_outputs, float64, token_ids, channel_shuffle, leaky_residual, feature_pyramid, vision_transformer, reflection,  # noqa: E501
    )
} | {
    "gru": functools.partial(recurrent, "GRU", 3, 17),
    "lstm_300": functools.partial(recurrent, "LSTM", 4, 300, 2),
}  # fmt: skip
