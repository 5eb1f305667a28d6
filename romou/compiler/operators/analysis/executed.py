"""Instructions that a work-item executes: the compiler's loops, weighted by trip counts from the lowered TIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi.structural import structural_visit

from romou.base.errors import BuildError
from romou.compiler.operators.analysis.expressions import multiply_adds_of
from romou.devices.mobile_compilers.statistics import LoopStatistics

# A loop that the compiler may have unrolled is expanded to at most this many loops. Mesa's own limit is lower.
_MAX_UNROLLED = 256


class UnknownTripCountError(BuildError):
    """The trip count of a loop in a kernel is not known before the kernel runs."""


# The error is raised inside a visitor that TVM calls. Without this it would come out as a RuntimeError.
tvm_ffi.register_error("UnknownTripCountError", UnknownTripCountError)


@dataclass(frozen=True)
class TripLoop:
    """A loop of the lowered TIR.

    It has the number of iterations, the inner loops, and the multiply-adds of one iteration outside of them.
    """

    trips: int
    multiply_adds: int
    inner: tuple[TripLoop, ...] = ()

    @property
    def total(self) -> int:
        """Multiply-adds of one iteration, the loops inside included."""
        return self.multiply_adds + sum(loop.trips * loop.total for loop in self.inner)


def trip_loops(func: tirx.PrimFunc) -> TripLoop:
    """Return the loops of a lowered device function, as a nest with the kernel as the outermost loop.
    UnknownTripCountError if a loop's trip count is not constant.
    """
    nests: list[list[TripLoop]] = [[]]
    products: list[int] = [0]

    def loop(node: tirx.For, visitor: Any) -> None:
        if not isinstance(node.extent, tirx.IntImm):
            raise UnknownTripCountError(
                f"the loop over {node.loop_var} runs {node.extent} iterations, which is not constant"
            )
        nests.append([])
        products.append(0)
        visitor.visit(node.body)
        nest = TripLoop(int(node.extent), products.pop(), tuple(nests.pop()))
        nests[-1].append(nest)

    def count(node: Any, visitor: Any) -> None:
        products[-1] += multiply_adds_of(node)
        visitor.default_visit(node)

    structural_visit(func.body, [(tirx.For, loop), ((tvm.ir.Call, tirx.Mul), count)])
    return TripLoop(1, products[0], tuple(nests[0]))


@dataclass(frozen=True)
class Executed:
    """The instructions that one work-item executes, and their sums of `LoopStatistics.units`."""

    instructions: float
    units: tuple[float, float, float] = (0, 0, 0)

    def after(self, trips: float, iteration: Executed) -> Executed:
        """Add `trips` iterations of a loop."""
        first, second, third = (
            own + trips * per_trip for own, per_trip in zip(self.units, iteration.units, strict=True)
        )
        return Executed(self.instructions + trips * iteration.instructions, (first, second, third))


def executed_instructions(code: LoopStatistics, loops: TripLoop) -> Executed | None:
    """Return the instructions that one work-item executes, conditional code included.

    None if the two nests cannot be matched.

    A compiler keeps a loop or unrolls it completely. The multiply-adds show which: every iteration has the same number
    of them in both nests.

        for 16: for 3: 4 multiply-adds      and      loop of 12 multiply-adds, 30 instructions
            ->  16 * 30 instructions
    """
    if not code.inner:
        return Executed(code.instructions, code.units)
    return _match(code, loops.multiply_adds, code.inner, loops.inner)


def _match(
    code: LoopStatistics, products: int, kept: Sequence[LoopStatistics], loops: Sequence[TripLoop]
) -> Executed | None:
    """Return the instructions of one iteration of `code`, if the loops so far were unrolled.

    products: multiply-adds of `code` outside of inner loops
    """
    if products > code.multiply_adds or len(loops) > _MAX_UNROLLED:
        return None
    if not loops:
        return Executed(code.instructions, code.units) if not kept and products == code.multiply_adds else None
    first, rest = loops[0], loops[1:]
    if kept:
        iteration = _match(kept[0], first.multiply_adds, kept[0].inner, first.inner)
        after = _match(code, products, kept[1:], rest) if iteration is not None else None
        if iteration is not None and after is not None:
            return after.after(first.trips, iteration)
    return _match(code, products + first.trips * first.multiply_adds, kept, (*(first.inner * first.trips), *rest))
