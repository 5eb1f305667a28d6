"""Positions of resized elements are exact."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import romou
from support.models.nodes import assert_as_onnxruntime, model_of
from support.models.small_networks import NetworkBuilder

HALF = Fraction(1, 2)
ROUNDED = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda position: math.ceil(position - HALF),
    "round_prefer_ceil": lambda position: math.floor(position + HALF),
}


def position(i: int, extent: int, count: int, transform: str) -> Fraction:
    """Return the position in the input of a result's element, by ONNX's formulas."""
    if transform == "align_corners":
        return Fraction(i * (extent - 1), count - 1)
    return Fraction(i * extent, count) if transform == "asymmetric" else (i + HALF) * extent / count - HALF


@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric", "align_corners"])
def test_positions_are_exact(transform: str) -> None:
    """The scales have thirds and fifths, which fp32 does not. Halves fall to the side that the mode names."""
    shape, scales = (1, 4, 7, 15), (3, 5)
    counts = [extent * scale for extent, scale in zip(shape[2:], scales, strict=True)]
    x = np.random.default_rng(3).standard_normal(shape).astype("float32")
    common = {"coordinate_transformation_mode": transform}
    nodes = {mode: ("Resize", "x none s", {**common, "mode": "nearest", "nearest_mode": mode}) for mode in ROUNDED} | {
        "linear": ("Resize", "x none s", {**common, "mode": "linear"})
    }
    constants = {"none": np.zeros(0, "float32"), "s": np.array([1, 1, *scales], "float32")}
    found = romou.compile(model_of(nodes, {"x": x}, constants), target="opencl", strict=True).run({"x": x})
    rows, columns = (
        [position(i, extent, count, transform) for i in range(count)]
        for extent, count in zip(shape[2:], counts, strict=True)
    )
    for mode, rounded in ROUNDED.items():
        at = [np.clip([rounded(p) for p in axis], 0, extent - 1) for axis, extent in ((rows, 7), (columns, 15))]
        np.testing.assert_array_equal(found[mode], x[:, :, at[0]][:, :, :, at[1]], err_msg=mode)
    whole = [[i for i, p in enumerate(axis) if p.denominator == 1] for axis in (rows, columns)]
    assert min(len(axis) for axis in whole) > 1
    expected = x[:, :, [int(rows[i]) for i in whole[0]]][:, :, :, [int(columns[i]) for i in whole[1]]]
    np.testing.assert_array_equal(found["linear"][:, :, whole[0]][:, :, :, whole[1]], expected)


@pytest.mark.parametrize(
    "transform", ["half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners"]
)
def test_sizes_may_have_any_ratio(transform: str) -> None:
    x = np.random.default_rng(4).standard_normal((1, 6, 7, 33)).astype("float32")
    options = {"mode": "linear", "coordinate_transformation_mode": transform}
    nodes = {
        name: ("Resize", f"x none none {name}_sizes", options) for name in ("larger", "smaller", "mixed", "one_row")
    } | {"by_scales": ("Resize", "x none scales", options)}
    constants = {
        "none": np.zeros(0, "float32"),
        "larger_sizes": np.array([1, 6, 16, 513]),
        "smaller_sizes": np.array([1, 6, 5, 13]),
        "mixed_sizes": np.array([1, 6, 23, 32]),
        "one_row_sizes": np.array([1, 6, 1, 40]),
        # 2 and 65 / 33: the product with 33 is not quite 65.
        "scales": np.array([1, 1, 2, np.nextafter(np.float32(65 / 33), np.float32(2))], "float32"),
    }
    assert_as_onnxruntime(model_of(nodes, {"x": x}, constants), {"x": x}, 1e-5)


@pytest.mark.parametrize("transform", ["half_pixel", "pytorch_half_pixel", "align_corners"])
def test_a_linear_resize_keeps_packed_channels(transform: str) -> None:
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    resized = graph.add(
        "Resize",
        graph.conv("x", 8, 21),
        "",
        "",
        graph.constant(np.array([1, 21, 20, 20])),
        mode="linear",
        coordinate_transformation_mode=transform,
    )
    model = graph.model(graph.conv(resized, 21, 12))
    names = [kernel.name for kernel in romou.inspect(model, target="opencl -device=adreno640")]
    assert sum("resize" in name for name in names) == 1
    assert sum("pack" in name for name in names) == 2, f"only the input and the output are packed: {names}"
