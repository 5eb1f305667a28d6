"""Pad with known pads is a kernel on the device and gives NumPy's numbers, for every mode, axis, value and type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper

import romou
from support.models.nodes import assert_as_onnxruntime, model_of

INF, NAN = np.float32("inf"), np.float32("nan")


def padded(x: np.ndarray, pads: Sequence[int], axes: Sequence[int], mode: str, value: object) -> np.ndarray:
    """Pad as ONNX defines it. NumPy has no negative pads."""
    before, after = np.zeros(x.ndim, int), np.zeros(x.ndim, int)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[k + len(axes)]
    more = {"constant_values": np.asarray(value, x.dtype)} if mode == "constant" else {}
    grown = np.pad(x, np.maximum(np.stack([before, after], 1), 0), mode, **more) if x.ndim else x
    return grown[
        tuple(slice(max(0, -b), extent + min(a, 0)) for b, a, extent in zip(before, after, grown.shape, strict=True))
    ]


def assert_padded(
    x: np.ndarray,
    pads: Sequence[int],
    axes: Sequence[int],
    mode: str = "constant",
    value: object = 0,
    *,
    is_given: bool = False,
) -> None:
    """Assert that padding gives NumPy's numbers.

    is_given: the value is an input of the model instead of a constant
    """
    number = np.asarray(value, x.dtype)
    inputs = {"x": x} | ({"v": number} if is_given else {})
    constants = {"p": np.array(pads, np.int64), "a": np.array(axes, np.int64)} | ({} if is_given else {"v": number})
    model = model_of({"y": ("Pad", "x p v a", {"mode": mode})}, inputs, constants)
    model.opset_import[0].version = 21
    (result,) = romou.compile(model, target="opencl", strict=True, verify=False).run(inputs)
    np.testing.assert_array_equal(result, padded(x, pads, axes, mode, value), strict=True)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", -INF),
        ("float32", NAN),
        ("float16", -INF),
        ("float64", 0.375),
        ("bool", True),
        ("int8", -7),
        ("uint8", 200),
        ("int32", -(2**31)),
        ("int64", 2**62 + 1),
        ("uint64", 2**64 - 1),
    ],
)
def test_every_type_and_value(dtype: str, value: object) -> None:
    x = np.random.default_rng(0).integers(0, 2, (2, 3, 5)).astype(dtype)
    assert_padded(x, [1, 0, 2, 0, 3, 1], [0, 1, 2], value=value)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_every_mode_at_every_rank(mode: str) -> None:
    rng = np.random.default_rng(1)
    for shape in ((4,), (3, 4), (2, 5, 4), (1, 3, 5, 4), (1, 2, 3, 4, 3)):
        rank = len(shape)
        x = rng.standard_normal(shape, np.float32)
        axes = list(range(rank))
        assert_padded(x, [int(extent > 1) for extent in shape] + [0] * (rank - 1) + [2], axes, mode)
        assert_padded(x, [2, 1], [-1], mode)


def test_negative_pads_crop() -> None:
    x = np.random.default_rng(2).standard_normal((3, 7, 5), np.float32)
    for mode in ("constant", "edge"):
        assert_padded(x, [-1, 2, 0, 0, -3, -2], [0, 1, 2], mode, 4.0)
    assert_padded(x, [-2, 3, 1, -1], [-1, 0], value=-INF)


def test_a_value_may_be_computed() -> None:
    x = np.random.default_rng(3).standard_normal((3, 4), np.float32)
    assert_padded(x, [1, 0, -1, 2], [0, 1], value=2.5, is_given=True)


def test_scalars_and_empty_pads() -> None:
    assert_padded(np.asarray(3, np.float32), [], [])
    assert_padded(np.ones((2, 3), np.float32), [0] * 4, [0, 1])
    assert_padded(np.ones((2, 0), np.float32), [0, 1, 1, 1], [0, 1], value=5)


def test_the_attributes_of_old_opsets() -> None:
    x = np.random.default_rng(4).standard_normal((2, 3), np.float32)
    node = helper.make_node("Pad", ["x"], ["y"], pads=[1, 0, 0, 2], value=-1.5)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, x.shape)], [helper.make_tensor_value_info("y", 1, [3, 5])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 2)], ir_version=4)
    (result,) = romou.compile(model, target="opencl", strict=True, verify=False).run({"x": x})
    np.testing.assert_array_equal(result, np.pad(x, [(1, 0), (0, 2)], constant_values=-1.5))


def test_between_kernels_of_a_phone() -> None:
    """Packed channels on both sides: nothing runs on the host."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 6, 9, 9), np.float32)
    weight = rng.standard_normal((6, 6, 3, 3), np.float32)
    nodes = {"c": ("Conv", "x w"), "q": ("Pad", "c p"), "y": ("Conv", "q w")}
    model = model_of(nodes, {"x": x}, {"w": weight, "p": np.array([0, 0, 1, 0, 0, 0, 2, 1])})
    assert romou.compile(model, target="opencl -device=adreno640", strict=True).host_nodes == ()
    assert_as_onnxruntime(model, {"x": x}, 1e-3, target="opencl -device=adreno640")


def test_pads_and_bounds_of_four_axes_may_be_computed() -> None:
    """The pads are vectors of four numbers, one for each axis. The axes are known, omitted or computed too."""
    x = np.random.default_rng(6).standard_normal((1, 3, 4, 8), np.float32)
    pads, axes = np.array([0, 1, 2, -1, 1, 0, 0, 3]), np.array([0, 1, -2, 3])
    expected = padded(x, pads, axes, "constant", 0)
    starts, ends, places = np.array([2, 0, 0, 1]), np.array([7, 1, 3, 4]), np.array([-1, 0, 1, 2])
    for are_known in (True, False):
        inputs = {"x": x, "p": pads, "s": starts, "e": ends} | ({} if are_known else {"a": axes, "b": places})
        nodes = {"y": ("Pad", "x p v a"), "z": ("Slice", "x s e b")}
        model = model_of(nodes, inputs, {"v": np.float32(0)} | ({"a": axes, "b": places} if are_known else {}))
        for output, shape in zip(model.graph.output, (expected.shape, (1, 3, 3, 5)), strict=True):
            output.CopyFrom(helper.make_tensor_value_info(output.name, 1, shape))
        found = romou.compile(model, target="opencl", strict=True, verify=False).run(inputs)
        np.testing.assert_array_equal(found["y"], expected)
        np.testing.assert_array_equal(found["z"], x[:1, :3, 1:4, 2:7])
