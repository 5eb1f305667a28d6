"""Arrays of the host as memory of a device that shares it: tensors in them, and runs that put outputs there."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from romou.devices.backends import backend
from tvm_patches.runtime import global_function
from tvm_patches.short_types import stored


class HostMemory:
    """Tensors of a device in arrays of the host, if both share their memory and the runtime binds arrays."""

    def __init__(self, kind: str, device: Any) -> None:
        self.device = device
        find = global_function
        names = ("bind", "hold", "let_go", "place", "placed")
        functions = [find(backend(kind).function(name), allow_missing=True) for name in names]
        self._bind, self._hold, self._let_go, self.place, self.placed = functions
        shares = bool(backend(kind).facts(device.index).get("has_unified_memory"))
        self.is_possible = shares and None not in functions
        self._tensors: list[Any] = []

    def tensor(self, array: np.ndarray) -> Any:
        """Return a tensor in the memory of `array`, or None if it has to be copied.

        Drivers use whole pages of the host. An array that begins elsewhere is copied.
        """
        import tvm_ffi

        data = stored(array)
        if (
            not self.is_possible
            or not array.nbytes
            or not array.flags.writeable
            or array.ctypes.data % mmap.PAGESIZE
            or data.ctypes.data != array.ctypes.data
        ):
            return None
        tensor = self._bind(array.ctypes.data, array.shape, tvm_ffi.dtype(str(data.dtype)), self.device)
        self._tensors.append(tensor)
        return tensor

    def hold(self) -> None:
        """Wait for the device. The arrays are the host's afterwards."""
        if self._tensors:
            self._hold(self._tensors)

    def let_go(self) -> None:
        """Give the arrays to the device."""
        if self._tensors:
            self._let_go(self._tensors)


class Placement:
    """A block in which a run puts its outputs into given tensors.

    Runs ask for memory in the same order each time. `learn` finds the requests of outputs in the last block. In later
    ones, the given tensors serve them. The runtime gives other memory to a request of another size.

    places: the tensor of each output, or None.
    learned: output -> position of its request.
    """

    def __init__(self, host: HostMemory, places: Sequence[Any]) -> None:
        self._host, self.places = host, places
        self.learned: dict[int, int] = {}
        self._taken: list[int] = []

    def __enter__(self) -> None:
        if self._host.is_possible:
            self._host.place(list(self.learned.values()), [self.places[i] for i in self.learned])

    def __exit__(self, *_error: object) -> None:
        if self._host.is_possible:
            self._taken = [int(address) for address in self._host.placed()]

    @property
    def addresses(self) -> set[int]:
        """Addresses of the tensors that outputs are put into."""
        return {self.places[i].data_ptr() for i in self.learned}

    def learn(self, outputs: Sequence[Any]) -> None:
        """Find the requests of outputs. Inputs and constants that are outputs have none."""
        # Memory that a run frees is requested again. The last request is the output's.
        position_of = {address: i for i, address in enumerate(self._taken)}
        positions = {i: position_of.get(output.data_ptr()) for i, output in enumerate(outputs)}
        for i, position in positions.items():
            if self.places[i] is not None and position is not None and position not in self.learned.values():
                self.learned[i] = position
