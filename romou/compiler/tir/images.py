"""Tensors with one, two or three spatial axes as a batch of images, their layout with packed channels.

(n, c, w)          ->   (n, c, 1, w)          a row is an image of height 1
(n, c, h, w)       ->   (n, c, h, w)
(n, c, d, h, w)    ->   (n * d, c, h, w)      each frame is an image
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx

from romou.compiler.tir.expressions import Shape

# Ranks of such tensors.
RANKS = (3, 4, 5)


def frames_of(shape: Shape) -> int:
    """Images that an element of the batch consists of."""
    return shape[2] if len(shape) == 5 else 1


def as_images(shape: Shape) -> tuple[int, int, int, int]:
    """Return the shape of a tensor as images: (images, channels, height, width)."""
    n, c, *pixels = shape
    *frames, h, w = [1, *pixels] if len(pixels) == 1 else pixels
    return n * frames_of(shape) if frames else n, c, h, w


def index_in_images(shape: Shape, index: Sequence[tirx.Expr]) -> tuple[tirx.Expr | int, ...]:
    """Return the position of an element of a tensor of `shape` in the images: (image, channel, y, x)."""
    n, c, *pixels = index
    if len(shape) == 5:
        n, *pixels = (n * shape[2] if shape[0] > 1 else 0) + pixels[0], *pixels[1:]
    return n, c, *([0] * (2 - len(pixels))), *pixels


def index_of_pixel(shape: Shape, n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tuple[tirx.Expr | int, ...]:
    """Return the inverse of `index_in_images`."""
    if len(shape) == 3:
        return n, c, x
    if len(shape) == 5:
        return n // shape[2] if shape[0] > 1 else 0, c, n % shape[2] if shape[0] > 1 else n, y, x
    return n, c, y, x


def array_as_images(array: np.ndarray) -> np.ndarray:
    """Return an array as images."""
    frames_first = array.swapaxes(1, 2) if array.ndim == 5 else array
    return frames_first.reshape(as_images(array.shape))
