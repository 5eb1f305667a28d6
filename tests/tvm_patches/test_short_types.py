"""Floats of 4 and 8 bits, bfloat16, and integers of 2 and 4 bits have every bit as in ONNX's reference."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import romou
from support.models.nodes import model_of

FLOATS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT4E2M1", "BFLOAT16")
INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")
SEED = 20261126
TARGETS = ["opencl -device=host", "vulkan"]


def fp32_numbers() -> np.ndarray:
    """Return bit patterns at random, and the neighbours of each number of a short type and of each middle of two."""
    rng = np.random.default_rng(SEED)
    patterns = rng.integers(0, 1 << 32, 4_000, dtype=np.uint32).view(np.float32)
    beside = []
    for name in (*FLOATS[:4], "FLOAT4E2M1"):
        kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
        numbers = np.unique(np.arange(1 << ml_dtypes.finfo(kind).bits, dtype=np.uint8).view(kind).astype(np.float32))
        numbers = numbers[np.isfinite(numbers)]
        middles = (numbers[1:] + numbers[:-1]) / 2
        beside += [np.nextafter(values, side) for values in (numbers, middles) for side in (-np.inf, np.inf)] + [
            middles
        ]
    numbers = np.concatenate([patterns, *beside]).astype(np.float32)
    # Kernels may take subnormal fp32 numbers for zero.
    return np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.float32(0), numbers)


def casts(names: tuple[str, ...], source: int) -> onnx.ModelProto:
    """Return a model that casts `x` to each type, and back to fp32."""
    nodes, outputs = [], []
    for name in names:
        for saturate in (0, 1) if name.startswith("FLOAT8") else (1,):
            short, wide = f"{name}_{saturate}", f"{name}_{saturate}_wide"
            given = {"saturate": saturate} if name.startswith("FLOAT8") else {}
            kind = getattr(TensorProto, name)
            nodes += [
                helper.make_node("Cast", ["x"], [short], to=kind, **given),
                helper.make_node("Cast", [short], [wide], to=TensorProto.FLOAT),
            ]
            outputs += [
                helper.make_tensor_value_info(short, kind, ["n"]),
                helper.make_tensor_value_info(wide, TensorProto.FLOAT, ["n"]),
            ]
    graph = helper.make_graph(nodes, "casts", [helper.make_tensor_value_info("x", source, ["n"])], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


def assert_same(model: onnx.ModelProto, inputs: dict[str, np.ndarray], target: str) -> None:
    """Every output has the reference's type and bits, NaN aside, and no node runs on the host or by TVM's schedules."""
    shapes = {name: array.shape for name, array in inputs.items()}
    compiled = romou.compile(model, target=target, shapes=shapes, verify=False, strict=True)
    assert (compiled.host_nodes, compiled.summary().by_tvm) == ((), ())
    expected = ReferenceEvaluator(model).run(None, inputs)
    for name, output, right in zip(compiled.outputs, compiled.run(inputs), expected, strict=True):
        assert (output.dtype, output.shape) == (right.dtype, right.shape), name
        a, b = output.astype(np.float32), right.astype(np.float32)
        wrong = ~((a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b))
        assert not wrong.any(), f"{name}: {a[wrong][:5]} for {b[wrong][:5]}"


@pytest.mark.parametrize("target", TARGETS)
def test_every_rounding_to_a_short_float(target: str) -> None:
    assert_same(casts(FLOATS, TensorProto.FLOAT), {"x": fp32_numbers()}, target)


def test_short_floats_of_fp16(opencl_device: tvm.runtime.Device) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = np.where(np.isnan(halves), np.float16(np.nan), halves)
    assert_same(casts(FLOATS[::2], TensorProto.FLOAT16), {"x": halves}, "opencl")


@pytest.mark.parametrize("target", TARGETS)
def test_integers_of_few_bits(target: str) -> None:
    numbers = np.arange(-300, 300, dtype=np.int32)
    assert_same(casts(INTEGERS, TensorProto.INT32), {"x": numbers}, target)
    assert_same(casts(INTEGERS, TensorProto.FLOAT), {"x": numbers.astype(np.float32) / 7}, target)


def test_cuda_compiles_them() -> None:
    model = casts((*FLOATS, *INTEGERS), TensorProto.FLOAT)
    device = 0 if tvm.device("cuda", 0).exist else None
    compiled = romou.compile(
        model, target="cuda -device=nvidia_h200", device=device, shapes={"x": (37,)}, verify=False, strict=True
    )
    assert (compiled.host_nodes, compiled.summary().by_tvm) == ((), ())


@pytest.mark.parametrize("name", [*FLOATS[:4], "FLOAT4E2M1", *INTEGERS])
def test_quantization(name: str, opencl_device: tvm.runtime.Device) -> None:
    """Per row, with a zero point if the type has any."""
    rng = np.random.default_rng(SEED)
    kind = getattr(TensorProto, name)
    zero = np.zeros(3) if name.startswith("FLOAT8") else np.array([0, 1, 1])
    x = (6 * rng.standard_normal((3, 37))).astype(np.float32)
    scale = np.array([0.5, 1.25, 0.031], np.float32)
    model = model_of(
        {"q": ("QuantizeLinear", "x s z", {"axis": 0}), "y": ("DequantizeLinear", "q s z", {"axis": 0})},
        {"x": x},
        {"s": scale, "z": zero.astype(helper.tensor_dtype_to_np_dtype(kind))},
        opset=25,
    )
    assert_same(model, {"x": x}, "opencl")


def test_elements_move_as_they_are(opencl_device: tvm.runtime.Device) -> None:
    rng = np.random.default_rng(SEED)
    x, y = (rng.integers(0, 127, (5, 7), dtype=np.uint8).view(ml_dtypes.float8_e4m3fn) for _ in range(2))
    model = model_of(
        {
            "c": ("Concat", "x y", {"axis": 1}),
            "t": ("Transpose", "c", {"perm": [1, 0]}),
            "g": ("Gather", "t i", {"axis": 0}),
        },
        {"x": x, "y": y},
        {"i": np.array([3, 13, 0])},
    )
    assert_same(model, {"x": x, "y": y}, "opencl")


def test_a_node_on_the_host_beside_them(opencl_device: tvm.runtime.Device) -> None:
    """Sums of bfloat16 have no kernel. Tensors between device and host keep their bits."""
    x = np.linspace(-3, 3, 21, dtype=np.float32)
    model = model_of(
        {"b": ("Cast", "x", {"to": TensorProto.BFLOAT16}), "s": ("Add", "b b"), "y": ("Cast", "s", {"to": 1})}, {"x": x}
    )
    compiled = romou.compile(model, verify=False)
    assert [node.split(" ")[0] for node in compiled.host_nodes] == ["Add"]
    rounded = x.astype(ml_dtypes.bfloat16)
    expected = [rounded, rounded + rounded, (rounded + rounded).astype(np.float32)]
    for output, right in zip(compiled.run({"x": x}), expected, strict=True):
        assert output.dtype == right.dtype
        np.testing.assert_array_equal(output, right)


def test_a_kernel_reads_a_short_type_of_the_host(opencl_device: tvm.runtime.Device) -> None:
    """Nothing in the model says that the product, which the host computes, is a bfloat16."""
    kind = TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["product"]),
        helper.make_node("Cast", ["product"], ["same"], to=kind),
        helper.make_node("Transpose", ["same"], ["y"], perm=[1, 0]),
    ]
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name, shape in (("x", [3, 5]), ("y", [5, 3])))
    graph = helper.make_graph(nodes, "host", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    given = np.random.default_rng(SEED).standard_normal((3, 5)).astype(ml_dtypes.bfloat16)
    (found,) = romou.compile(model, target="opencl -device=host", verify=False).run({"x": given})
    np.testing.assert_array_equal(found, (given * given).T)


def test_a_saved_model_has_the_same_types(opencl_device: tvm.runtime.Device, tmp_path: Path) -> None:
    x = np.linspace(-500, 500, 41, dtype=np.float32)
    model = model_of({"y": ("Cast", "x", {"to": TensorProto.FLOAT8E4M3FN})}, {"x": x}, opset=25)
    compiled = romou.compile(model, verify=False)
    compiled.save(tmp_path / "model")
    (output,) = romou.load(tmp_path / "model").run({"x": x})
    assert output.dtype == ml_dtypes.float8_e4m3fn
    assert output.tobytes() == compiled.run({"x": x})[0].tobytes()
