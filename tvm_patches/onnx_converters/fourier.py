"""DFT and STFT, which the wheel lacks: products with the matrix of a discrete Fourier transform."""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter
from tvm_patches.onnx_converters.reduction import choose_axis

op = relax.op


@converter("DFT")
def dft(node: Node) -> relax.Expr:
    """Convert a discrete Fourier transform along one axis.

    The last axis holds the real part, and the imaginary part if there is one.
    """
    rank = len(node.shape())
    if node.opset < 20:
        return _along(node, node.attributes["axis"] % rank)
    axis = node.constant(2)
    if axis is not None or not node.has(2):
        return _along(node, int(axis.item()) % rank if axis is not None else rank - 2)
    # A requested length would show in the result's shape, along an axis that is not known.
    if node.has(1):
        raise ValueError("its axis is computed at run time")
    result = node.result_shape()
    fitting = [a for a in range(rank - 1) if _result(node, a) == result]
    return choose_axis(node, 2, fitting, lambda along: _along(node, along))


def _length(node: Node, axis: int) -> int:
    """Return the number of points of the transform."""
    points = node.integers(1)
    is_to_real = bool(node.attributes["inverse"]) and bool(node.attributes["onesided"])
    return points[0] if points is not None else 2 * (node.shape()[axis] - 1) if is_to_real else node.shape()[axis]


def _result(node: Node, axis: int) -> tuple[int, ...]:
    points, is_inverse, is_onesided = (
        _length(node, axis),
        bool(node.attributes["inverse"]),
        bool(node.attributes["onesided"]),
    )
    count = points // 2 + 1 if is_onesided and not is_inverse else points
    return (*node.shape()[:axis], count, *node.shape()[axis + 1 : -1], 1 if is_onesided and is_inverse else 2)


def _along(node: Node, axis: int) -> relax.Expr:
    shape, result = node.shape(), _result(node, axis)
    matrix = _matrix(
        shape[axis],
        _length(node, axis),
        shape[-1],
        result[axis],
        result[-1],
        is_inverse=bool(node.attributes["inverse"]),
    ).astype(node.dtype())
    others = [a for a in range(len(shape) - 1) if a != axis]
    order = [*others, axis, len(shape) - 1]
    rows = int(np.prod([shape[a] for a in others]))
    data = op.reshape(op.permute_dims(node.input(0), order), [rows, shape[axis] * shape[-1]])
    product = op.reshape(
        op.matmul(data, relax.const(matrix, node.dtype())), [*(shape[a] for a in others), result[axis], result[-1]]
    )
    return op.permute_dims(product, list(np.argsort(order)))


def _matrix(
    extent: int, points: int, parts: int, count: int, result_parts: int = 2, *, is_inverse: bool = False
) -> np.ndarray:
    """Return the transform as a matrix: (points of the input * parts, points of the result * parts)."""
    n, k = np.arange(extent)[:, None], np.arange(count)[None, :]
    angle = (1 if is_inverse else -1) * 2 * np.pi * n * k / points
    # Points behind the last one are cut off.
    weight = np.where(n < points, 1.0, 0.0) / (points if is_inverse else 1)
    if is_inverse and result_parts == 1:
        # Half of a real signal's spectrum is enough: the other half is its conjugate.
        weight = weight * np.where((n == 0) | (2 * n == points), 1.0, 2.0) * (n <= points // 2)
    cosine, sine = weight * np.cos(angle), weight * np.sin(angle)
    parts_of = np.array([[cosine, sine], [-sine, cosine]])[:parts, :result_parts]
    return parts_of.transpose(2, 0, 3, 1).reshape(extent * parts, count * result_parts)


@converter("STFT")
def stft(node: Node) -> relax.Expr:
    """Convert a short-time Fourier transform: (batch, samples, parts) to (batch, frames, frequencies, 2).

    frames[b, f, n] = signal[b, f * step + n]
    result = frames x (window * matrix)      a window that is computed at run time multiplies the frames
    """
    batch, samples, parts = (*node.shape(), 1)[:3]
    steps, lengths = node.integers(1), node.integers(3)
    if steps is None:
        raise ValueError("it has no step")
    step, length = steps[0], lengths[0] if lengths is not None else node.shape(2)[0]
    frames, count = (samples - length) // step + 1, length // 2 + 1 if node.attributes["onesided"] else length
    matrix = _matrix(length, length, parts, count)

    def framed(x: te.Tensor) -> te.Tensor:
        def sample(b: tirx.Var, f: tirx.Var, n: tirx.Var, part: tirx.Var) -> tirx.Expr:
            return x[(b, f * step + n, part)[: len(x.shape)]]

        return te.compute((batch, frames, length, parts), sample, name="frames")

    data = node.compute(framed, node.input(0))
    window = node.constant(2) if node.has(2) else np.ones(length)
    if window is None:
        data = op.multiply(data, op.reshape(node.input(2), [length, 1]))
    else:
        matrix = np.repeat(window, parts)[:, None] * matrix
    rows = op.reshape(data, [batch * frames, length * parts])
    product = op.matmul(rows, relax.const(matrix.astype(node.dtype()), node.dtype()))
    return op.reshape(product, [batch, frames, count, 2])
