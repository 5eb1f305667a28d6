"""Fusion leaves out copies that no operator needs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax, tirx

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import count_calls
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.scheduling.blocks import find_blocks
from romou.devices.targets import Target
from support.models.nodes import assert_as_onnxruntime, model_of
from support.models.small_networks import NetworkBuilder, random_inputs

TARGET = Target("opencl -device=host")


def split_and_join() -> NetworkBuilder:
    """Return channels cut into three slices that take different paths."""
    g = NetworkBuilder({"x": (1, 13, 5, 7)})
    g.nodes.append(
        helper.make_node("Split", ["x", g.constant(np.asarray([3, 6, 4], "int64"))], ["a", "b", "c"], axis=1)
    )
    parts = [g.add("Relu", "a"), g.add("Tanh", "b"), g.add("Exp", "c")]
    g.last = g.add("Concat", *reversed(parts), axis=1)  # type: ignore[attr-defined]
    return g


def test_a_split_is_read_where_it_is_used(opencl_device: tvm.runtime.Device) -> None:
    g = split_and_join()
    model = g.model(g.last)  # type: ignore[attr-defined]
    fused = fuse_operators(pack_channels(import_onnx(model).mod), TARGET)
    for _, func in fused.functions_items():
        if isinstance(func, tirx.PrimFunc):
            written = [p for p in func.params if any(block.writes[0].source.same_as(p) for block in find_blocks(func))]
            assert len(written) == 1, "a kernel that writes several tensors fuses with nothing"
    tuned = romou.compile(model, target="opencl", verify=False)
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    assert relative_l2_error(tuned.run(inputs)[0], expected[0]) < 1e-5


def test_reshapes_one_after_the_other_are_a_view() -> None:
    g = NetworkBuilder({"x": (1, 8, 9, 9)})
    x = g.add("Flatten", g.add("GlobalAveragePool", g.conv("x", 8, 12, pads=[1, 1, 1, 1])))
    fused = fuse_operators(pack_channels(import_onnx(g.model(x)).mod), TARGET)
    reshapes = [name for name in count_calls(fused) if "reshape" in name]
    assert len(reshapes) == 1
    assert relax.analysis.has_reshape_pattern(fused[reshapes[0]])


def sorted_and_summed_up() -> onnx.ModelProto:
    """Return the largest numbers of each channel's rows, and running sums along rows and along channels."""
    g = NetworkBuilder({"x": (1, 5, 6, 7)})
    x = g.conv("x", 5, 8, pads=[1, 1, 1, 1])
    g.nodes.append(helper.make_node("TopK", [x, g.constant(np.asarray([3], "int64"))], ["values", "places"], axis=-1))
    sums = [g.add("CumSum", x, g.constant(np.asarray(axis, "int64"))) for axis in (3, 1)]
    return g.model("values", g.add("Cast", "places", to=TensorProto.FLOAT), *sums)


@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640"])
def test_sorts_and_running_sums(target: str, opencl_device: tvm.runtime.Device) -> None:
    model = sorted_and_summed_up()
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for found, wanted in zip(romou.compile(model, target=target, verify=False).run(inputs), expected, strict=True):
        assert relative_l2_error(found, wanted) < 1e-5


def test_sorts_and_running_sums_compile_for_cuda() -> None:
    assert romou.compile(sorted_and_summed_up(), target="cuda -device=nvidia_h200").summary().target.startswith("cuda")


def test_a_long_chain_is_cut_and_its_names_stay_short() -> None:
    inputs = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    steps = {f"t{i}": (("Neg", "Sigmoid")[i % 2], f"t{i - 1}" if i else "x") for i in range(70)}
    model = model_of(steps, inputs)
    del model.graph.output[:-1]
    assert_as_onnxruntime(model, inputs)
    names = list(romou.compile(model, target="opencl").sources())
    assert len(names) == 2, "32 operators a kernel, and the same kernel twice"
    assert all(len(name) < 120 for name in names)
    assert names == list(romou.compile(model, target="opencl").sources()), "and are the same each time"
