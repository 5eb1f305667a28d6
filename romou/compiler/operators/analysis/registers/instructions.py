"""Instructions of a work-item, from the reader to the scheduler, and constants of Adreno's instructions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

# A variable, an element of a private array or the whole array, or one lane of either.
Value: TypeAlias = tuple[Any, ...]
MemorySpace: TypeAlias = Literal["image", "buffer", "local"]
Kind: TypeAlias = Literal["load", "store", "index", "value", "copy", "barrier"]

# Registers of an address: three coordinates of a texel in a row, 64 bits of a pointer.
ADDRESS: dict[str, int] = {"image": 3, "buffer": 2}
# Number of instructions between a load and its first use (Mesa, soft_ss_delay and soft_sy_delay), and number of
# instructions that compute an address, without its index.
DELAY = {"local": 10, "image": 100, "buffer": 176}
SLOTS = {"local": 1, "image": 6, "buffer": 10}
# The largest offset of a load from local memory in bytes (12 bits). Above it, each load needs an address.
_LOCAL_REACH = 4096


@dataclass(frozen=True)
class Index:
    """One index of a load as a linear sum: variables with their factors, counters with their factors, and a constant.

    The counter of an unrolled loop is part of the constant.
    """

    variables: frozenset[tuple[Value, int]]
    counters: frozenset[tuple[int, int]]
    constant: int

    def without_factor(self) -> Index:
        """Return the sum divided by the common factor of its terms and its constant."""
        common = math.gcd(self.constant, *(factor for _, factor in (*self.variables, *self.counters))) or 1
        return Index(
            frozenset((value, factor // common) for value, factor in self.variables),
            frozenset((counter, factor // common) for counter, factor in self.counters),
            self.constant // common,
        )

    def in_iteration(self, loop: int, iteration: int) -> Index:
        """Return the index in the given iteration of an unrolled loop."""
        factors = dict(self.counters)
        moved = iteration * factors.pop(loop, 0)
        return Index(self.variables, frozenset(factors.items()), self.constant + moved)


@dataclass(frozen=True, eq=False)
class Instruction:
    """A load, a store or a group of arithmetic instructions.

    kind: "index" is integer arithmetic that waits for no load. A "copy" needs no registers. No memory access moves
        across a "barrier".
    uses, defines: values.
    place: memory that it reads or writes.
    address: registers of its address. The values in it are among `uses` of a load, and are `indices` of a store.
    base, offset: an address in local memory: its variables with the bytes that each adds, and its constant bytes,
        with the start of its array.
    strides, moved: loops with the bytes that each of their iterations adds, and the bytes that iterations of
        unrolled loops have added.
    slots: instructions that compute the index.
    index: of an image, what is read: the image and the coordinates, None for one that is no linear sum. Of a buffer,
        the variables in the index that change in loops. Of integer arithmetic, the linear sums in it.
    operation: integer arithmetic as text, with a place for each of the sums in `index`.
    is_sampled: whether an image's coordinates are converted to floats.
    """

    kind: Kind
    uses: tuple[Value, ...]
    defines: tuple[Value, ...] = ()
    place: MemorySpace | None = None
    address: int = 0
    indices: tuple[Value, ...] = ()
    base: frozenset[tuple[Value, int]] | None = None
    offset: int = 0
    strides: Mapping[int, int] = field(default_factory=dict)
    moved: int = 0
    slots: int = 0
    index: tuple[Index | None, ...] = ()
    operation: str = ""
    is_sampled: bool = False

    def in_iteration(self, loop: int, iteration: int, *, is_early: bool) -> Instruction:
        """Return the instruction in the given iteration of an unrolled loop.

        is_early: the loop is unrolled before addresses are split, so all constants fold into one
        """
        index = tuple(part and part.in_iteration(loop, iteration) for part in self.index)
        if not iteration or loop not in self.strides:
            return replace(self, index=index) if index else self
        bytes_moved = iteration * self.strides[loop]
        return (
            replace(self, offset=self.offset + bytes_moved)
            if is_early
            else replace(self, moved=self.moved + bytes_moved)
        )

    @property
    def far_address(self) -> Value | None:
        """The address needed because the constant offset from `base` would be too large.

        None if the offset is in reach.

        The remaining offset is in reach.
        """
        if self.base is None or self.offset + self.moved < _LOCAL_REACH:
            return None
        parts = (
            self.moved
            if self.offset < _LOCAL_REACH
            else self.offset
            if self.moved < _LOCAL_REACH
            else self.offset + self.moved
        )
        return ("address", self.base, parts)


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop that a compiler does not unroll."""

    body: list[Code]


@dataclass(frozen=True, eq=False)
class BlockEnd:
    """The end of a basic block: a branch, or the start or the end of a loop.

    opens, closes: whether code under a condition begins or ends
    """

    opens: bool = False
    closes: bool = False


@dataclass(frozen=True, eq=False)
class BasicBlock:
    """A basic block, and its live-in and live-out values.

    carried: the values that a loop starting with the block passes from iteration to iteration.
    """

    instructions: Sequence[Instruction]
    before: frozenset[Value]
    behind: frozenset[Value]
    carried: frozenset[Value] = frozenset()


Code: TypeAlias = Instruction | Loop | BlockEnd | BasicBlock
