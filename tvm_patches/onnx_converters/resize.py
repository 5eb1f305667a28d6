"""Resize and Upsample in all modes: an element is a weighted sum of a few elements along each axis, given by tables.

Plain forms are left to the wheel, because Romou has kernels for its operator. The wheel takes the scale from
the shapes, and supports neither axes nor antialiasing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter, shape_of, whole
from tvm_patches.onnx_converters.resize_at_run_time import resize_at_run_time

op = relax.op

# The most elements of the input by which a position of a linear resize may be off.
_MOST_DIFFERENCE = 1e-5


@converter("Upsample")
def upsample(node: Node) -> relax.Expr:
    scales = node.attributes.get("scales")
    if scales is None:
        constant_scales = node.constant(1)
        if constant_scales is None:
            return resize_at_run_time(node, range(len(node.shape())), node.input(1), None)
        scales = constant_scales.tolist()
    mode = node.attributes["mode"]
    value = node.input(0)
    for axis, scale in enumerate(scales):
        extent = node.shape()[axis]
        count = math.floor(extent * scale)
        if scale != 1:
            table = _Table(node, extent, count, scale, mode=mode, transform="asymmetric", rounding="floor")
            value = table.apply(node, value, axis)
    return _as_given(node, value)


@converter("Resize")
def resize(node: Node) -> relax.Expr:
    """Convert Resize or Upsample, plain forms with the wheel's converter."""
    shape = node.shape()
    transform = node.attributes.get("coordinate_transformation_mode", "asymmetric")
    mode = node.attributes["mode"]
    rounding = node.attributes.get("nearest_mode", "floor")
    axes = [a % len(shape) for a in node.attributes.get("axes") or range(len(shape))]
    scale_input = 1 if node.opset < 11 else 2
    roi = node.constant(1) if node.opset >= 11 else None
    if node.opset >= 11 and node.has(1) and roi is None and transform == "tf_crop_and_resize":
        ratios = [count / extent for count, extent in zip(node.result_shape(), node.shape(), strict=True)]
        return resize_at_run_time(node, axes, relax.const([ratios[axis] for axis in axes], "float32"), node.input(1))
    if (
        node.has(scale_input)
        and node.constant(scale_input) is None
        and not (node.has(3) and node.constant(3) is not None)
    ):
        return resize_at_run_time(node, axes, node.input(scale_input), None)
    result, scales = _extents(node, axes)
    if (plain := _plain_transform(node, shape, result, scales, transform)) is not None:
        return _wheel(node, result, mode, plain, rounding)
    if transform == "tf_crop_and_resize" and roi is None:
        raise ValueError("it has no region")
    value = node.input(0)
    outside: list[np.ndarray] = []
    for axis, scale in enumerate(scales):
        region = (0.0, 1.0)
        if transform == "tf_crop_and_resize" and roi is not None and axis in axes:
            region = float(roi[axes.index(axis)]), float(roi[axes.index(axis) + len(axes)])
        table = _Table(
            node, shape[axis], result[axis], scale, mode=mode, transform=transform, rounding=rounding, region=region
        )
        outside.append(table.outside)
        if scale != 1 or region != (0.0, 1.0):
            value = table.apply(node, value, axis)
    value = _as_given(node, value)
    mask = np.zeros(result, bool)
    for axis, rows in enumerate(outside):
        mask |= rows.reshape([-1 if i == axis else 1 for i in range(len(result))])
    if transform == "tf_crop_and_resize" and mask.any():
        value = op.where(
            relax.const(mask, "bool"), relax.const(node.attributes["extrapolation_value"], node.dtype()), value
        )
    return value


