"""Networks whose times others published and that Romou does not bundle, as ONNX graphs without batch norms to fold.

    network("vgg16")   ->   the graph for one picture; weights are the same few numbers over and over

Batch norms after a convolution are left out, as every engine folds them. DenseNet's and ResNet v2's before one stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_BLOCK = np.random.default_rng(0).standard_normal(4093).astype(np.float32)


class Graph:
    """A network under construction: each method adds nodes and returns the name of the result.

    channels: name of a tensor -> its channels.
    """

    def __init__(self, size: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.channels = {"image": 3}
        self.size = size

    def add(self, kind: str, *inputs: str, channels: int | None = None, **attributes: Any) -> str:
        """Add a node. channels: of its result; those of its first input, if None."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"{kind}{len(self.nodes)}", **attributes))
        self.channels[name] = self.channels[inputs[0]] if channels is None else channels
        return name

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int) -> str:
        scale = np.float32(2 / max(int(np.prod(shape[1:])), 1)) ** 0.5
        return self.constant((scale * np.resize(_BLOCK, shape)).astype(np.float32))

    def conv(
        self,
        x: str,
        channels: int,
        window: int | tuple[int, int] = 1,
        stride: int = 1,
        *,
        then: str = "Relu",
        groups: int = 1,
        pads: bool = True,
    ) -> str:
        """Add a convolution with its bias and an activation ("": none), padded to the same size unless `pads` is False.

        x: (1, c, h, w) -> (1, channels, h / stride, w / stride)
        """
        kh, kw = (window, window) if isinstance(window, int) else window
        y = self.add(
            "Conv",
            x,
            self.weight(channels, self.channels[x] // groups, kh, kw),
            self.weight(channels),
            channels=channels,
            kernel_shape=[kh, kw],
            strides=[stride, stride],
            group=groups,
            pads=[kh // 2, kw // 2] * 2 if pads else [0] * 4,
        )
        return self.add(then, y) if then else y

    def depthwise(self, x: str, window: int, stride: int = 1, then: str = "Relu") -> str:
        return self.conv(x, self.channels[x], window, stride, then=then, groups=self.channels[x])

    def norm(self, x: str) -> str:
        """Add a batch norm and a ReLU before a convolution."""
        c = self.channels[x]
        ones, zeros = self.constant(np.linspace(0.9, 1.1, c, dtype=np.float32)), self.weight(c)
        return self.add("Relu", self.add("BatchNormalization", x, ones, zeros, zeros, ones))

    def pool(self, x: str, window: int, stride: int, *, kind: str = "MaxPool", pads: bool = True) -> str:
        padding = [window // 2] * 4 if pads else [0] * 4
        return self.add(kind, x, kernel_shape=[window] * 2, strides=[stride] * 2, pads=padding)

    def concat(self, *inputs: str) -> str:
        return self.add("Concat", *inputs, channels=sum(self.channels[x] for x in inputs), axis=1)

    def squeezed(self, x: str, inner: int) -> str:
        """Scale channels by a squeeze-and-excitation block."""
        y = self.conv(self.add("GlobalAveragePool", x), inner)
        return self.add("Mul", x, self.add("HardSigmoid", self.conv(y, self.channels[x], then=""), alpha=1 / 6))

    def linear(self, x: str, outputs: int, then: str = "") -> str:
        y = self.add("Gemm", x, self.weight(self.channels[x], outputs), self.weight(outputs), channels=outputs)
        return self.add(then, y) if then else y

    def head(self, x: str, classes: int = 1000) -> str:
        """Add the average over pixels and the last product."""
        return self.linear(self.add("Flatten", self.add("GlobalAveragePool", x)), classes)

    def model(self, output: str, shape: tuple[int, ...] = ()) -> onnx.ModelProto:
        """Return the network. shape: of its output. (): (1, channels)."""
        picture = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, self.size, self.size])
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape or (1, self.channels[output]))
        graph = helper.make_graph(self.nodes, "classifier", [picture], [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def _vgg(g: Graph, *repeats: int) -> str:
    x = "image"
    for channels, count in zip((64, 128, 256, 512, 512), repeats, strict=True):
        for _ in range(count):
            x = g.conv(x, channels, 3)
        x = g.pool(x, 2, 2, pads=False)
    y = g.add("Flatten", x, channels=512 * 7 * 7)
    return g.linear(g.linear(g.linear(y, 4096, "Relu"), 4096, "Relu"), 1000)


def _resnet(g: Graph, repeats: tuple[int, ...], *, has_bottlenecks: bool, is_second: bool = False) -> str:
    """ResNet. is_second: version 2, with norms before convolutions, and the stride in the window of both versions."""
    x = g.pool(g.conv("image", 64, 7, 2), 3, 2)
    for stage, count in enumerate(repeats):
        for block in range(count):
            width, stride = 64 << stage, 2 if stage and not block else 1
            outputs = 4 * width if has_bottlenecks else width
            y = start = g.norm(x) if is_second else x
            if has_bottlenecks:
                y = g.conv(g.conv(g.conv(y, width), width, 3, stride), outputs, then="")
            else:
                y = g.conv(g.conv(y, width, 3, stride), outputs, 3, then="")
            skip = x if g.channels[x] == outputs and stride == 1 else g.conv(start, outputs, 1, stride, then="")
            x = g.add("Add", y, skip)
            x = x if is_second else g.add("Relu", x)
    return g.head(g.norm(x) if is_second else x)


def _densenet(g: Graph, repeats: tuple[int, ...] = (6, 12, 24, 16)) -> str:
    x = g.pool(g.conv("image", 64, 7, 2), 3, 2)
    for stage, count in enumerate(repeats):
        for _ in range(count):
            x = g.concat(x, g.conv(g.conv(g.norm(x), 128), 32, 3, then=""))
        if stage < len(repeats) - 1:
            x = g.pool(g.conv(g.norm(x), g.channels[x] // 2, then=""), 2, 2, kind="AveragePool", pads=False)
    return g.head(g.norm(x))


def _squeezenet(g: Graph) -> str:
    """SqueezeNet 1.1."""
    x = g.pool(g.conv("image", 64, 3, 2, pads=False), 3, 2, pads=False)
    for squeezed, expanded, pools in ((16, 64, 0), (16, 64, 1), (32, 128, 0), (32, 128, 1), *_LAST_FIRES):
        y = g.conv(x, squeezed)
        x = g.concat(g.conv(y, expanded), g.conv(y, expanded, 3))
        x = g.pool(x, 3, 2, pads=False) if pools else x
    return g.add("Flatten", g.add("GlobalAveragePool", g.conv(x, 1000)))


_LAST_FIRES = ((48, 192, 0), (48, 192, 0), (64, 256, 0), (64, 256, 0))


def _inverted(g: Graph, x: str, inner: int, outputs: int, window: int, stride: int, then: str, squeeze: int = 0) -> str:
    """An inverted residual block. inner: expanded channels. squeeze: inner channels of its squeeze, 0 for none."""
    y = g.conv(x, inner, then=then) if inner != g.channels[x] else x
    y = g.depthwise(y, window, stride, then)
    y = g.conv(g.squeezed(y, squeeze) if squeeze else y, outputs, then="")
    return g.add("Add", x, y) if stride == 1 and g.channels[x] == outputs else y


def _mobile(g: Graph, *stages: tuple[int, int, tuple[tuple[int, int], ...]]) -> str:
    """MnasNet and ProxylessNAS. stages: (channels, stride, (expansion, window) of each block)."""
    x = g.conv(g.depthwise(g.conv("image", 32, 3, 2), 3), 16, then="")
    for outputs, first, blocks in stages:
        for place, (expansion, window) in enumerate(blocks):
            x = _inverted(g, x, expansion * g.channels[x], outputs, window, 1 if place else first, "Relu")
    return g.head(g.conv(x, 1280))


_MNASNET = (
    (24, 2, ((3, 3),) * 3),
    (40, 2, ((3, 5),) * 3),
    (80, 2, ((6, 5),) * 3),
    (96, 1, ((6, 3),) * 2),
    (192, 2, ((6, 5),) * 4),
    (320, 1, ((6, 3),)),
)
_PROXYLESS = (
    (32, 2, ((3, 5), (3, 3))),
    (40, 2, ((3, 7), (3, 3), (3, 5), (3, 5))),
    (80, 2, ((6, 7), (3, 5), (3, 5), (3, 5))),
    (96, 1, ((6, 5), (3, 5), (3, 5), (3, 5))),
    (192, 2, ((6, 7), (6, 7), (3, 7), (3, 7))),
    (320, 1, ((6, 7),)),
)

_R, _H = "Relu", "HardSwish"
# (window, inner channels, channels, channels of the squeeze, activation, stride)
_LARGE = (
    (3, 16, 16, 0, _R, 1),
    (3, 64, 24, 0, _R, 2),
    (3, 72, 24, 0, _R, 1),
    (5, 72, 40, 24, _R, 2),
    (5, 120, 40, 32, _R, 1),
    (5, 120, 40, 32, _R, 1),
    (3, 240, 80, 0, _H, 2),
    (3, 200, 80, 0, _H, 1),
    (3, 184, 80, 0, _H, 1),
    (3, 184, 80, 0, _H, 1),
    (3, 480, 112, 120, _H, 1),
    (3, 672, 112, 168, _H, 1),
    (5, 672, 160, 168, _H, 2),
    (5, 960, 160, 240, _H, 1),
    (5, 960, 160, 240, _H, 1),
)
_SMALL = (
    (3, 16, 16, 8, _R, 2),
    (3, 72, 24, 0, _R, 2),
    (3, 88, 24, 0, _R, 1),
    (5, 96, 40, 24, _H, 2),
    (5, 240, 40, 64, _H, 1),
    (5, 240, 40, 64, _H, 1),
    (5, 120, 48, 32, _H, 1),
    (5, 144, 48, 40, _H, 1),
    (5, 288, 96, 72, _H, 2),
    (5, 576, 96, 144, _H, 1),
    (5, 576, 96, 144, _H, 1),
)


def _mobilenet_v3(g: Graph, blocks: tuple[tuple[int, int, int, int, str, int], ...], inner: int, last: int) -> str:
    x = g.conv("image", 16, 3, 2, then=_H)
    for window, expanded, outputs, squeeze, then, stride in blocks:
        x = _inverted(g, x, expanded, outputs, window, stride, then, squeeze)
    x = g.add("Flatten", g.add("GlobalAveragePool", g.conv(x, inner, then=_H)))
    return g.linear(g.linear(x, last, _H), 1000)


def _shufflenet(g: Graph) -> str:
    """ShuffleNet v2, width 1."""
    x, side = g.pool(g.conv("image", 24, 3, 2), 3, 2), 56
    for outputs, count in ((116, 4), (232, 8), (464, 4)):
        side //= 2
        for block in range(count):
            half = outputs // 2
            if block:
                kept, y = _halves(g, x, half)
            else:
                kept, y = g.conv(g.depthwise(x, 3, 2, ""), half), x
            y = g.conv(g.depthwise(g.conv(y, half), 3, 1 if block else 2, ""), half)
            shapes = [g.constant(np.array(s)) for s in ((1, 2, half, side, side), (1, outputs, side, side))]
            x = g.add("Reshape", g.concat(kept, y), shapes[0])
            x = g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 1, 3, 4]), shapes[1], channels=outputs)
    return g.head(g.conv(x, 1024))


def _halves(g: Graph, x: str, half: int) -> tuple[str, str]:
    axis = g.constant(np.array([1]))
    first, second = (
        g.add("Slice", x, g.constant(np.array([low])), g.constant(np.array([low + half])), axis, channels=half)
        for low in (0, half)
    )
    return first, second


def _inception_v4(g: Graph) -> str:
    def average(x: str, channels: int) -> str:
        return g.conv(g.pool(x, 3, 1, kind="AveragePool"), channels)

    def reduced(x: str) -> str:
        return g.pool(x, 3, 2, pads=False)

    x = g.conv(g.conv(g.conv("image", 32, 3, 2, pads=False), 32, 3, pads=False), 64, 3)
    x = g.concat(reduced(x), g.conv(x, 96, 3, 2, pads=False))
    y = g.conv(g.conv(g.conv(x, 64), 64, (1, 7)), 64, (7, 1))
    x = g.concat(g.conv(g.conv(x, 64), 96, 3, pads=False), g.conv(y, 96, 3, pads=False))
    x = g.concat(g.conv(x, 192, 3, 2, pads=False), reduced(x))
    for _ in range(4):
        y = g.conv(g.conv(x, 64), 96, 3)
        z = g.conv(g.conv(g.conv(x, 64), 96, 3), 96, 3)
        x = g.concat(average(x, 96), g.conv(x, 96), y, z)
    y = g.conv(g.conv(g.conv(x, 192), 224, 3), 256, 3, 2, pads=False)
    x = g.concat(reduced(x), g.conv(x, 384, 3, 2, pads=False), y)
    for _ in range(7):
        y = g.conv(g.conv(g.conv(x, 192), 224, (1, 7)), 256, (7, 1))
        z = g.conv(g.conv(g.conv(x, 192), 192, (7, 1)), 224, (1, 7))
        z = g.conv(g.conv(z, 224, (7, 1)), 256, (1, 7))
        x = g.concat(average(x, 128), g.conv(x, 384), y, z)
    y = g.conv(g.conv(x, 192), 192, 3, 2, pads=False)
    z = g.conv(g.conv(g.conv(g.conv(x, 256), 256, (1, 7)), 320, (7, 1)), 320, 3, 2, pads=False)
    x = g.concat(reduced(x), y, z)
    for _ in range(3):
        y, z = g.conv(x, 384), g.conv(g.conv(g.conv(x, 384), 448, (3, 1)), 512, (1, 3))
        pairs = [g.conv(part, 256, window) for part in (y, z) for window in ((1, 3), (3, 1))]
        x = g.concat(average(x, 256), g.conv(x, 256), *pairs)
    return g.head(x)


# Name -> side of the picture, and what builds the graph.
_NETWORKS: dict[str, tuple[int, Callable[[Graph], str]]] = {
    "vgg11": (224, lambda g: _vgg(g, 1, 1, 2, 2, 2)),
    "vgg13": (224, lambda g: _vgg(g, 2, 2, 2, 2, 2)),
    "vgg16": (224, lambda g: _vgg(g, 2, 2, 3, 3, 3)),
    "vgg19": (224, lambda g: _vgg(g, 2, 2, 4, 4, 4)),
    "resnet34": (224, lambda g: _resnet(g, (3, 4, 6, 3), has_bottlenecks=False)),
    "resnet50": (224, lambda g: _resnet(g, (3, 4, 6, 3), has_bottlenecks=True)),
    "resnet50_v2": (224, lambda g: _resnet(g, (3, 4, 6, 3), has_bottlenecks=True, is_second=True)),
    "densenet121": (224, _densenet),
    "squeezenet1_1": (224, _squeezenet),
    "mnasnet": (224, lambda g: _mobile(g, *_MNASNET)),
    "proxylessnas": (224, lambda g: _mobile(g, *_PROXYLESS)),
    "mobilenet_v3_large": (224, lambda g: _mobilenet_v3(g, _LARGE, 960, 1280)),
    "mobilenet_v3_small": (224, lambda g: _mobilenet_v3(g, _SMALL, 576, 1024)),
    "shufflenet_v2": (224, _shufflenet),
    "inception_v4": (299, _inception_v4),
}


def names() -> tuple[str, ...]:
    """Return the names of the networks."""
    return tuple(_NETWORKS)


def network(name: str) -> onnx.ModelProto:
    """Return a network for one picture."""
    size, build = _NETWORKS[name]
    graph = Graph(size)
    return graph.model(build(graph))
