"""Lanes of simulated waves: which of them are active, and their registers, as NumPy arrays.

All lanes (work-items) of some work groups lie along one axis, group after group. Lanes that diverge wait at their next
instruction. Those at the smallest instruction run until they reach the others. That is where the hardware lets them
reconverge, because the compiler's blocks are in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from romou.devices.mobile_compilers.ir3.instructions import COMPUTED, Array, bits_of
from romou.devices.mobile_compilers.ir3.launch import Launch
from romou.devices.mobile_compilers.ir3.memory import BadAccessError
from romou.devices.mobile_compilers.ir3.program import Instruction, Operand

Read: TypeAlias = "Callable[[], Array]"
Write: TypeAlias = "Callable[[Array], None]"
# The registers r48 to r55 are one for all lanes of a wave. All lanes hold their value here.
_SHARED, _REGISTERS = 4 * 48, 256
# Mesa prints (neg) for the inversion of bits, too.
_INVERTED = ("and.b", "or.b", "xor.b", "not.b")


class Machine:
    """The lanes of some work groups.

    constants: the constant file, (words, 1).
    numbers: of the work groups, x first.
    items: work-items of each group that run, None for all.
    """

    def __init__(self, launch: Launch, constants: Array, numbers: Array, items: int | None = None) -> None:
        self.program, self.constants = launch.program, constants
        items = math.prod(launch.work_group) if items is None else items
        self.groups, self.lanes = len(numbers), len(numbers) * items
        item = np.tile(np.arange(items), self.groups)
        self.group_of = np.repeat(np.arange(self.groups), items)
        self.wave_of = self.group_of * -(-items // launch.wave) + item // launch.wave
        self.wave_starts = np.flatnonzero(np.diff(self.wave_of, prepend=-1))
        self.registers = np.zeros((_REGISTERS, self.lanes), np.uint32)
        # The lower and upper halves of registers
        self.halves = self.registers.view(np.uint16).reshape(_REGISTERS, self.lanes, 2)
        self.predicates = np.zeros((4, self.lanes), bool)
        # a0.x and a1.x
        self.addresses = np.zeros((2, self.lanes), np.int64)
        self._place_inputs(launch, numbers[self.group_of], item)
        self._unpredicated = np.ones(self.lanes, bool)
        self._waiting: dict[int, Array] = {}
        self._ended = np.zeros(self.lanes, bool)
        self.divergent_branches = 0
        self.activate(self._unpredicated)

    def _place_inputs(self, launch: Launch, group: Array, item: Array) -> None:
        (gx, gy, _), (x, y, _) = launch.groups, launch.work_group
        known = {
            "WORKGROUP_ID": (group % gx, group // gx % gy, group // (gx * gy)),
            "LOCAL_INVOCATION_ID": (item % x, item // x % y, item // (x * y)),
            "LOCAL_INVOCATION_INDEX": (item,),
        }
        for name, register in self.program.inputs.items():
            if name not in known:
                raise self.program.code[0].unknown(f"the system value {name}")
            for place, values in enumerate(known[name]):
                self.registers[register + place] = values

    # Active lanes

    def activate(self, lanes: Array) -> None:
        """Make some lanes the active ones."""
        self.active, self.count = lanes, int(np.count_nonzero(lanes))
        self.is_full = self.count == self.lanes
        self.waves = len(self.wave_starts) if self.is_full else int(np.count_nonzero(self._by_wave(lanes)))

    def _by_wave(self, lanes: Array) -> Array:
        return np.logical_or.reduceat(lanes, self.wave_starts)

    def wait(self, index: int, lanes: Array) -> None:
        """Let lanes wait at an instruction."""
        self._waiting[index] = self._waiting[index] | lanes if index in self._waiting else lanes

    def merged(self, index: int) -> int:
        """Return the instruction to execute after lanes reached `index`: the smallest one at which lanes wait."""
        if not self._waiting or index < min(self._waiting):
            return index
        if self.count:
            self.wait(index, self.active)
        first = min(self._waiting)
        self.activate(self._waiting.pop(first))
        self._unpredicated = self.active
        return first

    def branch(self, index: int, target: int, is_taken: Array) -> int:
        """Return the instruction after a branch at `index` that some lanes take. The others may have to wait."""
        taken, rest = self.active & is_taken, self.active & ~is_taken
        if not taken.any():
            return index + 1
        if not rest.any():
            return target
        self.divergent_branches += int(np.count_nonzero(self._by_wave(taken) & self._by_wave(rest)))
        (first, now), later = sorted([(index + 1, rest), (target, taken)], key=lambda side: side[0])
        self.wait(*later)
        self.activate(now)
        self._unpredicated = now
        return first

    def predicate(self, is_chosen: Array | None) -> None:
        """Leave those lanes active that are chosen, of those before any predication. None ends the predication."""
        self.activate(self._unpredicated if is_chosen is None else self._unpredicated & is_chosen)

    def end(self) -> int:
        """End the active lanes."""
        self._ended |= self.active
        self.activate(np.zeros(self.lanes, bool))
        return len(self.program.code)

    def barrier(self) -> None:
        """Raise BadAccessError if only some work-items of a group reach a barrier together."""
        arrived = np.bincount(self.group_of[self.active], minlength=self.groups)
        alive = np.bincount(self.group_of[~self._ended], minlength=self.groups)
        if ((arrived > 0) & (arrived < alive)).any():
            raise BadAccessError(f"{self.program.name}: some work-items of a work group miss a barrier")

    def first_lanes(self) -> Array:
        """Return for each lane the first active lane of its wave, or the number of lanes."""
        place = np.where(self.active, np.arange(self.lanes), self.lanes)
        return np.repeat(np.minimum.reduceat(place, self.wave_starts), np.diff(self.wave_starts, append=self.lanes))

    # Registers

    def rows(self, operand: Operand, count: int) -> list[Array]:
        """Return views of the bits of `count` registers, (lanes,) each."""
        if operand.file == "r":
            return [self.registers[operand.index + place] for place in range(count)]
        rows = []
        for half in range(operand.index, operand.index + count):
            # hr48.x is the lower half of r48.x, as hr0.x is that of r0.x.
            register = half // 2 if half < _SHARED else _SHARED + (half - _SHARED) // 2
            rows.append(self.halves[register, :, half % 2])
        return rows

    def read(self, instruction: Instruction, operand: Operand, kind: type[np.generic], count: int = 1) -> Read:
        """Return a function that reads an operand of `count` repetitions, (count or 1, lanes or 1).

        kind: type of its elements. Those of fp16 are returned as fp32.
        """
        count, dtype = count if "r" in operand.marks else 1, np.dtype(kind)
        change = _modifier(instruction, operand, dtype)
        bits = np.dtype(f"u{dtype.itemsize}")
        if operand.is_relative:
            return lambda: change(self._relative(operand).astype(bits).view(dtype)[None])
        if operand.file == "":
            value = np.array([[operand.value]])
            value = change(value.astype(bits).view(dtype) if "bits" in operand.marks else value.astype(dtype))
            return lambda: value
        if operand.file in ("c", "hc"):
            words = self.constants[operand.index : operand.index + count]
            # Constants of fp16 instructions are stored in fp32.
            is_narrowed = operand.is_half and dtype.kind == "f"
            return lambda: change(
                words.view(np.float32).astype(dtype) if is_narrowed else words.astype(bits).view(dtype)
            )
        if operand.file not in ("r", "hr") or dtype.itemsize != (2 if operand.is_half else 4):
            raise instruction.unknown(f"a source {operand.file} of {8 * dtype.itemsize} bits")
        if operand.file == "r":
            block = self.registers[operand.index : operand.index + count].view(dtype)
            return lambda: change(block)
        rows = self.rows(operand, count)
        return lambda: change(np.stack(rows).view(dtype))

    def _relative(self, operand: Operand) -> Array:
        """Return the bits of the register a0.x + index of each lane."""
        index, lanes = np.where(self.active, operand.index + self.addresses[0], 0), np.arange(self.lanes)
        bits: Array
        if operand.file in ("c", "hc"):
            bits = self.constants[index, 0]
        else:
            bits = self.halves[index // 2, lanes, index % 2] if operand.is_half else self.registers[index, lanes]
        return bits

    def write(self, instruction: Instruction, operand: Operand, count: int = 1) -> Write:
        """Return a function that writes (count or 1, lanes or 1) elements to the active lanes of registers.

        Integers of another size keep their value or their lower bits. Floats are rounded.
        """
        if operand.file == "p":
            row = self.predicates[operand.index : operand.index + 1]
            return lambda values: np.copyto(row, values != 0, where=self.active)
        if operand.file not in ("r", "hr") or operand.index >= 4 * 60:
            raise instruction.unknown(f"the destination {operand.file}{operand.index // 4}")
        size = 2 if operand.is_half else 4
        if operand.is_relative:
            return lambda values: self._write_relative(operand, bits_of(values, size))
        rows = self.rows(operand, count)
        if operand.index >= _SHARED:
            return lambda values: self._write_shared(rows, bits_of(values, size))
        # Full registers follow one another. Halves do not.
        blocks = [self.registers[operand.index : operand.index + count]] if size == 4 else rows

        def write(values: Array) -> None:
            bits = bits_of(values, size)
            for place, block in enumerate(blocks):
                value = bits if size == 4 else bits[min(place, len(bits) - 1)]
                if self.is_full:
                    block[...] = value
                else:
                    np.copyto(block, value, where=self.active)

        return write

    def _write_shared(self, rows: Sequence[Array], bits: Array) -> None:
        """Write the value of the first active lane of a wave to all its lanes."""
        first = self.first_lanes()
        for place, row in enumerate(rows):
            value = np.broadcast_to(bits[min(place, len(bits) - 1)], (self.lanes,))
            np.copyto(row, value[np.minimum(first, self.lanes - 1)], where=first < self.lanes)

    def _write_relative(self, operand: Operand, bits: Array) -> None:
        lanes = np.flatnonzero(self.active)
        index, values = (operand.index + self.addresses[0])[lanes], self.of_lanes(bits)[lanes]
        if operand.is_half:
            self.halves[index // 2, lanes, index % 2] = values
        else:
            self.registers[index, lanes] = values

    def of_lanes(self, values: Array) -> Array:
        """Return (1, lanes or 1) elements as (lanes,)."""
        wide = values if values.shape[-1] == self.lanes else np.broadcast_to(values, (1, self.lanes))
        of_lanes: Array = wide[0]
        return of_lanes


def _modifier(instruction: Instruction, operand: Operand, dtype: np.dtype[np.generic]) -> Callable[[Array], Array]:
    """Return a function for the (neg) or (abs) of an operand, which also makes fp32 of fp16."""
    computed = COMPUTED.get(dtype, dtype)
    marks = operand.marks & {"neg", "abs", "absneg", "not"}
    if not marks:
        return (lambda values: values) if computed == dtype else (lambda values: values.astype(computed))
    (mark,) = marks
    if instruction.operation in _INVERTED:
        mark = "not"
    elif dtype.kind == "u" and not instruction.operation.startswith(("add", "sub")):
        raise instruction.unknown(f"({mark}) of bits")
    changes: dict[str, Callable[[Array], Array]] = {
        "neg": np.negative,
        "abs": np.abs,
        "absneg": lambda values: np.negative(np.abs(values)),
        "not": np.invert,
    }
    change = changes[mark]
    return lambda values: change(values.astype(computed, copy=False))
