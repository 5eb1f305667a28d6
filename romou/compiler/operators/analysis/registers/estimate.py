"""The estimate of a work-item's registers: the number that a compiler allocates, and the number that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from romou.compiler.operators.analysis.registers.instructions import ADDRESS, DELAY, SLOTS
from romou.compiler.operators.analysis.registers.liveness import blocks_of, merged_values
from romou.compiler.operators.analysis.registers.reader import Reader
from romou.compiler.operators.analysis.registers.scheduler import Scheduler, live_as_written
from romou.compiler.operators.analysis.registers.shared_reads import SharedReads

# Number of live registers above which Mesa spills, and the number measured on the same GPU, as in device files.
_MOST, _MOST_MEASURED = 192, 181
# Up to _SAVED live registers, the compiler saves registers, because fewer of them allow more waves. From _TAKEN_IN_TURN
# on, it allocates all registers round-robin (Mesa, ir3_ra.c), if a block writes enough of them. Gaps between vectors
# cost the factor _GAPS. Between the two numbers the estimate is interpolated.
_SAVED, _TAKEN_IN_TURN, _GAPS = 85, 110, 1.15


@dataclass(frozen=True)
class RegisterEstimate:
    """Estimated 32-bit registers of a work-item. Arrays for many kernels.

    live: most live registers in the compiler's order of instructions
    written: registers written in the longest basic block, plus the registers live through it
    as_written: most live registers in the order of the kernel's text, which Mesa's compiler for Mali keeps. Between
        basic blocks each lane of an fp16 vector counts if its value depends on the path (`merged_values`).
    """

    live: Any
    written: Any = 0
    as_written: Any = 0

    @property
    def allocated(self) -> Any:
        """Registers that a compiler allocates if it has enough, comparable with a compiler's output."""
        in_turn = np.clip((self.live - _SAVED) / (_TAKEN_IN_TURN - _SAVED), 0, 1)
        return self.live + in_turn * np.maximum(np.minimum(_GAPS * self.written, _MOST) - self.live, 0)

    @property
    def needed(self) -> Any:
        """Fewest registers with which the work-item neither spills nor stalls, comparable with a device's number."""
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
    fp16 = reader.values.fp16
    counts = [Scheduler(block, sizes, fp16).run() for block in blocks_of(reader.code, sizes)]
    live, written = (float(max(numbers)) for numbers in zip((0, 0), *counts, strict=True))
    reader = Reader(func.body, is_mali=True)
    sizes, unpacked = reader.values.sizes, reader.values.unpacked
    shared = SharedReads(sizes).of(reader.code)
    merged = merged_values(shared)
    as_written = (live_as_written(block, sizes, merged, unpacked) for block in blocks_of(shared, sizes))
    return RegisterEstimate(live, written, float(max(as_written, default=0)))


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
