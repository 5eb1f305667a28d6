"""Launch of a kernel in the simulator: its grid, and its arguments as Mesa's driver hands them over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from romou.devices.mobile_compilers.ir3.instructions import Array
from romou.devices.mobile_compilers.ir3.memory import OFFSET_BITS, Argument, Image
from romou.devices.mobile_compilers.ir3.program import Program

_CONSTANTS = 4 * 512
# What the compiler prints for constants that it does not use
_UNUSED = 0xD0D0D0D0
# Mesa's places of the driver's parameters: work groups, dimensions, lanes of a wave, sides of the work group.
_GROUPS, _DIMENSIONS, _WAVE, _SIDES, _PARAMS = 0, 3, 7, 8, 12
_BYTES_OF = {"buffer": 8, "texture": 8, "scalar": 4, "image": 0}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel with its arguments.

    kinds: of each parameter, "buffer", "texture" (an image that is read), "image" (one that is written) or "scalar".
    groups, work_group: sides (x, y, z) of the grid in work groups, and of a work group in work-items.
    local_memory_bytes, private_memory_bytes: of a work group and of a work-item.
    wave: lanes that run in step.
    """

    program: Program
    arguments: Sequence[Argument]
    kinds: Sequence[str]
    groups: tuple[int, int, int]
    work_group: tuple[int, int, int]
    local_memory_bytes: int = 0
    private_memory_bytes: int = 0
    wave: int = 64

    def images(self, kind: str) -> list[Image]:
        """Return the images of a kind, in the order in which Mesa numbers them."""
        given = zip(self.arguments, self.kinds, strict=True)
        return [argument for argument, own in given if own == kind and isinstance(argument, Image)]

    def argument_words(self) -> Array:
        """Return the kernel's arguments as Mesa lays them out, in words of 32 bits.

        A pointer and an image that is read take 8 bytes, a number 4. An image that is written takes none.
        """
        data = bytearray()
        for place, (argument, kind) in enumerate(zip(self.arguments, self.kinds, strict=True)):
            size = _BYTES_OF[kind]
            value = argument if isinstance(argument, int) else (place + 1) << int(OFFSET_BITS)
            data += bytes(-len(data) % max(size, 1))
            data += value.to_bytes(size, "little", signed=kind == "scalar") if size else b""
        # The offset of the launch follows, and what the driver adds. They are zero.
        return np.frombuffer(bytes(data) + bytes(256 + -len(data) % 4), np.uint32)

    def constants(self) -> Array:
        """Return the constant file as the driver fills it before the preamble, (words, 1)."""
        words, arguments = np.full(_CONSTANTS, _UNUSED, np.uint32), self.argument_words()
        for index, value in self.program.constants.items():
            words[index] = value
        for index, first, end in self.program.argument_ranges:
            own = arguments[first // 4 : end // 4]
            words[index : index + len(own)] = own
        if (base := self.program.driver_params) is not None:
            words[base : base + _PARAMS] = 0
            words[base + _GROUPS : base + _GROUPS + 3] = self.groups
            words[base + _SIDES : base + _SIDES + 3] = self.work_group
            words[base + _DIMENSIONS], words[base + _WAVE] = 3, self.wave
        return words[:, None]
