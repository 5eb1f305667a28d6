"""Replacements of functions that mobile GPUs' compilers expand into long code: right numbers at every size, and only if
they are allowed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm

import romou
from romou.compiler.frontend.precision import Precision
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.operators.native_functions import ACCURATE, NATIVE
from romou.compiler.pipeline import fuse_operators
from romou.devices.targets import Target
from support.kernels.operators import built, error_of, random_arrays, reference, run
from support.models.nodes import model_of

TARGETS = ("opencl -device=host", "opencl -device=adreno640")
EDGES = np.array([0, -0.0, 1e-38, -3e-20, 3.9, 3.925, 4, -4, 9, 80, -1e30, np.inf, -np.inf, np.nan], np.float32)


def source_of(
    nodes: dict[str, tuple], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], target: str
) -> str:
    return "".join(kernel.source for kernel in romou.inspect(model_of(nodes, inputs, constants), target=target))


@pytest.mark.parametrize("size", [1, 13, 16, 998])
def test_erf_is_within_what_opencl_allows(size: int, opencl_device: tvm.runtime.Device) -> None:
    """OpenCL allows an error of 16 units in the last place. It is checked for every number of lanes."""
    x = np.random.default_rng(size).uniform(-4.5, 4.5, size).astype(np.float32)
    x[: len(EDGES)] = EDGES[:size]
    (found,) = romou.compile(model_of({"y": ("Erf", "x")}, {"x": x}, {}), target=TARGETS[0], verify=False).run({"x": x})
    expected = np.array([math.erf(value) for value in x.astype(np.float64)])
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    kept = ~np.isnan(expected)
    assert (
        np.max(
            np.abs(found - expected)[kept] / np.spacing(np.abs(expected[kept]).astype(np.float32) + np.float32(1e-37))
        )
        <= 16
    )


@pytest.mark.parametrize("target", ["opencl -device=host", "vulkan"])
def test_far_from_zero_erf_and_tanh_are_one(target: str) -> None:
    """Gelu subtracts them from one, and multiplies the difference by its input."""
    x = -np.concatenate([np.linspace(10.5, 12, 400), [104, 1e18, np.inf]]).astype(np.float32)
    nodes = {name: (name, "x") for name in ("Erf", "Tanh", "Gelu")} | {"g": ("Gelu", "x", {"approximate": "tanh"})}
    found = romou.compile(model_of(nodes, {"x": x}, opset=20), target=target, verify=False).run({"x": x})
    for name in ("Erf", "Tanh"):
        assert (found[name] == -1).all()
    for name in ("Gelu", "g"):
        assert (found[name][:-1] == 0).all()
        assert np.isnan(found[name][-1])


@pytest.mark.parametrize("target", TARGETS)
def test_erf_has_one_definition_for_its_lanes(target: str) -> None:
    x = np.ones((3, 64), np.float32)
    source = source_of({"e": ("Erf", "x"), "f": ("Erf", "e"), "y": ("Add", "e f")}, {"x": x}, {}, target)
    assert source.count("float4 erf_float4(float4 x) {") == 1
    assert " erf(" not in source
    assert "erff(" in source_of({"y": ("Erf", "x")}, {"x": x}, {}, "cuda -device=nvidia_h200")


# Operator -> the function in double precision, and its largest error in units in the last place, except at zeros of
# sine or cosine.
FUNCTIONS = {
    "Exp": (np.exp, 3),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 5),
    "Tanh": (np.tanh, 6),
    "Sin": (np.sin, 4),
    "Cos": (np.cos, 4),
    "Pow 0.5": (lambda x: np.power(x, np.full_like(x, 0.5)), 3),
    "Pow -0.5": (lambda x: np.power(x, np.full_like(x, -0.5)), 3),
    "Pow -1": (lambda x: 1 / x, 3),
}
LIMITS = [
    8191.9995,
    8192,
    8192.001,
    88.72,
    88.73,
    -87.33,
    -87.4,
    -103.9,
    -104,
    -110,
    7.9,
    7.91,
    9.1,
    1e9,
    7.729179e28,
    3.4e38,
    -3.4e38,
    1e-45,
    -1e-40,
]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [1 << 18, 4099], ids=["vectors", "numbers"])
def test_functions_are_right_at_every_size(name: str, size: int, opencl_device: tvm.runtime.Device) -> None:
    """All bit patterns are equally likely. The limits of the short forms, multiples of pi / 2, NaN, infinities and both
    zeros are included.
    """
    rng = np.random.default_rng(size)
    x = rng.integers(0, 2**32, size, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[: size // 4] = rng.uniform(-110, 110, size // 4)
    x[size // 4 : size // 2] = np.arange(size // 2 - size // 4) * (np.pi / 2)
    edges = np.concatenate([EDGES, np.array(LIMITS, np.float32)])
    x[: len(edges)] = edges
    operator, *exponent = name.split()
    constants = {"s": np.float32(exponent[0])} if exponent else {}
    model = model_of({"y": (operator, " ".join(["x", *constants]))}, {"x": x}, constants)
    (found,) = romou.compile(model, target=TARGETS[0], verify=False).run({"x": x})
    exact, most = FUNCTIONS[name][0], FUNCTIONS[name][1]
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64))
        rounded = expected.astype(np.float32)
        assert np.array_equal(np.isnan(found), np.isnan(rounded)), x[np.isnan(found) != np.isnan(rounded)]
        whole = np.isinf(rounded) | (expected == 0)
        assert np.array_equal(found[whole], rounded[whole])
        assert np.array_equal(np.signbit(found[whole]), np.signbit(rounded[whole]))
        # Numbers below the normal ones may be zero.
        kept = ~np.isnan(rounded) & ~whole & (np.abs(rounded) > 1.2e-38)
        error = np.abs(found - expected)[kept]
        # Near its zeros, beyond the first one, sine is right to 2e-10 of a whole.
        near_zero = 2e-10 * (np.abs(x[kept]) > 1) if operator in ("Sin", "Cos") else 0
        assert np.max((error - near_zero) / np.spacing(np.abs(rounded[kept]))) <= most


@pytest.mark.parametrize("target", TARGETS)
def test_functions_are_called_by_their_short_forms(target: str) -> None:
    x = np.ones((3, 64), np.float32)
    # On phones, exponentials are the GPU's own (`test_native_functions`).
    exponentials = [("Exp", "exp"), ("Sigmoid", "exp")] if target == TARGETS[0] else []
    for operator, called in (*exponentials, ("Tanh", "tanh"), ("Sin", "sin"), ("Cos", "sin")):
        source = source_of({"y": (operator, "x")}, {"x": x}, {}, target)
        assert source.count(f"float4 {called}_float4(float4 x") == 1, source
        assert f" {called}(" not in source.split("__kernel")[-1], source
        assert f"{called}_float" not in source_of({"y": (operator, "x")}, {"x": x}, {}, "cuda -device=nvidia_h200")
    for exponent, called in ((0.5, "square_root"), (-0.5, "inverse_root"), (2.0, " * "), (2.5, "pow")):
        source = source_of({"y": ("Pow", "x s")}, {"x": x}, {"s": np.float32(exponent)}, target)
        assert called in source, source
        assert ("pow(" in source) == (called == "pow"), source


@pytest.mark.parametrize(
    ("nodes", "is_short"),
    [
        ({"y": ("Div", "x s")}, True),
        ({"y": ("Div", "s x")}, False),
        ({"y": ("Div", "x huge")}, False),
        ({"q": ("Div", "x s"), "y": ("Floor", "q")}, False),
    ],
    ids=["by a constant", "of a constant", "by a constant without a reciprocal", "rounded"],
)
def test_divisions(nodes: dict[str, tuple], is_short: bool, opencl_device: tvm.runtime.Device) -> None:
    x = np.random.default_rng(1).uniform(0.5, 3e3, (5, 12)).astype(np.float32)
    constants = {"s": np.float32(0.3), "huge": np.float32(3e38)}
    used = {
        name: value for name, value in constants.items() if any(name in inputs[1].split() for inputs in nodes.values())
    }
    model = model_of(nodes, {"x": x}, used)
    del model.graph.output[:-1]
    for target in TARGETS:
        source = "".join(kernel.source for kernel in romou.inspect(model, target=target))
        assert ("(1.000000e+00f / " in source) == is_short
    (found,) = romou.compile(model, target=TARGETS[0], verify=False).run({"x": x})
    a, b = (x if name == "x" else constants[name] for name in next(iter(nodes.values()))[1].split())
    expected = a / b if len(nodes) == 1 else np.floor(a / b)
    assert np.allclose(found, expected, rtol=3e-7, atol=1e-38)


@pytest.mark.parametrize(("precision", "limit"), [("float32", 2e-6), ("float16", 2e-3)])
def test_native_functions(precision: str, limit: float, opencl_device: tvm.runtime.Device) -> None:
    """Element-wise kernels, softmax and convolutions have the knob, and both choices are right."""
    rng = np.random.default_rng(5)
    inputs = {"x": rng.standard_normal((1, 12, 5, 77)).astype(np.float32)}
    nodes = {
        "c": ("Conv", "x w"),
        "d": ("Sigmoid", "c"),
        "silu": ("Mul", "c d"),
        "s": ("Softmax", "x", {"axis": -1}),
        "e": ("Exp", "x"),
    }
    model = model_of(nodes, inputs, {"w": rng.standard_normal((8, 12, 1, 1)).astype(np.float32) / 4})
    del model.graph.output[:2]
    target = Target("opencl -device=adreno640 -half=storage")
    graph = import_onnx(model, None, Precision(kind=precision, is_quiet=True)).mod
    families = set()
    for task in extract_tasks(fuse_operators(pack_channels(graph), target))[0]:
        if "functions" not in task.space(target).knobs:
            continue
        families.add(task.family)
        default, arrays = task.default_config(target), random_arrays(task, rng)
        assert default["functions"] == NATIVE
        assert "functions" not in task.space(Target("opencl -device=host")).knobs
        for functions, called in ((NATIVE, "native_"), (ACCURATE, "exp_float")):
            config = default.replace(functions=functions)
            source = "".join(str(kernels.inspect_source()) for kernels in built(task, config, target).imports)
            assert [text in source for text in ("native_", "exp_float")] == [called == "native_", called == "exp_float"]
            assert error_of(run(task, config, arrays, target, opencl_device), reference(task, arrays)) < limit
    assert families == {"conv2d", "elementwise", "row_reduction"}
