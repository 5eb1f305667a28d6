"""References of convolutions and their gradients, in any number of axes: each by a convolution as ONNX defines it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from romou.compiler.operators.workload import Convolution


def conv(x: np.ndarray, weight: np.ndarray, **attributes: Any) -> np.ndarray:
    """Return ONNX's `Conv` of arrays of any type by its reference implementation."""
    from onnx.reference import ReferenceEvaluator  # here, because it imports every operator

    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    output: np.ndarray = ReferenceEvaluator(node).run(None, {"x": x, "w": weight})[0]  # type: ignore[index]
    return output


def convolve(w: Convolution, x: np.ndarray, weight: np.ndarray, by: Callable[..., np.ndarray] = conv) -> np.ndarray:
    """Convolve x (n, ic, *extents) with weight (oc, ic / groups, *kernel): (n, oc, *out_extents).

    by: an implementation of `Conv`.
    """
    return by(x, weight, strides=w.stride, pads=w.padding, dilations=w.dilation, group=w.groups)


def convolve_back(
    w: Convolution, x: np.ndarray, weight: np.ndarray, by: Callable[..., np.ndarray] = conv
) -> np.ndarray:
    """Compute a transposed convolution of x (n, ic, *extents) and weight (ic, oc / groups, *kernel).

    The pixels move apart by the stride and meet the window from its other end. Padding cuts off the result.
    """
    whole = slice(None), slice(None)
    apart = np.zeros((*x.shape[:2], *((axis.extent - 1) * axis.stride + 1 for axis in w.axes)), x.dtype)
    apart[(*whole, *(slice(None, None, step) for step in w.stride))] = x
    by_output = weight.reshape(w.groups, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(w.out_channels, -1, *w.kernel)
    window = np.flip(by_output, tuple(range(2, weight.ndim)))
    full = by(apart, window, pads=2 * [axis.reach for axis in w.axes], dilations=w.dilation, group=w.groups)
    kept = [slice(axis.before, axis.before + out) for axis, out in zip(w.axes, w.out_extents, strict=True)]
    missing = [(0, max(0, cut.stop - size)) for cut, size in zip(kept, full.shape[2:], strict=True)]
    return np.pad(full, [(0, 0), (0, 0), *missing])[(*whole, *kept)]


def filter_gradient(
    w: Convolution, x: np.ndarray, gradient: np.ndarray, by: Callable[..., np.ndarray] = conv
) -> np.ndarray:
    """Compute the gradient of a convolution by its weight: (oc, ic / groups, *kernel).

    The output's gradient is the window that moves over x, and the batch is summed as channels are.
    """
    parts = []
    for data, window in zip(np.split(x, w.groups, 1), np.split(gradient, w.groups, 1), strict=True):
        exchanged = data.swapaxes(0, 1), window.swapaxes(0, 1)
        taps = by(*exchanged, strides=w.dilation, pads=w.padding, dilations=w.stride)
        parts.append(taps[(slice(None), slice(None), *map(slice, w.kernel))].swapaxes(0, 1))
    return np.concatenate(parts)
