"""The compiler's loops are matched with those of the TIR, kept or unrolled."""

from __future__ import annotations

import pytest
from tvm.script import tirx as T

from romou.compiler.operators.analysis.executed import (
    TripLoop,
    UnknownTripCountError,
    executed_instructions,
    trip_loops,
)
from romou.devices.mobile_compilers import LoopStatistics


def code(instructions: int, multiply_adds: int, *inner: LoopStatistics) -> LoopStatistics:
    return LoopStatistics(instructions=instructions, multiply_adds=multiply_adds, memory=0, inner=inner)


# for 16: for 3: for 3: 4 multiply-adds; and a loop of 2 without any before it.
LOOPS = TripLoop(1, 0, (TripLoop(2, 0), TripLoop(16, 0, (TripLoop(3, 0, (TripLoop(3, 4),)),))))


@pytest.mark.parametrize(
    ("made", "executed"),
    [
        (
            code(10, 0, code(5, 0), code(6, 0, code(7, 0, code(8, 4)))),
            10 + 2 * 5 + 16 * (6 + 3 * (7 + 3 * 8)),
        ),  # all kept
        (
            code(10, 0, code(5, 0), code(6, 0, code(30, 12))),
            10 + 2 * 5 + 16 * (6 + 3 * 30),
        ),  # the innermost one unrolled
        (code(10, 0, code(90, 36)), 10 + 16 * 90),  # two unrolled, and the one without multiply-adds
        (code(900, 16 * 36), 900),  # everything unrolled
        (code(10, 0, code(90, 35)), None),
        (code(10, 0, code(1, 0), code(1, 0), code(90, 36)), None),
    ],
)
def test_match(made: LoopStatistics, executed: int | None) -> None:
    found = executed_instructions(made, LOOPS)
    assert (found and found.instructions) == executed


def test_an_unknown_trip_count_is_said() -> None:
    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((64,), "float32")) -> None:
        for i in range(8):
            for j in range(i):
                a[j] = T.float32(0)

    with pytest.raises(UnknownTripCountError, match="the loop over j runs i iterations, which is not constant"):
        trip_loops(func)


def test_trip_loops() -> None:
    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        for i in range(16):
            b[i] = a[i] * T.float32(3)
            for j in range(4):
                b[i + j] = a[j] + T.float32(1)

    assert trip_loops(func) == TripLoop(1, 0, (TripLoop(16, 1, (TripLoop(4, 0),)),))
    assert trip_loops(func).total == 16
