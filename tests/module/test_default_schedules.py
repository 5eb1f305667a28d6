"""Functions that no operator family takes: sums of one term, rules of TVM that raise or exceed limits, and the plain
schedule behind them.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import s_tir, tirx
from tvm.s_tir import dlight

import romou
from romou.compiler.assembly import default_schedules
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.scheduling.blocks import reductions_of
from romou.compiler.scheduling.rewrites import without_single_terms
from romou.compiler.tir.guarded_loads import guarded_loads
from romou.compiler.tir.traversal import nodes_in
from romou.devices.targets import Target
from support.models.nodes import assert_as_onnxruntime, model_of
from support.suite.exhaustive import few, in_turn

SEED = 11
TARGETS = ["opencl", "opencl -device=adreno640", "opencl -device=mali_g76", "vulkan"]


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(SEED)
    return (rng.integers(-9, 9, shape) if "int" in dtype else rng.standard_normal(shape)).astype(dtype)


def convolution(rank: int, channels: int = 1) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a convolution with a window of one pixel, a bias and a sigmoid. The sigmoid turns an
    empty sum into 0.5.
    """
    inputs = {"x": numbers((1, channels, *[4] * rank), "float32")}
    constants = {"w": numbers((3, channels, *[1] * rank), "float32"), "b": np.array([1, -2, 3], "float32")}
    return model_of({"sum": ("Conv", "x w b"), "y": ("Sigmoid", "sum")}, inputs, constants), inputs


def quantized() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return one quantized channel. A zero point and a clip follow the sum."""
    inputs = {"x": np.random.default_rng(SEED).integers(0, 255, (1, 1, 4, 4)).astype("uint8")}
    scales = {name: np.float32(value) for name, value in (("sx", 0.02), ("sw", 0.02), ("sy", 0.0201))}
    constants = {
        **scales,
        "zx": np.uint8(120),
        "zw": np.int8(0),
        "zy": np.uint8(100),
        "w": np.array([6, -3], "int8").reshape(2, 1, 1, 1),
    }
    return model_of({"y": ("QLinearConv", "x sx zx w sw zw sy zy")}, inputs, constants), inputs


def product(dtype: str, rows: int, columns: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a product of a column and a row, followed by an operator that turns zero into another number."""
    inputs = {"a": numbers((rows, 1), dtype), "b": numbers((1, columns), dtype)}
    return model_of({"p": ("MatMul", "a b"), "y": ("Add", "p c")}, inputs, {"c": np.array(3, dtype)}), inputs


