"""Groups of operators above the number of buffers that a kernel can bind are split at a point with only one live value,
with the same results.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, tirx
from tvm_ffi.structural import structural_equal

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels, place_images
from romou.compiler.graph.extract import count_calls, extract_tasks
from romou.compiler.graph.split_groups import split_groups
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.scheduling.blocks import is_view
from romou.devices.targets import Target
from support.models.small_networks import NetworkBuilder, random_inputs, residual_net
from support.suite.exhaustive import in_turn

SHAPE = (5, 7)
PHONE = Target("opencl -device=adreno640")


def grouped() -> tvm.IRModule:
    """Return sums of eight tensors and a small group.

    The end of the sums reads one of the tensors again, so a piece may not end while two values are live.
    """
    xs = [relax.Var(f"x{i}", relax.TensorType(list(SHAPE), "float32")) for i in range(8)]
    bb = relax.BlockBuilder()
    with bb.function("main", xs):
        with bb.dataflow():
            first = bb.emit(relax.op.multiply(xs[0], xs[1]))
            total = first
            for x in xs[2:7]:
                total = bb.emit(relax.op.add(total, x))
            total = bb.emit(relax.op.multiply(total, first))
            small = bb.emit(relax.op.nn.relu(bb.emit(relax.op.sum(total, axis=1))))
            output = bb.emit_output(bb.emit(relax.op.add(bb.emit(relax.op.reshape(small, (SHAPE[0], 1))), xs[7])))
        bb.emit_func_output(output)
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    return tvm.transform.Sequential(passes)(bb.finalize())


def lowered(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential([relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()])(mod)


def most_parameters(mod: tvm.IRModule) -> int:
    return max(len(func.params) for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc))


def result(mod: tvm.IRModule) -> np.ndarray:
    rng = np.random.default_rng(2)
    arrays = [tvm.runtime.tensor(rng.standard_normal(SHAPE).astype("float32")) for _ in range(8)]
    return np.asarray(relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"](*arrays).numpy())


@pytest.mark.parametrize("most", [3, 4, 6])
def test_kernels_keep_within_the_limit_and_compute_the_same(most: int) -> None:
    mod = grouped()
    whole, split = lowered(mod), lowered(split_groups(mod, most))
    assert most_parameters(whole) > most >= most_parameters(split)
    np.testing.assert_allclose(result(split), result(whole), rtol=1e-5, atol=1e-6)


def test_what_fits_stays_whole() -> None:
    assert structural_equal(lowered(split_groups(grouped(), 64)), lowered(grouped()))


def test_a_device_of_the_least_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device file describes Vulkan's least limits: 4 buffers, 128 work-items, 16 KiB of shared memory. Kernels keep
    to them, and numbers are right.
    """
    limits = {
        "max_storage_buffers": (4, "buffers of a Vulkan kernel"),
        "max_work_group_size": (128, "work-items"),
        "local_mem_bytes": (16384, "bytes"),
    }
    facts = {
        name: {"value": value, "unit": unit, "source": "least that Vulkan promises"}
        for name, (value, unit) in limits.items()
    }
    (tmp_path / "least.json").write_text(
        json.dumps({"name": "least", "title": "the least Vulkan device", "facts": facts})
    )
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))
    g = NetworkBuilder({"x": (1, 4, 13, 17), **{f"y{i}": (1, 4, 13, 17) for i in range(6)}})
    total = g.conv("x", 4, 4, pads=[1, 1, 1, 1])
    for i in range(6):
        total = g.add("Add", total, f"y{i}")
    for model in (residual_net(), g.model(total)):
        compiled = romou.compile(model, target="vulkan -device=least", device=0)
        for name, text in compiled.sources().items():
            sides = [int(side) for side in re.findall(r"local_size_[xyz] = (\d+)", text)]
            assert math.prod(sides) <= 128, name
            assert len(re.findall(r"^layout\(std430", text, re.MULTILINE)) <= 4, name
            assert (
                sum(
                    4 * int(lanes or 1) * int(count)
                    for lanes, count in re.findall(r"^shared (?:vec|float|int)(\d?) \w+\[(\d+)\]", text, re.MULTILINE)
                )
                <= 16384
            )
            assert "push_constant" not in text
        inputs = random_inputs(model, seed=4)
        expected = run_onnxruntime(model, inputs)
        assert expected is not None
        for found, wanted in zip(compiled.run(inputs), expected, strict=True):
            assert relative_l2_error(found, wanted) < 1e-5


