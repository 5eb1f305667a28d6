"""Memory of a simulated kernel: buffers, images, and arrays of bytes that belong to a work group or a work-item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from romou.base.errors import BuildError
from romou.devices.mobile_compilers.ir3.instructions import Array

# Bits of an address that count bytes in a buffer. The others are 1 + the buffer's place among the arguments.
OFFSET_BITS = np.uint64(40)


class BadAccessError(BuildError):
    """A kernel reads or writes outside of its memory."""


@dataclass(eq=False)
class Buffer:
    """A buffer. The array is changed by stores.

    is_written: of each byte, whether a store has written it.
    """

    array: Array
    is_written: Array = field(init=False)

    def __post_init__(self) -> None:
        assert self.array.flags.c_contiguous, "the buffer is a copy otherwise, and stores are lost"
        self.bytes = self.array.reshape(-1).view(np.uint8)
        self.is_written = np.zeros(self.bytes.size, bool)

    def view(self, size: int) -> Array:
        """Return the buffer as unsigned integers of `size` bytes."""
        return self.bytes.view(np.dtype(f"u{size}"))

    def elements(self, offsets: Array, size: int, count: int) -> Array:
        """Return the places of `count` elements of `size` bytes that begin at byte offsets, (count, lanes).

        BadAccessError if one is outside of the buffer.
        """
        if offsets.size and (offsets % np.uint64(size)).any():
            raise BadAccessError(f"an access to elements of {size} bytes at no multiple of them")
        if offsets.size and int(offsets.max()) + size * count > self.bytes.size:
            worst = int(offsets.max())
            raise BadAccessError(f"an access of {size * count} bytes at {worst} of a buffer of {self.bytes.size} bytes")
        return (offsets // np.uint64(size)).astype(np.int64) + np.arange(count)[:, None]


@dataclass(eq=False)
class Image:
    """An image of texels (layers, height, width, 4). The array is changed by stores.

    is_written: of each texel.
    """

    array: Array
    is_written: Array = field(init=False)

    def __post_init__(self) -> None:
        assert self.array.ndim == 4, "layers, height, width, 4"
        assert self.array.flags.c_contiguous, "the texels are a copy otherwise, and stores are lost"
        self.layers, self.height, self.width, _ = self.array.shape
        self.texels = self.array.reshape(-1, 4)
        self.is_written = np.zeros(len(self.texels), bool)

    def place(self, x: Array, y: Array, layer: Array | int = 0) -> tuple[Array, Array]:
        """Return (the texels' places, whether they are inside). Places outside are those of the nearest texel."""
        is_inside = (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height) & (layer >= 0) & (layer < self.layers)
        if not is_inside.all():
            sides = (self.width, self.height, self.layers)
            x, y, layer = (np.clip(axis, 0, side - 1) for axis, side in zip((x, y, layer), sides, strict=True))
        return (layer * self.height + y) * self.width + x, is_inside


# What is passed to a kernel: an image or a buffer, or an integer of 32 bits.
Argument: TypeAlias = "Buffer | Image | int"
