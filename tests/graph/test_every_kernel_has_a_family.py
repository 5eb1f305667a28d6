"""Typical blocks of networks on every kind of device: which kernels have no operator family, and so TVM's default
schedule, which cannot be tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from romou import models
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import count_calls, extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.scheduling.blocks import is_view
from romou.devices.targets import Target
from support.models.small_networks import NetworkBuilder, attention_net, products_net, residual_net
from support.suite.exhaustive import few

TARGETS = (
    "opencl",
    "opencl -device=adreno640",
    "opencl -device=mali_g76",
    "vulkan -device=adreno640",
    "cuda -device=nvidia_h200",
)
Block = Callable[[], onnx.ModelProto]


def without_family(model: onnx.ModelProto, targets: Sequence[str]) -> dict[str, list[str]]:
    """Return target -> names of the kernels that no family takes."""
    packed, found = pack_channels(import_onnx(model).mod), {}
    for target in targets:
        fused = fuse_operators(packed, Target(target))
        _, of = extract_tasks(fused)
        found[target] = sorted(name for name in count_calls(fused) if name not in of and not is_view(fused[name]))
    return found


def map_of(channels: int = 12, size: tuple[int, ...] = (9, 7)) -> tuple[NetworkBuilder, str]:
    g = NetworkBuilder({"x": (1, channels, *size)})
    return g, g.add("Relu", g.conv("x", channels, channels, (1,) * len(size)))


def chain(*operators: tuple[str, dict[str, object]], size: tuple[int, ...] = (9, 7)) -> Block:
    """Return operators of one tensor behind a convolution."""

    def build() -> onnx.ModelProto:
        g, x = map_of(size=size)
        for operator, attributes in operators:
            x = g.add(operator, x, **attributes)
        return g.model(x)

    return build


def product(left: Sequence[int], right: Sequence[int], perm: Sequence[int] | None = None) -> Block:
    def build() -> onnx.ModelProto:
        g = NetworkBuilder({"a": left, "b": right})
        return g.model(g.add("Relu", g.add("MatMul", "a", "b" if perm is None else g.add("Transpose", "b", perm=perm))))

    return build


def gate(activation: str) -> Block:
    def build() -> onnx.ModelProto:
        g, x = map_of(30)
        s = g.add("Relu", g.conv(g.add("GlobalAveragePool", x), 30, 7, (1, 1)))
        return g.model(g.conv(g.add("Mul", x, g.add(activation, g.conv(s, 7, 30, (1, 1)))), 30, 8, (1, 1)))

    return build


def channel_attention() -> onnx.ModelProto:
    """Return a gate computed by a convolution along channels."""
    g, x = map_of()
    s = g.add("Reshape", g.add("GlobalAveragePool", x), g.constant(np.array([1, 1, 12])))
    s = g.add(
        "Reshape",
        g.add("Sigmoid", g.add("Conv", s, g.weight(1, 1, 3), pads=[1, 1])),
        g.constant(np.array([1, 12, 1, 1])),
    )
    return g.model(g.add("Mul", x, s))


def spatial_attention() -> onnx.ModelProto:
    g, x = map_of()
    both = g.add("Concat", g.add("ReduceMean", x, axes=[1]), g.add("ReduceMax", x, axes=[1]), axis=1)
    return g.model(g.add("Mul", x, g.add("Sigmoid", g.conv(both, 2, 1, (7, 7), pads=[3] * 4))))


def linear_unit() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (5, 24)})
    g.nodes.append(helper.make_node("Split", [g.add("MatMul", "x", g.weight(24, 80))], ["a", "b"], axis=-1))
    return g.model(g.add("MatMul", g.add("Mul", "a", g.add("Sigmoid", "b")), g.weight(40, 24)))


def modulation() -> onnx.ModelProto:
    """Return a scale and a shift for each channel, computed by dense layers."""
    g = NetworkBuilder({"x": (1, 8, 9, 9), "t": (1, 16)})
    scale, shift = (
        g.add("Reshape", g.add("Gemm", "t", g.weight(16, 8), g.weight(8)), g.constant(np.array([1, 8, 1, 1])))
        for _ in range(2)
    )
    return g.model(g.add("Relu", g.add("Add", g.add("Mul", g.conv("x", 8, 8), scale), shift)))


def rotary() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (1, 4, 9, 8)})
    g.nodes.append(helper.make_node("Split", ["x"], ["a", "b"], axis=-1))
    turned = g.add("Concat", g.add("Neg", "b"), "a", axis=-1)
    return g.model(g.add("Add", g.add("Mul", "x", g.weight(9, 8)), g.add("Mul", turned, g.weight(9, 8))))


def shuffle() -> onnx.ModelProto:
    g, x = map_of(12, (8, 6))
    x = g.add("Transpose", g.add("Reshape", x, g.constant(np.array([1, 3, 4, 8, 6]))), perm=[0, 2, 1, 3, 4])
    return g.model(g.add("DepthToSpace", g.add("Reshape", x, g.constant(np.array([1, 12, 8, 6]))), blocksize=2))


def group_norm() -> onnx.ModelProto:
    g, x = map_of()
    x = g.add("InstanceNormalization", g.add("Reshape", x, g.constant(np.array([0, 4, -1]))), g.weight(4), g.weight(4))
    return g.model(g.add("Mul", g.add("Reshape", x, g.constant(np.array([1, 12, 9, 7]))), g.weight(12, 1, 1)))


def group_normalization() -> onnx.ModelProto:
    g, x = map_of()
    model = g.model(g.add("GroupNormalization", x, g.weight(12), g.weight(12), num_groups=4))
    model.opset_import[0].version, model.ir_version = 21, 10
    return model


def resized() -> onnx.ModelProto:
    g, x = map_of()
    return g.model(
        *(
            g.add("Resize", x, "", g.constant(np.array([1, 1, 2, 2], "f")), mode=mode)
            for mode in ("nearest", "linear", "cubic")
        )
    )


def weights_at_run_time() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (1, 6, 9, 9), "w": (8, 6, 3, 3), "v": (8, 1, 3, 3)})
    return g.model(
        g.add("Relu", g.add("Conv", g.add("Conv", "x", "w", kernel_shape=[3, 3]), "v", kernel_shape=[3, 3], group=8))
    )


def groups() -> onnx.ModelProto:
    """Return a channel multiplier, and groups that cut texels."""
    g = NetworkBuilder({"x": (1, 6, 9, 9)})
    x = g.add("Relu", g.conv("x", 6, 12, (3, 3), 6))
    x = g.add("ConvTranspose", g.conv(x, 12, 9, (3, 3), 3), g.weight(9, 2, 3, 3), group=3, strides=[2, 2])
    return g.model(g.add("Sigmoid", x))


def reductions() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (4, 8, 10)})
    return g.model(
        *(g.add(op, "x", axes=[1]) for op in ("ReduceL2", "ReduceLogSumExp", "ReduceProd", "ReduceMin")),
        g.add("LogSoftmax", "x", axis=-1),
    )


def lookups() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (2, 7)})
    index = g.add("Cast", "x", to=TensorProto.INT64)
    return g.model(g.add("Relu", g.add("Gather", g.weight(50, 16), index)), g.add("GatherElements", "x", index, axis=1))


def places() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (5, 41)})
    return g.model(
        g.add("CumSum", "x", g.constant(np.array(1))),
        g.add("Hardmax", "x", axis=0),
        g.add("Cast", g.add("ArgMax", "x", axis=1), to=TensorProto.FLOAT),
        g.add("Cast", g.add("ArgMin", "x", axis=0, select_last_index=1), to=TensorProto.FLOAT),
    )


def scalars() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (7, 13), "low": (), "high": ()})
    clipped = g.add("Clip", "x", "low", "high")
    return g.model(clipped, g.add("Div", g.add("ReduceSum", clipped, keepdims=0), g.add("Sub", "high", "low")))


def searches() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (5, 40)})
    g.nodes.append(helper.make_node("TopK", ["x", g.constant(np.array([3]))], ["v", "i"]))
    return g.model("v")


BLOCKS: dict[str, Block] = {
    "squeeze and excite": gate("Sigmoid"),
    "squeeze and excite, hard": gate("HardSigmoid"),
    "channel attention": channel_attention,
    "spatial attention": spatial_attention,
    "linear unit": linear_unit,
    "modulation": modulation,
    "rotary": rotary,
    "shuffle": shuffle,
    "group norm": group_norm,
    "group normalization": group_normalization,
    "resize": resized,
    "weights at run time": weights_at_run_time,
    "groups": groups,
    "reductions": reductions,
    "lookups": lookups,
    "places of extremes, running sums": places,
    "sorted rows": searches,
    "scalars": scalars,
    "attention": attention_net,
    "matrices": products_net,
    "residual": residual_net,
    "batches that broadcast": product((3, 1, 5, 12), (2, 12, 8)),
    "a matrix by a vector": product((5, 12), (12,)),
    "a transposed matrix": product((2, 5, 12), (2, 8, 12), [0, 2, 1]),
    "pools": chain(("MaxPool", {"kernel_shape": [3, 3]}), ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]})),
    "norm of a map": chain(("LRN", {"size": 5}), ("LpNormalization", {"axis": 1})),
    "means": chain(("GlobalAveragePool", {}), ("Flatten", {}), ("Softmax", {"axis": -1})),
    "activations": chain(("LeakyRelu", {}), ("HardSwish", {}), ("Softplus", {}), ("Elu", {}), ("Softmax", {"axis": 1})),
    "rows": chain(("MaxPool", {"kernel_shape": [3]}), ("LeakyRelu", {}), ("ReduceMax", {"axes": [2]}), size=(17,)),
    "volumes": chain(("MaxPool", {"kernel_shape": [2, 2, 2]}), ("Tanh", {}), ("GlobalAveragePool", {}), size=(4, 6, 5)),
}


def test_there_is_a_block_for_each_kind() -> None:
    assert len(BLOCKS) >= 25


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_every_kernel_of_a_block(block: Block) -> None:
    assert without_family(block(), TARGETS) == {target: [] for target in TARGETS}


@pytest.mark.parametrize("name", few(list(models.names()), 4))
def test_every_kernel_of_the_bundled_networks(name: str) -> None:
    assert without_family(models.load(name), TARGETS[1:2]) == {TARGETS[1]: []}
