"""Guard zones around the arguments of a candidate: known bytes, compared after its first run.

    buffer     | zone | tensor | zone |
    image      one more row, column and layer than the tensor

The kernel gets a window of a larger buffer. If the runtime has no "window", there is no zone in front. Only outputs
have image zones, because kernels cannot write other images.

A kernel with a correct output that also writes outside of it would damage other tensors of the model. Timing uses
tensors without zones. Vulkan's kernels cannot reach memory in front of a buffer. There a negative index is a large one,
and the device drops the access or moves it to the zone after.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# A multiple of the alignment of buffers (4096 bits at most), and of the page size, to which drivers align whole
# buffers.
ZONE_BYTES = 1 << 14
_PATTERN = np.random.default_rng(0).integers(0, 256, ZONE_BYTES, np.uint8)
# Above it a copy on the host takes longer than two more transfers.
_MOST_JOINED_BYTES = 1 << 20
_PLAIN_IMAGES = ("global.texture-2d", "global.texture-rows", "global.texture-rows-joined")


@dataclasses.dataclass(kw_only=True)
class Guarded:
    """A tensor of a candidate with guard zones.

    tensor: the kernel's argument.
    whole: the allocation around it.
    before: bytes of the zone in front.
    extents: layers, rows and columns of an image with a border.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str
    device: Any
    tensor: Any
    whole: Any = None
    before: int = 0
    extents: tuple[int, int, int] | None = None

    def output(self) -> tuple[np.ndarray, str | None]:
        """Return the tensor's contents, and a description of writes outside of it, or None."""
        if self.whole is None:
            return self.tensor.numpy(), None
        contents = self.whole.numpy()
        if self.extents is not None:
            return self._image_of(contents)
        size = contents.size - self.before - ZONE_BYTES
        data = contents[self.before : self.before + size].view(self.dtype).reshape(self.shape)
        return data, self._described(contents[: self.before], contents[self.before + size :])

    def fault(self) -> str | None:
        """Return a description of writes outside of the tensor, or None. Reads only the zones if possible."""
        if self.whole is None or self.extents is not None:
            return None
        end = math.prod(self.whole.shape) - ZONE_BYTES
        if is_remote(self.device):
            contents = self.whole.numpy()
            return self._described(contents[: self.before], contents[end:])
        zones = [
            self.whole._create_view((length,), "uint8", start).numpy()
            for start, length in ((0, self.before), (end, ZONE_BYTES))
            if length
        ]
        return self._described(zones[0] if self.before else np.empty(0, np.uint8), zones[-1])

    def without_zones(self, *, is_output: bool = False) -> Any:
        """Return a tensor with the same contents and no zones, copied on the device.

        The contents of an output are left out.
        """
        import tvm

        if self.whole is None:
            return self.tensor
        plain = tvm.runtime.empty(
            self.shape, self.dtype, self.device, mem_scope=None if self.scope == "global" else self.scope
        )
        return plain if is_output else plain.copyfrom(self.tensor)

    def _described(self, before: np.ndarray, after: np.ndarray) -> str | None:
        counts = {
            where: int(np.count_nonzero(zone != _PATTERN[: zone.size]))
            for where, zone in (("before", before), ("after", after))
        }
        return (
            " and ".join(f"wrote {count} bytes {where} `{self.name}`" for where, count in counts.items() if count)
            or None
        )

    def _image_of(self, contents: np.ndarray) -> tuple[np.ndarray, str | None]:
        assert self.extents is not None
        layers, rows, columns = self.extents
        contents = contents.reshape((-1, *contents.shape[-3:]))
        data = contents[:layers, :rows, :columns].reshape(self.shape)
        is_border = np.ones(contents.shape, bool)
        is_border[:layers, :rows, :columns] = False
        changed = (
            int(np.count_nonzero((contents != _border(contents.shape, self.dtype)) & is_border)) * contents.itemsize
        )
        return data, f"wrote {changed} bytes beyond the edges of the image `{self.name}`" if changed else None


def guard(
    arrays: Sequence[np.ndarray],
    names: Sequence[str],
    scopes: Sequence[str],
    device: Any,
    window: Callable[[Any], Any] | None,
) -> list[Guarded]:
    """Copy a candidate's arrays, the output last, to a device, each with zones around it.

    window: the runtime's function that makes a tensor of a view. None if the runtime has none. There is then no zone
        in front.
    """
    last = len(arrays) - 1
    return [
        (
            _buffer(array, name, device, window)
            if scope == "global"
            else _image(array, name, scope, device, is_written=index == last)
        )
        for index, (array, name, scope) in enumerate(zip(arrays, names, scopes, strict=True))
    ]


def _buffer(array: np.ndarray, name: str, device: Any, window: Callable[[Any], Any] | None) -> Guarded:
    import tvm

    made = {"name": name, "shape": array.shape, "dtype": str(array.dtype), "scope": "global", "device": device}
    before = ZONE_BYTES if window is not None else 0
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    pieces = [piece for piece in (_PATTERN[:before], data, _PATTERN) if piece.size]
    if data.size < _MOST_JOINED_BYTES or is_remote(device):
        pieces = [np.concatenate(pieces)]
    try:
        whole = tvm.runtime.empty((sum(piece.size for piece in pieces),), "uint8", device)
    except RuntimeError:
        # With its zones it may exceed the size limit of a buffer. Any other error occurs again below.
        return Guarded(**made, tensor=tvm.runtime.tensor(array, device))
    start = 0
    for piece in pieces:
        whole._create_view(piece.shape, "uint8", start).copyfrom(piece)
        start += piece.size
    view = whole._create_view(array.shape, str(array.dtype), before)
    return Guarded(**made, tensor=view if window is None else window(view), whole=whole, before=before)


def is_remote(device: Any) -> bool:
    """Return whether a device is behind a connection.

    Its copies ignore a view's offset, so only whole tensors can be copied.
    """
    return bool(device.dlpack_device_type() >= 128)


def _image(array: np.ndarray, name: str, scope: str, device: Any, *, is_written: bool) -> Guarded:
    import tvm

    made = {"name": name, "shape": array.shape, "dtype": str(array.dtype), "scope": scope, "device": device}
    if is_written:
        from romou.compiler.tir.primitives import image_extents

        columns, rows, layers = image_extents(array.shape, scope)
        is_plain = scope in _PLAIN_IMAGES
        larger = (*(() if is_plain else (layers + 1,)), rows + 1, columns + 1, 4)
        contents = _border(larger, str(array.dtype))
        contents.reshape((-1, *larger[-3:]))[:layers, :rows, :columns] = array.reshape(layers, rows, columns, 4)
        try:
            whole = tvm.runtime.empty(
                larger, str(array.dtype), device, mem_scope="global.texture-2d" if is_plain else "global.texture"
            ).copyfrom(contents)
            return Guarded(**made, tensor=whole, whole=whole, extents=(layers, rows, columns))
        except RuntimeError:
            # An image may already have the device's largest number of rows.
            pass
    return Guarded(
        **made, tensor=tvm.runtime.empty(array.shape, str(array.dtype), device, mem_scope=scope).copyfrom(array)
    )


def _border(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    # Whole numbers below 97 are exact in fp16. Their period differs from an image's row.
    return (np.arange(math.prod(shape)) * 31 % 97).reshape(shape).astype(dtype)
