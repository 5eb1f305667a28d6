"""Address elimination on small functions: the places of the declarations, and exact quotients."""

from __future__ import annotations

import re

import numpy as np
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from romou.compiler.passes.address_elimination import _quotient, eliminate_addresses


def text_of(module: tvm.IRModule) -> str:
    return eliminate_addresses(module)["main"].script()


def test_sums_are_split_by_loop_and_share_their_variable() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                for r in range(8):
                    for k in range(3):
                        B[r * 3 + k] = A[r * 216 + k * 24 + T.min(x, 5) + 6] + A[r * 216 + k * 24 + T.min(x, 5) + 12]

    lines = [line.strip() for line in text_of(Module).splitlines()]
    inner = lines.index(next(line for line in lines if line.startswith("for k")))
    # min(x, 5) + 6 is outside, the rows in the loop over r, the rest in the loop over k. B's address is a separate sum.
    assert sum("T.min(" in line for line in lines) == 1
    assert (
        lines.index(next(line for line in lines if "* 216" in line))
        < inner
        < lines.index(next(line for line in lines if "* 24" in line))
    )
    assert sum("* 216" in line for line in lines) == sum("* 24" in line for line in lines) == 1, lines
    assert any(re.search(r"A\[(\w+)\] \+ A\[\1 \+ 6\]", line) for line in lines)


def test_what_is_used_after_a_loop_is_declared_after_it() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                for r in range(8):
                    B[x * 7 + r] = A[x * 7 + r]
                B[x * 100 + 1] = T.float32(0)
                B[x * 100 + 2] = T.float32(0)

    lines = [line.strip() for line in text_of(Module).splitlines()]
    loop = next(i for i, line in enumerate(lines) if line.startswith("for r"))
    assert (
        next(i for i, line in enumerate(lines) if "* 7" in line)
        < loop
        < next(i for i, line in enumerate(lines) if "* 100" in line)
    )


def test_what_is_used_behind_a_mark_is_declared_before_it() -> None:
    """TVM unrolls the surrounding loop: a variable of the first iteration would be used in the others, after the mark
    that declared theirs.
    """

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                for r in T.unroll(3):
                    with T.attr(T.int32(0), "pragma_romou_autobroadcast", T.int32(1)):
                        B[x * 7 + r * 64] = A[x * 7 + r * 64]
                    B[x * 7 + r * 64 + 1] = A[x * 7 + r * 64 + 2]

    unrolled = tirx.transform.UnrollLoop()(eliminate_addresses(Module))["main"].script()
    lines = [line.strip() for line in unrolled.splitlines() if "A[" in line]
    used = [re.search(r"A\[(\w+)", line)[1] for line in lines]
    assert len(used) == 6
    # Two by two the same variable, another one in each iteration.
    assert used[::2] == used[1::2]
    assert len(set(used)) == 3


def test_conditions_that_do_not_vary_are_decided_outside() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                for y in range(5):
                    for k in range(3):
                        B[x * 16 + y * 3 + k] = T.if_then_else(
                            x + y >= 1 and x + y < 9 and k + y < 6, A[x + y * 16 + k], T.float32(0)
                        )

    lines = [line.strip() for line in text_of(Module).splitlines()]
    (decided,) = (i for i, line in enumerate(lines) if line.startswith("inside"))
    assert (
        next(i for i, line in enumerate(lines) if line.startswith("for y"))
        < decided
        < next(i for i, line in enumerate(lines) if line.startswith("for k"))
    )
    # x + y is compared twice and added once.
    assert lines[decided].count(">=") == lines[decided].count("<") == 1


def test_what_depends_on_memory_stays_where_it_is() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((4096,), "float32"), J: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                for r in range(8):
                    B[x * 8 + r] = A[J[x * 8 + r] * 4 + r]

    assert re.search(r"A\[J\[\w+\] \* 4 \+ r\]", text_of(Module))


def test_a_vector_address_stays_a_multiple_of_its_length() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                B[x * 4 + 32 : x * 4 + 36] = A[T.Ramp(x * 12 + 8, 1, 4)]
                B[x * 4 + 64 : x * 4 + 68] = A[T.Ramp(x * 12 + 20, 1, 4)]

    text = text_of(Module)
    assert re.search(r"T.Ramp\(\w+ \* 4, 1, 4\)", text)
    assert re.search(r"T.Ramp\(\(\w+ \+ 3\) \* 4, 1, 4\)", text)


@given(divisor=st.integers(2, 5000), high=st.integers(1, 2**31 - 1))
def test_quotients_are_exact(divisor: int, high: int) -> None:
    n = tirx.Var("n", "int32")
    found = _quotient(n, divisor, high)
    edges = [
        e
        for m in (0, 1, high // divisor, high // divisor // 2)
        for e in (m * divisor - 1, m * divisor, m * divisor + 1)
        if 0 <= e <= high
    ]
    values = np.unique(
        np.array([0, high, *edges, *np.random.default_rng(divisor).integers(0, high + 1, 50)], dtype=np.int64)
    )
    if isinstance(found, tirx.Div):
        assert divisor & (divisor - 1), "powers of two are shifts"
        return
    shift = int(found.b)
    multiplier = int(found.a.b) if isinstance(found.a, tirx.Mul) else 1
    assert int(values.max()) * multiplier < 2**31, "the product must fit 32 bits"
    assert np.array_equal((values * multiplier) >> shift, values // divisor)


def test_small_ranges_need_no_division() -> None:
    n = tirx.Var("n", "int32")
    for divisor in range(1, 300):
        assert not isinstance(_quotient(n, divisor, 1000), tirx.Div), divisor
