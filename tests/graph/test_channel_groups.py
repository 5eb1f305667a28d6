"""Group norms behind convolutions read packed channels directly."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import count_calls
from romou.compiler.importing import import_onnx
from support.models.small_networks import NetworkBuilder, random_inputs
from support.suite.exhaustive import in_turn


def group_norms(channels: int, groups: int, *, returns_rows: bool = False, batch: int = 2) -> onnx.ModelProto:
    """Return a convolution, group norm, SiLU and convolution. The rows of the groups may be an output as well."""
    g = NetworkBuilder({"image": (batch, 3, 5, 7)})
    x = g.conv("image", 3, channels, pads=[1, 1, 1, 1])
    rows = g.add("Reshape", x, g.constant(np.array([batch, groups, -1])))
    y = g.add(
        "InstanceNormalization",
        rows,
        g.constant(np.full(groups, 1.5, "float32")),
        g.constant(np.full(groups, 0.25, "float32")),
    )
    y = g.add("Reshape", y, g.constant(np.array([batch, channels, 5, 7])))
    y = g.add("Add", g.add("Mul", y, g.weight(channels, 1, 1)), g.weight(channels, 1, 1))
    y = g.conv(g.add("Mul", y, g.add("Sigmoid", y)), channels, 6, pads=[1, 1, 1, 1])
    return g.model(y, *([g.add("Exp", rows)] if returns_rows else []))


@pytest.mark.parametrize(("channels", "groups", "transforms"), [(16, 4, 2), (24, 2, 2), (16, 8, 4), (12, 4, 4)])
def test_nothing_is_unpacked_for_groups_of_whole_texels(channels: int, groups: int, transforms: int) -> None:
    calls = count_calls(pack_channels(import_onnx(group_norms(channels, groups)).mod))
    # The transforms of the graph's input and output are always there.
    assert sum(count for name, count in calls.items() if "pack" in name) == transforms


@in_turn
@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640"])
@pytest.mark.parametrize(
    "model",
    [group_norms(16, 4), group_norms(12, 4), group_norms(16, 2, returns_rows=True)],
    ids=["whole", "cut", "returned"],
)
def test_numbers(model: onnx.ModelProto, target: str, opencl_device: tvm.runtime.Device) -> None:
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    compiled = romou.compile(model, target=target, device=0, verify=False)
    assert not compiled.host_nodes
    for found, right in zip(compiled.run(inputs), expected, strict=True):
        assert relative_l2_error(found, right) < 1e-5


@pytest.mark.parametrize("is_wider", [False, True], ids=["packed", "wider"])
def test_rows_beside_other_tensors(is_wider: bool, opencl_device: tvm.runtime.Device) -> None:
    """One tensor has equal values in a row and exists only packed. Another one adds axes to the result."""
    g = NetworkBuilder({"image": (1, 3, 5, 7), "row": (1, 8, 1)})
    rows = g.add("Reshape", g.conv("image", 3, 20, pads=[1, 1, 1, 1]), g.constant(np.array([1, 5, -1])))
    packed = g.add("Conv", "row", g.weight(5, 8, 1), kernel_shape=[1])
    factor = (
        g.add("Mul", packed, g.constant(np.arange(15, dtype="float32").reshape(3, 1, 5, 1))) if is_wider else packed
    )
    model = g.model(g.add("Exp", g.add("Mul", rows, factor)))
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    assert (
        relative_l2_error(romou.compile(model, target="opencl", verify=False, strict=True).run(inputs)[0], expected[0])
        < 1e-5
    )
