"""Conditions, behind a product and on their own: true is 1, in vectors too."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.devices.backends.cuda.nvrtc import compile_cuda
from romou.devices.targets import Target
from support.models.nodes import model_of
from support.models.small_networks import NetworkBuilder, random_inputs


def test_one_condition_for_a_vector(opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"x": (5, 12)})
    is_negative = g.add("Less", g.add("ReduceMax", "x", axes=[1]), g.constant(np.float32(1.0)))
    model = g.model(g.add("Where", is_negative, g.constant(np.float32(0)), g.add("Softmax", "x")))
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    rows = np.count_nonzero((expected[0] == 0).all(axis=1))
    assert 0 < rows < 5
    assert relative_l2_error(romou.compile(model, target="opencl").run(inputs)[0], expected[0]) < 1e-5


@pytest.mark.parametrize("kind", ["conv", "dense", "elementwise"])
def test_conditions_of_vectors(kind: str, opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"x": (5, 12) if kind == "dense" else (1, 8, 5, 7)})
    if kind == "conv":
        value = g.conv("x", 8, 8, pads=[1, 1, 1, 1])
    else:
        value = (
            g.add("MatMul", "x", g.weight(12, 8))
            if kind == "dense"
            else g.add("Sub", g.add("Mul", "x", "x"), g.constant(np.float32(1)))
        )
    high, low, zero = (g.constant(np.float32(number)) for number in (0.5, -0.5, 0.0))
    is_between = g.add("And", g.add("Greater", value, low), g.add("Not", g.add("Greater", value, high)))
    is_negative = g.add("Cast", g.add("Less", value, zero), to=TensorProto.FLOAT)
    model = g.model(g.add("Where", is_between, g.add("Mul", is_negative, value), value))
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    assert relative_l2_error(romou.compile(model, target="opencl").run(inputs)[0], expected[0]) < 1e-5


_RNG = np.random.default_rng(5)
_X, _W = _RNG.standard_normal((17, 8)).astype("float32"), _RNG.standard_normal((8, 16)).astype("float32")
_MASK = _RNG.random((17, 16)) < 0.5
BEHIND = {
    "greater": {"y": ("Greater", "t zero")},
    "cast": {"u": ("Relu", "t"), "y": ("Cast", "u", {"to": TensorProto.BOOL})},
    "where": {"y": ("Where", "mask t low")},
    "where of a row": {"y": ("Where", "row t low")},
    "added": {"u": ("Cast", "mask", {"to": TensorProto.FLOAT}), "y": ("Add", "t u")},
    "not": {"u": ("Not", "mask"), "y": ("Where", "u t low")},
    "either": {"u": ("Greater", "t zero"), "v": ("Or", "u mask"), "y": ("Where", "v t low")},
}


@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640", "vulkan"])
@pytest.mark.parametrize("behind", BEHIND)
def test_truth_values_in_memory_behind_a_product(behind: str, target: str, opencl_device: tvm.runtime.Device) -> None:
    """An epilogue reads or writes vectors of booleans. They are bytes in memory, since OpenCL has no such vectors."""
    inputs = {
        "x": _X,
        **({"mask": _MASK} if "mask" in str(BEHIND[behind]) else {}),
        **({"row": _MASK[:1]} if "row" in str(BEHIND[behind]) else {}),
    }
    model = model_of(
        {"t": ("MatMul", "x w"), **BEHIND[behind]}, inputs, {"w": _W, "zero": np.float32(0), "low": np.float32(-9)}
    )
    kept = [output for output in model.graph.output if output.name == "y"]
    del model.graph.output[:-1]
    assert [output.name for output in model.graph.output] == [output.name for output in kept] == ["y"]
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    compiled = romou.compile(model, target=target, device=0, verify=False, strict=True)
    (found,) = compiled.run(inputs)
    assert found.dtype == expected[0].dtype
    if found.dtype == bool:
        np.testing.assert_array_equal(found, expected[0])
    else:
        assert relative_l2_error(found, expected[0]) < 1e-5


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("named", ["-device=nvidia_h200", "-arch=sm_90a"])
def test_truth_values_are_bytes_in_cuda(behind: str, named: str) -> None:
    """TVM treats vectors of booleans as vectors of 16-bit integers in CUDA. The numbers are checked on an NVIDIA GPU if
    there is one.
    """
    inputs = {
        "x": _X,
        **({"mask": _MASK} if "mask" in str(BEHIND[behind]) else {}),
        **({"row": _MASK[:1]} if "row" in str(BEHIND[behind]) else {}),
    }
    model = model_of(
        {"t": ("MatMul", "x w"), **BEHIND[behind]}, inputs, {"w": _W, "zero": np.float32(0), "low": np.float32(-9)}
    )
    del model.graph.output[:-1]
    has_device = tvm.device("cuda", 0).exist
    target = Target("cuda" if has_device else f"cuda {named}")
    compiled = romou.compile(model, target=target, verify=False, strict=True)
    for text in compiled.sources().values():
        assert compile_cuda(text, "sm_90a")
    assert all("ushort4*" not in text for text in compiled.sources().values())
    if has_device:
        expected = run_onnxruntime(model, inputs)
        assert expected is not None
        np.testing.assert_allclose(compiled.run(inputs)[0].astype("float32"), expected[0].astype("float32"), 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("target", ["opencl", "vulkan"])
def test_choices_between_short_integers(dtype: str, target: str, opencl_device: tvm.runtime.Device) -> None:
    """C's arithmetic converts them to int, and OpenCL's select takes no int with a short: NVIDIA's compiler rejected
    it.
    """
    rng = np.random.default_rng(2)
    low = 0 if dtype.startswith("u") else -90
    x, y = (rng.integers(low, 90, (5, 13)).astype(dtype) for _ in range(2))
    y[y == 0] = 7
    model = model_of({"m": ("Mod", "x y"), "s": ("Add", "x y"), "w": ("Where", "c s x")}, {"x": x, "y": y, "c": x > y})
    compiled = romou.compile(model, target=target, verify=False, strict=True)
    found = compiled.run({"x": x, "y": y, "c": x > y})
    np.testing.assert_array_equal(found["m"], np.mod(x, y))
    np.testing.assert_array_equal(found["w"], np.where(x > y, x + y, x))
    c_type = {"int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort"}[dtype]
    texts = "".join(compiled.sources().values())
    assert target == "vulkan" or texts.count("select(") == texts.count(f"select(({c_type})(")