def gate(channels: int = 30) -> onnx.ModelProto:
    """Return squeeze and excitation: a convolution computes a gate for each channel, which multiplies every pixel of
    another convolution.
    """
    g = NetworkBuilder({"x": (1, channels, 9, 11)})
    x = g.add("Relu", g.conv("x", channels, channels, (1, 1)))
    s = g.add("Relu", g.conv(g.add("GlobalAveragePool", x), channels, 7, (1, 1)))
    s = g.add("Sigmoid", g.conv(s, 7, channels, (1, 1)))
    return g.model(g.conv(g.add("Add", g.add("Mul", x, s), x), channels, 8, (1, 1)))


def outer_gate() -> onnx.ModelProto:
    """Return a dense layer with rows that gate the rows of several matrices."""
    g = NetworkBuilder({"x": (7, 24), "m": (3, 7, 40)})
    return g.model(
        g.add(
            "Tanh",
            g.add("Mul", g.add("Sigmoid", g.add("Add", g.add("MatMul", "x", g.weight(24, 40)), g.weight(40))), "m"),
        )
    )


def linear_unit() -> onnx.ModelProto:
    """Return two dense layers. One gates the other."""
    g = NetworkBuilder({"x": (5, 24)})
    a, b = (g.add("Add", g.add("MatMul", "x", g.weight(24, 40)), g.weight(40)) for _ in range(2))
    return g.model(g.add("MatMul", g.add("Mul", a, g.add("Sigmoid", b)), g.weight(40, 24)))


def sum_behind_a_product() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (4, 6, 10), "y": (4, 1, 10)})
    total = g.add("ReduceSum", g.add("Mul", "x", "y"), g.constant(np.array([2])), keepdims=1)
    return g.model(g.add("Mul", g.add("Relu", total), "x"))


def crossed() -> onnx.ModelProto:
    """Return a column and a row of convolutions, added up at every pixel."""
    g = NetworkBuilder({"x": (1, 8, 9, 9)})
    return g.model(g.add("Relu", g.add("Add", g.conv("x", 8, 8, (9, 1)), g.conv("x", 8, 8, (1, 9)))))


BLOCKS = {f.__name__: f for f in (gate, outer_gate, linear_unit, sum_behind_a_product, crossed)}


@in_turn
@pytest.mark.parametrize(
    "target", ["opencl", "opencl -device=adreno640", "vulkan -device=mali_g76", "cuda -device=nvidia_h200"]
)
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_fusion_makes_no_function_that_no_family_takes(block: Callable[[], onnx.ModelProto], target: str) -> None:
    fused = fuse_operators(pack_channels(import_onnx(block()).mod), Target(target))
    _, of = extract_tasks(fused)
    assert {name for name in count_calls(fused) if not is_view(fused[name])} == set(of)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_pieces_compute_the_same(block: Callable[[], onnx.ModelProto], opencl_device: tvm.runtime.Device) -> None:
    model = block()
    inputs = random_inputs(model, seed=5)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for target in ("opencl", "opencl -device=adreno640"):
        found = romou.compile(model, target=target, device=0, verify=False).run(inputs)
        assert relative_l2_error(found[0], expected[0]) < 1e-5


def test_a_gate_leaves_images_where_they_are() -> None:
    """The map, the gate and their product are handed on as texels."""
    placed = place_images(fuse_operators(pack_channels(import_onnx(gate(32)).mod), PHONE), PHONE)
    images = {task.name: len(task.template.images) for task in extract_tasks(placed)[0]}
    assert images == {
        "elementwise_pack_1x8x9x11x4": 1,
        "conv2d_1x32x9x11_32_1x1_s1": 2,
        "row_reduction_red_divide_1x8x1x1x4": 2,
        "conv2d_1x32x1x1_7_1x1_s1": 2,
        "conv2d_1x7x1x1_32_1x1_s1": 2,
        "elementwise_multiply_add_1x8x9x11x4": 3,
        "conv2d_1x32x9x11_8_1x1_s1": 1,
        "elementwise_unpack_1x8x9x11": 0,
    }
