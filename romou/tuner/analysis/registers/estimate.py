"""The estimate: registers that a compiler allocates for a work-item, and those that the work-item needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from romou.tuner.analysis.registers.instructions import ADDRESS, DELAY, SLOTS
from romou.tuner.analysis.registers.liveness import blocks_of
from romou.tuner.analysis.registers.reader import Reader
from romou.tuner.analysis.registers.scheduler import Scheduler, live_as_written

# Live registers beyond which Mesa spills, and the number measured on the same GPU, as in device files.
_MOST, _MOST_MEASURED = 192, 181
# Up to half of them, fewer registers allow more waves. Beyond, the compiler allocates all registers round-robin (Mesa,
# ir3_ra.c), as far as a block writes as many; gaps between vectors cost the factor _GAPS. Between the first two numbers
# the estimate is interpolated.
_SAVED, _TAKEN_IN_TURN, _GAPS = 85, 110, 1.15


@dataclass(frozen=True)
class RegisterEstimate:
    """Estimated 32-bit registers of a work-item; arrays for many kernels.

    live: most live registers in the compiler's order of instructions
    written: registers written in the longest basic block, and those that are live through it
    as_written: most live registers in the order of the kernel's text, which Mesa's compiler for Mali keeps
    """

    live: Any
    written: Any = 0
    as_written: Any = 0

    @property
    def allocated(self) -> Any:
        """Registers that a compiler with enough of them allocates, comparable with a compiler's output."""
        in_turn = np.clip((self.live - _SAVED) / (_TAKEN_IN_TURN - _SAVED), 0, 1)
        return self.live + in_turn * np.maximum(np.minimum(_GAPS * self.written, _MOST) - self.live, 0)

    @property
    def needed(self) -> Any:
        """Registers without which the work-item would spill or stall, comparable with a device's."""
        return _MOST_MEASURED / _MOST * self.live

    def error(self, registers: Any) -> Any:
        """Return the relative error of `allocated` against a compiler's number: 0.09 is 9% too many."""
        return self.allocated / registers - 1


def estimate_registers(func: tirx.PrimFunc) -> RegisterEstimate:
    """Return the registers of a work-item of a lowered device function.

    Short loops are unrolled. Two fp16 numbers share a register.
    """
    reader = Reader(func.body)
    sizes = reader.values.sizes
    blocks = blocks_of(reader.code, sizes)
    counts = [(*Scheduler(block, sizes).run(), live_as_written(block, sizes)) for block in blocks]
    live, written, as_written = (float(max(numbers)) for numbers in zip((0, 0, 0), *counts, strict=True))
    return RegisterEstimate(live, written, as_written)


def address_registers(loads: Any, *, is_image: Any) -> Any:
    """Return a lower bound of the registers for addresses of `loads` loads in one basic block. Takes arrays too.

    Addresses are computed ahead while no other instruction is ready.
    """
    ahead = {place: DELAY[place] // (SLOTS[place] + 1) for place in ADDRESS}
    return np.where(
        is_image,
        np.minimum(loads, ahead["image"]) * ADDRESS["image"],
        np.minimum(loads, ahead["buffer"]) * ADDRESS["buffer"],
    )