def _extents(node: Node, axes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return the result's extents, and the scale of each axis."""
    shape = node.shape()
    result, scales = list(shape), [1.0] * len(shape)
    index = 1 if node.opset < 11 else 2
    constant_scales, sizes = node.constant(index), node.integers(3)
    if sizes is not None:
        policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
        # Sizes from the result's shape are for all axes.
        if len(sizes) != len(axes):
            axes = range(len(shape))
        ratios = [size / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
        if policy != "stretch":
            ratios = [(min if policy == "not_larger" else max)(ratios)] * len(ratios)
        for axis, size, ratio in zip(axes, sizes, ratios, strict=True):
            result[axis], scales[axis] = (size if policy == "stretch" else math.floor(ratio * shape[axis] + 0.5)), ratio
    elif constant_scales is not None and constant_scales.size:
        for axis, scale in zip(axes, constant_scales.tolist(), strict=True):
            result[axis], scales[axis] = math.floor(shape[axis] * scale), scale
    else:
        raise ValueError("its scales are computed at run time")
    return result, scales


def _plain_transform(
    node: Node, shape: Sequence[int], result: Sequence[int], scales: Sequence[float], transform: str
) -> str | None:
    """Return the coordinate transformation with which the wheel's resize is right, or None.

    It resizes images of four axes, without attributes of later opsets, and takes the scales from the extents. Given
    scales may differ a little from those in a linear resize. A nearest one rounds positions, so its scales are whole
    numbers.
    """
    is_linear, extents = node.attributes["mode"] == "linear", list(zip(shape, result, scales, strict=True))
    if is_linear and transform in ("pytorch_half_pixel", "half_pixel_symmetric") and all(r > 1 for r in result[2:]):
        transform = "half_pixel"
    is_right = (
        len(shape) == 4
        and list(shape[:2]) == list(result[:2])
        and transform in ("half_pixel", "asymmetric", "align_corners")
        and not node.attributes.get("antialias", 0)
        and not node.attributes.get("exclude_outside", 0)
        and node.dtype() in ("float16", "float32")
    )
    if is_linear:
        is_right &= all(abs(r / s - e) < _MOST_DIFFERENCE for e, r, s in extents)
    else:
        is_right &= node.attributes["mode"] == "nearest"
        is_right &= all(r == e * s and float(s).is_integer() for e, r, s in extents)
    return transform if is_right else None


def _wheel(node: Node, result: Sequence[int], mode: str, transform: str, rounding: str) -> relax.Expr:
    return op.image.resize2d(
        node.input(0),
        size=relax.ShapeExpr(list(result[2:])),
        layout="NCHW",
        method="nearest_neighbor" if mode == "nearest" else mode,
        coordinate_transformation_mode=transform,
        rounding_method=rounding,
    )


class _Table:
    """The input elements, and their weights, in the sum of each element of the result along an axis."""

    def __init__(
        self,
        node: Node,
        extent: int,
        count: int,
        scale: float,
        *,
        mode: str,
        transform: str,
        rounding: str,
        region: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        positions = np.array([_source(i, extent, count, scale, transform, region) for i in range(count)], np.float64)
        self.outside = (
            (positions < 0) | (positions > extent - 1) if transform == "tf_crop_and_resize" else np.zeros(count, bool)
        )
        # Antialiasing widens the filter of an axis that shrinks.
        width = min(scale, 1.0) if node.attributes.get("antialias", 0) else 1.0
        self.indices, self.weights = _taps(
            positions, extent, mode, rounding, width, node.attributes.get("cubic_coeff_a", -0.75)
        )
        inside = (self.indices >= 0) & (self.indices < extent)
        if node.attributes.get("exclude_outside", 0):
            self.weights = np.where(inside, self.weights, 0.0)
            self.weights = self.weights / self.weights.sum(axis=1, keepdims=True)
        self.indices = np.clip(self.indices, 0, extent - 1)

    def apply(self, node: Node, value: relax.Expr, axis: int) -> relax.Expr:
        shape = shape_of(value)
        dtype = str(value.ty.dtype)
        is_whole = np.dtype(dtype).kind in "iu"
        count, taps = self.indices.shape

        def picked(x: te.Tensor, indices: te.Tensor) -> te.Tensor:
            return te.compute(
                (*shape[:axis], count, *shape[axis + 1 :]),
                lambda *i: x[(*i[:axis], indices[i[axis], 0], *i[axis + 1 :])],
                name="resize_nearest",
            )

        def summed(x: te.Tensor, indices: te.Tensor, weights: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, taps), name="k")

            def element(*i: tirx.Var) -> tirx.Expr:
                return te.sum(x[(*i[:axis], indices[i[axis], k], *i[axis + 1 :])] * weights[i[axis], k], axis=k)

            return te.compute((*shape[:axis], count, *shape[axis + 1 :]), element, name="resize")

        indices = relax.const(self.indices.astype(np.int32), "int32")
        if taps == 1:
            return node.compute(picked, value, indices)
        work = "float32" if is_whole else dtype
        return node.compute(
            summed, node.emit(op.astype(value, work)), indices, relax.const(self.weights.astype(work), work)
        )


def _as_given(node: Node, value: relax.Expr) -> relax.Expr:
    """Return interpolated values in the input's type.

    Integers are truncated once, after the last axis, as in onnxruntime.
    """
    return value if str(value.ty.dtype) == node.dtype() else node.emit(whole(value, node.dtype()))


def _source(i: int, extent: int, count: int, scale: float, transform: str, region: tuple[float, float]) -> float:
    """Return the position of a result's element in the input, by ONNX's formulas."""
    if transform == "align_corners":
        # ONNX's tests expect the width by the scale, not by the whole number of elements.
        width = scale * extent
        return 0.0 if count == 1 else i * (extent - 1) / (width - 1)
    if transform == "asymmetric":
        return i / scale
    if transform == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if count > 1 else 0.0
    if transform == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if transform == "half_pixel_symmetric":
        adjustment = count / (scale * extent)
        return extent / 2 * (1 - adjustment) + (i + 0.5) / scale - 0.5
    if transform == "tf_crop_and_resize":
        start, end = region
        return (
            start * (extent - 1) + i * (end - start) * (extent - 1) / (count - 1)
            if count > 1
            else 0.5 * (start + end) * (extent - 1)
        )
    if transform == "half_pixel":
        return (i + 0.5) / scale - 0.5
    raise ValueError(f"the coordinate transformation {transform!r} is not supported")


def _taps(
    positions: np.ndarray, extent: int, mode: str, rounding: str, width: float, a: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and weights (elements, taps). Indices may be outside of the input."""
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": np.ceil(positions - 0.5),
            "round_prefer_ceil": np.floor(positions + 0.5),
            "floor": np.floor(positions),
            "ceil": np.ceil(positions),
        }[rounding]
        return np.clip(rounded, 0, extent - 1).astype(np.int64)[:, None], np.ones((len(positions), 1))
    reach = 1 if mode == "linear" else 2
    taps = 2 * math.ceil(reach / width)
    indices = np.floor(positions).astype(np.int64)[:, None] + np.arange(1 - taps // 2, taps // 2 + 1)
    distance = np.abs(indices - positions[:, None]) * width
    if mode == "linear":
        weights = np.maximum(0.0, 1 - distance)
    else:
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    return indices, weights / weights.sum(axis=1, keepdims=True)
