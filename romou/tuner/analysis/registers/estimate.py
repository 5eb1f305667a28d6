"""The estimate itself: what a compiler gives a work-item, and what a work-item cannot do without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from romou.tuner.analysis.registers.instructions import ADDRESS, DELAY, SLOTS
from romou.tuner.analysis.registers.liveness import blocks_of
from romou.tuner.analysis.registers.reader import Reader
from romou.tuner.analysis.registers.scheduler import Scheduler, live_as_written

# Beyond so many live registers Mesa spills; of the same GPU fewer were measured, which is what its device file knows
# and `needed` is told in.
_MOST, _MOST_MEASURED = 192, 181
# Up to half of them, more waves run for fewer registers. Beyond, a compiler hands out all that there are in turn (Mesa,
# ir3_ra.c), as far as a block writes so many: what lies between vectors is lost, and this many times more than are
# written are passed. How far an estimate near the half is from either is a matter of chance: between these two, the
# mean.
_SAVED, _TAKEN_IN_TURN, _GAPS = 85, 110, 1.15


@dataclass(frozen=True)
class RegisterEstimate:
    """32-bit registers of a work-item, estimated; arrays for many kernels.

    live: registers that are live at once, in the compiler's order of instructions.
    written: registers written one after the other in the longest basic block, with those that are live through it.
    as_written: registers that are live at once in the order of the kernel's text, by which Mesa's compiler for Mali
    goes: it moves no load ahead that it
        has no register for.
    """

    live: Any
    written: Any = 0
    as_written: Any = 0

    @property
    def allocated(self) -> Any:
        """Registers that a compiler with registers enough gives a work-item: the number to compare with a compiler's."""  # noqa: E501
        in_turn = np.clip((self.live - _SAVED) / (_TAKEN_IN_TURN - _SAVED), 0, 1)
        return self.live + in_turn * np.maximum(np.minimum(_GAPS * self.written, _MOST) - self.live, 0)

    @property
    def needed(self) -> Any:
        """Registers without which it would spill or stall: the number to compare with a device's."""
        return _MOST_MEASURED / _MOST * self.live

    def error(self, registers: Any) -> Any:
        """Return how far `allocated` is from what a compiler gave, as a share of that: 0.09 is 9% too many."""
        return self.allocated / registers - 1


def estimate_registers(func: tirx.PrimFunc) -> RegisterEstimate:
    """Return the registers of a work-item of a lowered device function. Short loops are unrolled; two fp16 share a
    register.
    """
    reader = Reader(func.body)
    sizes = reader.values.sizes
    found = [(*Scheduler(block, sizes).run(), live_as_written(block, sizes)) for block in blocks_of(reader.code, sizes)]
    live, written, as_written = (float(max(numbers)) for numbers in zip((0, 0, 0), *found, strict=True))
    return RegisterEstimate(live, written, as_written)


def address_registers(loads: Any, *, is_image: Any) -> Any:
    """Return the least registers for addresses of so many loads in one basic block, from images or else from buffers;
    for arrays too.

    Addresses are computed ahead for as long as nothing waits that could be done in their place.
    """
    ahead = {place: DELAY[place] // (SLOTS[place] + 1) for place in ADDRESS}
    return np.where(
        is_image,
        np.minimum(loads, ahead["image"]) * ADDRESS["image"],
        np.minimum(loads, ahead["buffer"]) * ADDRESS["buffer"],
    )
