"""Execution of a launch: its preamble once, then its work groups, some thousand lanes at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from romou.devices.mobile_compilers.ir3.caches import Caches
from romou.devices.mobile_compilers.ir3.counts import Counts
from romou.devices.mobile_compilers.ir3.launch import Launch
from romou.devices.mobile_compilers.ir3.machine import Machine
from romou.devices.mobile_compilers.ir3.steps import Steps


def execute(
    launch: Launch, chosen: Sequence[int] | None = None, *, lanes: int = 2048, caches: Caches | None = None
) -> Counts:
    """Run work groups of a launch, and return what they did. Stores change the arguments.

    UnknownInstructionError if the machine code has what the simulator does not know. BadAccessError if it accesses
    memory outside of its own.

    chosen: numbers of work groups, x first. None for all.
    lanes: about how many work-items run at once.
    caches: what loads go through. None if no level is known.
    """
    caches = caches or Caches()
    total, code, constants = Counts(), launch.program.code, launch.constants()
    numbers = np.arange(math.prod(launch.groups)) if chosen is None else np.asarray(chosen)
    at_once = max(1, lanes // math.prod(launch.work_group))
    start = 0
    with np.errstate(all="ignore"):
        if code and code[0].operation == "shps":
            # A preamble writes constants once for many waves, in one lane.
            end = next(index for index, instruction in enumerate(code) if instruction.operation == "shpe")
            Steps(Machine(launch, constants, np.zeros(1, int), items=1), launch, None).run(1, end)
            start = int(code[0].target or 0)
        for first in range(0, len(numbers), at_once):
            machine = Machine(launch, constants, numbers[first : first + at_once])
            steps = Steps(machine, launch, caches)
            steps.run(start, len(code))
            total.add(steps.counts())
    total.bytes_from = dict(caches.served)
    return total