def reduction(operator: str, dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a reduction over axes of extent 1, followed by an operator that turns zero into another number."""
    inputs = {"x": numbers((5, 1, 7, 1), dtype)}
    return model_of(
        {"r": (operator, "x axes", {"keepdims": 0}), "y": ("Add", "r c")},
        inputs,
        {"axes": np.array([1, 3]), "c": np.array(3, dtype)},
    ), inputs


REDUCTIONS = (("ReduceSum", "int32"), ("ReduceMax", "float64"), ("ReduceProd", "int64"), ("ReduceMin", "int32"))
SINGLE_TERMS = {
    **{f"Conv, {rank} axes": convolution(rank) for rank in (1, 2, 3)},
    "QLinearConv": quantized(),
    **{
        f"MatMul, {dtype}, {m}x{n}": product(dtype, m, n)
        for dtype, m, n in (("int32", 5, 6), ("int64", 1, 7), ("float64", 5, 6), ("float32", 4, 1))
    },
    **{f"{op}, {dtype}": reduction(op, dtype) for op, dtype in REDUCTIONS},
}


@in_turn
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SINGLE_TERMS)
def test_sums_of_one_term(name: str, target: str, fallbacks: None) -> None:
    """TVM's rules also apply the epilogue of a sum to its initial value. `compile` does not compare a named target with
    onnxruntime. GLSL lacks fp64 maxima.
    """
    model, inputs = SINGLE_TERMS[name]
    compiled = romou.compile(model, target=target, verify=False)
    assert not compiled.host_nodes or (target == "vulkan" and "float64" in name)
    for found, expected in zip(compiled.run(inputs), run_onnxruntime(model, inputs) or (), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_single_terms_leave_no_reduction() -> None:
    """Single terms leave no reduction, not even with two results if one needs the other. Sums of several terms stay."""

    def func(extent: int) -> tirx.PrimFunc:
        x = tvm.te.placeholder((4, extent), "float32", "x")
        k = tvm.te.reduce_axis((0, extent), "k")
        total = tvm.te.compute((4,), lambda i: tvm.te.sum(x[i, k], k), "total")
        return tvm.te.create_prim_func([x, tvm.te.compute((4,), lambda i: total[i] * 2, "twice")])

    assert not reductions_of(without_single_terms(func(1)))
    assert all(block.init is None for block in nodes_in(without_single_terms(func(1)).body, s_tir.SBlock))
    tvm.ir.assert_structural_equal(without_single_terms(func(2)), func(2))


class Raises(dlight.ScheduleRule):
    """A rule that takes every function and fails at it."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _tunable: bool) -> s_tir.Schedule:
        raise ValueError("The block no longer exists in the IRModule")


class LargeGroups(dlight.ScheduleRule):
    """A rule with work groups that are too large for every device."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _tunable: bool) -> s_tir.Schedule:
        return dlight.gpu.Fallback().apply(
            func, tvm.target.Target({"kind": "opencl", "max_num_threads": 1 << 14}), False
        )


def fallback_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    inputs = {"a": numbers((130, 33), "int32"), "b": numbers((33, 150), "int32"), "c": numbers((150,), "int32")}
    return model_of({"p": ("MatMul", "a b"), "y": ("Add", "p c")}, inputs), inputs


@pytest.mark.parametrize(
    "rules",
    [(Raises(), dlight.gpu.Fallback()), (Raises(),), (LargeGroups(),), ()],
    ids=["next rule", "plain", "too large", "no rule"],
)
def test_a_rule_that_fails_leaves_the_function_to_the_next(
    rules: tuple[dlight.ScheduleRule, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_schedules, "RULES", rules)
    model, inputs = fallback_model()
    assert_as_onnxruntime(model, inputs)
    assert not romou.compile(model, target="opencl", verify=False).host_nodes


def test_a_group_of_the_device_is_no_larger_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_schedules, "RULES", (LargeGroups(),))
    func = tvm.te.create_prim_func(
        [x := tvm.te.placeholder((1 << 15,), "float32", "x"), tvm.te.compute(x.shape, lambda i: x[i] + 1)]
    )
    scheduled = default_schedules.default_schedule(func, Target("opencl -device=mali_g76"))
    bound = [loop for loop in nodes_in(scheduled.body, tirx.For) if loop.thread_binding is not None]
    sizes = [int(loop.extent) for loop in bound if "thread" in loop.thread_binding.thread_tag]
    assert sizes == [256]


PLAIN: dict[str, tuple[dict[str, tuple], dict[str, np.ndarray], dict[str, object]]] = {
    "scalar": ({"y": ("ReduceSum", "x", {"keepdims": 0})}, {"x": numbers((3, 5), "int32")}, {}),
    "index": ({"y": ("ArgMax", "x", {"axis": 1})}, {"x": numbers((5, 9), "float32")}, {}),
    "two results": (
        {"v": ("Softmax", "x"), "y": ("ReduceLogSumExp", "x axes")},
        {"x": numbers((7, 300), "float64")},
        {"axes": np.array([1])},
    ),
    "padded window": (
        {"y": ("Conv", "x w", {"pads": [1, 1]})},
        {"x": numbers((1, 2, 9), "float32")},
        {"w": numbers((3, 2, 3), "float32")},
    ),
    "several kernels": (
        {"y": ("CumSum", "x axis"), "z": ("ReduceMax", "y axes")},
        {"x": numbers((4, 33), "int32")},
        {"axis": np.array(1), "axes": np.array([0])},
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_schedule_takes_every_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_schedules, "RULES", ())
    nodes, inputs, constants = PLAIN[name]
    model = model_of(nodes, inputs, constants)
    assert_as_onnxruntime(model, inputs)
    assert not romou.compile(model, target="opencl", verify=False).host_nodes


@pytest.mark.parametrize("target", few(TARGETS[:-1], 1))
@pytest.mark.parametrize(("channels", "stride"), few([(1, 1), (8, 2)], 1))
def test_convolutions_of_dynamically_quantized_networks(channels: int, stride: int, target: str) -> None:
    """TVM's rule for products raises if bias, scale and Swish follow the sum."""
    rng = np.random.default_rng(SEED)
    inputs = {"x": rng.standard_normal((1, channels, 15, 15), dtype=np.float32)}
    weights = {
        "w": rng.integers(-100, 100, (16, channels, 3, 3)).astype("int8"),
        "ws": np.float32(0.02),
        "b": numbers((16,), "float32"),
        "bs": [1, -1, 1, 1],
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "range", "zero"]),
        helper.make_node("ConvInteger", ["q", "w", "zero"], ["sum"], pads=[1] * 4, strides=[stride] * 2),
        helper.make_node("Mul", ["range", "ws"], ["scale"]),
        helper.make_node("Div", ["b", "scale"], ["steps"]),
        helper.make_node("Floor", ["steps"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["cast"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["cast", "bs"], ["bias"]),
        helper.make_node("Add", ["sum", "bias"], ["biased"]),
        helper.make_node("Cast", ["biased"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["number", "scale"], ["scaled"]),
        helper.make_node("Sigmoid", ["scaled"], ["gate"]),
        helper.make_node("Mul", ["scaled", "gate"], ["y"]),
    ]
    given, taken = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", inputs["x"].shape), ("y", None))
    )
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [given],
        [taken],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )
    expected = run_onnxruntime(model, inputs)
    compiled = romou.compile(model, target=target, verify=False)
    assert expected is not None
    assert not compiled.host_nodes
    np.testing.assert_allclose(compiled.run(inputs)[0], expected[0], rtol=1e-4, atol=1e-4)


