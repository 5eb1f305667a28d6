"""A fixed part of the fuzzer's cases: each is right or one clear error. And the fuzzer finds each fault that is
planted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
import pytest

import fuzz_onnx
from fuzz_cases import case
from fuzz_onnx import CRASH, OVER_TIME, REFUSED, RIGHT, TRACEBACK, UNCLEAR, WRONG, fuzz, run_case
from romou.base.errors import BuildError, ModelError, NumericError
from romou.runtime.workers.child import ChildCrashError, ChildTimeoutError
from romou.tuner.measure import ChildBugError
from support.suite.exhaustive import exhaustive


# Forty take five seconds of processor time.
@pytest.mark.parametrize("cases", [40, pytest.param(600, marks=exhaustive)])
def test_a_part_of_the_cases(cases: int) -> None:
    results = fuzz(range(cases))
    assert not [result for result in results if result.outcome not in (RIGHT, REFUSED)]
    counts = Counter(result.outcome for result in results)
    # Some changes are harmful, and some models are compiled.
    assert min(counts[RIGHT], counts[REFUSED]) > cases / 20


def test_cases_are_the_same_each_time_and_of_many_kinds() -> None:
    numbers = range(200)
    cases = [case(0, number) for number in numbers]
    assert cases == [case(0, number) for number in numbers]
    assert [data for _, data in cases] != [case(1, number)[1] for number in numbers]
    assert len({what for what, _ in cases}) > 60
    assert sum(_is_readable(data) for _, data in cases) > 80


def _is_readable(data: bytes) -> bool:
    try:
        onnx.load_from_string(data)
    except Exception:  # by the many types of protobuf
        return False
    return True


class _Child:
    """A child process that ends in a given way."""

    def __init__(self, end: Any) -> None:
        self.end = end

    def call(self, *_given: Any, **_options: Any) -> Any:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ((None, 1.0), RIGHT),
        ((None, 11.0), OVER_TIME),
        ((ModelError("the graph has no nodes"), 1.0), REFUSED),
        ((NumericError("wrong"), 1.0), WRONG),
        ((BuildError("InternalError: Check failed"), 1.0), UNCLEAR),
        ((ModelError(" "), 1.0), UNCLEAR),
        ((ModelError("x" * 5000), 1.0), UNCLEAR),
        (ChildBugError("KeyError"), TRACEBACK),
        (ChildCrashError("SIGSEGV"), CRASH),
        (ChildTimeoutError("90 s"), OVER_TIME),
    ],
)
def test_what_is_planted_is_found(end: Any, outcome: str) -> None:
    assert run_case(_Child(end), 0, 0).outcome == outcome  # type: ignore[arg-type]
    assert (outcome in fuzz_onnx.FAULTS) == (outcome not in (RIGHT, REFUSED))
