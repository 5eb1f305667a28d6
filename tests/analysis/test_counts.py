"""Operations inside loops, in lowered TIR and in text."""

from __future__ import annotations

import pytest
import tvm
from tvm.script import tirx as T

from romou.compiler.operators.analysis.counts import (
    IntegerOperations,
    TextOperations,
    count_integer_operations,
    count_text_operations,
)


@T.prim_func(s_tir=True)
def one_loop(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
    for i in range(8):
        b[i * 4 + T.floormod(i, 3)] = a[i] * T.float32(2) + T.float32(1)


@T.prim_func(s_tir=True)
def nested(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")) -> None:
    for x in T.thread_binding(16, thread="threadIdx.x"):
        first: T.let[T.int32] = x * 256
        for i in range(4):
            row: T.let[T.int32] = first + i * 64
            for j in range(8):
                b[row + j] = a[T.floordiv(j, 3)]


def test_operations_are_counted_inside_loops_and_weighted_by_trips() -> None:
    assert count_integer_operations(one_loop) == IntegerOperations(
        in_loops=3, in_loops_weighted=24, divisions_in_loops=1
    )
    # In the loop over i: an addition and a multiplication; in the loop over j: an addition and a division. The
    # work-item's own x * 256 is outside.
    assert count_integer_operations(nested) == IntegerOperations(
        in_loops=4, in_loops_weighted=2 * 4 + 2 * 32, divisions_in_loops=1
    )


def test_unrolled_and_vector_loops() -> None:
    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        for i in T.unroll(2):
            for j in T.vectorized(4):
                b[i * 4 + j] = a[i * 4 + j]

    # As written, the loop over i has two multiplications and two additions. Unrolled, nothing is left.
    assert count_integer_operations(func).in_loops == 4
    lowered = tvm.tirx.transform.UnrollLoop()(tvm.tirx.transform.VectorizeLoop()(tvm.IRModule({"main": func})))["main"]
    assert count_integer_operations(lowered) == IntegerOperations(0, 0, 0)


@pytest.mark.parametrize(
    ("text", "divisions", "modulos"),
    [
        ("int a = x / 3; for (int i = 0; i < n; ++i) { b[i / 4] = i % 5 % 2; } a = a % 7;", 1, 2),
        ("for (int i = n / 2; i < n / 4; ++i) a += i;", 1, 0),
        ("for (;;) if (x) { y = x / 2; } z = 1 / 2;", 1, 0),
        ("for (int i = 0; i < 4; ++i) for (int j = 0; j < f(i); ++j) { a = i / j; { b = i / j; } } c = 1 % 2;", 2, 0),
        ("for (;;) if (x) { a; } else { b / 2; } c / 2;", 1, 0),
        ("for (;;) if (x) a; else if (y) b % 2; else b / 2; c / 2;", 1, 1),
        ("while (x % 2) { x = x / 3; } x = x / 5;", 1, 1),
        ("// for (;;) a / b\n#define D a / b\nfor (;;) { /* a / b */ c; }", 0, 0),
        ("__kernel void f() { int s = 1 / 2; } for (;;) { s % 2; }", 0, 1),
        ("", 0, 0),
        ("} for (", 0, 0),
    ],
)
def test_text(text: str, divisions: int, modulos: int) -> None:
    assert count_text_operations(text) == TextOperations(divisions, modulos)
