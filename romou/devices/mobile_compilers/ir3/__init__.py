"""A simulator of Adreno's machine code (ir3), as Mesa's compiler prints it: values, and counts of what is executed."""

from romou.devices.mobile_compilers.ir3.caches import Caches, Level
from romou.devices.mobile_compilers.ir3.counts import Counts
from romou.devices.mobile_compilers.ir3.execution import execute
from romou.devices.mobile_compilers.ir3.launch import Launch
from romou.devices.mobile_compilers.ir3.memory import BadAccessError, Buffer, Image
from romou.devices.mobile_compilers.ir3.program import Program, UnknownInstructionError, read_program

__all__ = [
    "BadAccessError",
    "Buffer",
    "Caches",
    "Counts",
    "Image",
    "Launch",
    "Level",
    "Program",
    "UnknownInstructionError",
    "execute",
    "read_program",
]
