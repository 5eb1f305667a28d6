"""Resize by scales or a region computed at run time, if the model gives the result's shape.

Each element computes its weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, shape_of

op = relax.op


def resize_at_run_time(node: Node, axes: Sequence[int], scales: relax.Expr, roi: relax.Expr | None) -> relax.Expr:
    """Resize along one axis after the other. axes: the axes that have scales, and the region's starts and ends."""
    if node.attributes.get("antialias", 0):
        raise ValueError("its scales are computed at run time, and the width of an antialiasing filter depends on them")
    result, value = node.result_shape(), node.input(0)
    is_crop = node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    inputs = [scales] if roi is None else [scales, roi]
    for k, axis in enumerate(axes):
        extent = node.shape()[axis]
        if extent == result[axis] == 1:
            continue

        def along(
            x: te.Tensor, scales: te.Tensor, *region: te.Tensor, k: int = k, axis: int = axis, extent: int = extent
        ) -> te.Tensor:
            bounds = [tirx.Cast("float32", region[0][i]) for i in (k, k + len(axes))] if region else None
            shape = [*(int(d) for d in x.shape)]
            shape[axis] = result[axis]

            def element(*i: tirx.Var) -> tirx.Expr:
                position = _place(
                    node, tirx.Cast("float32", i[axis]), extent, result[axis], tirx.Cast("float32", scales[k]), bounds
                )
                taps = [
                    (tirx.Max(tirx.const(0), tirx.Min(at, tirx.const(extent - 1))), weight)
                    for at, weight in _taps(node, position, extent)
                ]
                loads = [x[(*i[:axis], at, *i[axis + 1 :])] for at, _ in taps]
                sample = loads[0]
                if len(taps) > 1:
                    total = sum((weight for _, weight in taps[1:]), taps[0][1])
                    parts = [tirx.Cast("float32", load) * weight for load, (_, weight) in zip(loads, taps, strict=True)]
                    sample = tirx.Cast(x.dtype, sum(parts[1:], parts[0]) / total)
                if not is_crop:
                    return sample
                outside = tirx.any(position < 0.0, position > float(extent - 1))
                return tirx.Select(outside, tirx.const(node.attributes["extrapolation_value"], x.dtype), sample)

            return te.compute(shape, element, name="resize")

        value = node.compute(along, value, *inputs)
    assert shape_of(value) == result
    return value


def _place(
    node: Node, i: tirx.Expr, extent: int, count: int, scale: tirx.Expr, region: list[tirx.Expr] | None
) -> tirx.Expr:
    """Return the position of a result's element in the input, by ONNX's formulas."""
    transform = node.attributes.get("coordinate_transformation_mode", "asymmetric")
    last = float(extent - 1)
    if transform == "align_corners":
        return tirx.const(0.0, "float32") if count == 1 else i * last / (scale * float(extent) - 1.0)
    if transform == "asymmetric":
        return i / scale
    if transform == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if transform == "half_pixel_symmetric":
        return float(extent) / 2 * (1.0 - float(count) / (scale * float(extent))) + (i + 0.5) / scale - 0.5
    if transform == "tf_crop_and_resize" and region is not None:
        start, end = region
        return start * last + i * (end - start) * last / float(count - 1) if count > 1 else 0.5 * (start + end) * last
    if transform == "pytorch_half_pixel" and count == 1:
        return tirx.const(0.0, "float32")
    if transform in ("half_pixel", "pytorch_half_pixel"):
        return (i + 0.5) / scale - 0.5
    raise ValueError(f"the coordinate transformation {transform!r} is not supported")


def _taps(node: Node, position: tirx.Expr, extent: int) -> list[tuple[tirx.Expr, tirx.Expr]]:
    """Return indices, which may be outside of the input, and their weights."""
    mode, rounding = node.attributes["mode"], node.attributes.get("nearest_mode", "floor")
    full_weight = tirx.const(1.0, "float32")
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": lambda: tirx.ceil(position - 0.5),
            "round_prefer_ceil": lambda: tirx.floor(position + 0.5),
            "floor": lambda: tirx.floor(position),
            "ceil": lambda: tirx.ceil(position),
        }[rounding]()
        return [(tirx.Cast("int32", rounded), full_weight)]
    low = tirx.floor(position)
    distance = position - low
    if mode == "linear":
        weights = [(0, full_weight - distance), (1, distance)]
    else:
        a = node.attributes.get("cubic_coeff_a", -0.75)
        weights = [
            (k, _cubic(distance - float(k) if k <= 0 else float(k) - distance, a, is_near=k in (0, 1)))
            for k in (-1, 0, 1, 2)
        ]
    taps = [(tirx.Cast("int32", low) + k, weight) for k, weight in weights]
    if not node.attributes.get("exclude_outside", 0):
        return taps
    return [
        (at, tirx.Select(tirx.all(at >= 0, at < extent), weight, tirx.const(0.0, "float32"))) for at, weight in taps
    ]


def _cubic(distance: tirx.Expr, a: float, *, is_near: bool) -> tirx.Expr:
    if is_near:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