def test_a_rule_that_copies_a_padded_operand_reads_inside_of_it(
    monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """TVM's rule for products leaves the condition of padding where the copy in local memory is used.

    A convolution whose candidates all failed read 528 bytes in front of its input: a segmentation fault on a CPU, if
    the page before the tensor was not mapped.
    """
    monkeypatch.setattr(default_schedules, "RULES", (dlight.gpu.Matmul(),))
    rows, channels, outputs = 32, 8, 16
    x = tvm.te.placeholder((rows, channels), "float32", "x")
    w = tvm.te.placeholder((3, channels, outputs), "float32", "w")
    k, c = (tvm.te.reduce_axis((0, extent), name) for extent, name in ((3, "k"), (channels, "c")))
    inside = lambda i: tirx.all(i + k >= 1, i + k < rows + 1)
    y = tvm.te.compute(
        (rows, outputs),
        lambda i, o: tvm.te.sum(tvm.te.if_then_else(inside(i), x[i + k - 1, c], 0.0) * w[k, c, o], [k, c]),
        "y",
    )
    target = Target("opencl")
    scheduled = default_schedules.default_schedule(tvm.te.create_prim_func([x, w, y]), target)
    assert "shared" in scheduled.script()
    reads = [load for load in guarded_loads(scheduled.body) if load.access.source.name == "x"]
    assert reads
    assert all(load.conditions for load in reads)
    values, weights = numbers((rows, channels), "float32"), numbers((3, channels, outputs), "float32")
    padded = np.pad(values, ((1, 1), (0, 0)))
    expected = sum(padded[at : at + rows] @ weights[at] for at in range(3))
    kernel = tvm.tirx.build(tvm.IRModule({"main": scheduled}), target=target.tvm_target)["main"]
    tensors = [tvm.runtime.tensor(array, opencl_device) for array in (values, weights, np.zeros_like(expected))]
    kernel(*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), expected, rtol=1e-4, atol=1e-5)
