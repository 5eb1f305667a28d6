"""Registers of fp16 vectors between basic blocks, where Mesa's compilers for Mali give each lane a register."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm.script import tirx as T

from romou.compiler.operators.analysis.registers import estimate_registers
from romou.compiler.operators.analysis.registers.liveness import merged_values
from romou.compiler.operators.analysis.registers.reader import Reader


def sums(dtype: str, *, steps: int) -> float:
    """Return the registers of three sums of vectors. A loop of more than 32 steps is not unrolled."""
    vector = f"{dtype}x4"

    @T.prim_func(s_tir=True, private=True)
    def kernel(a: T.Buffer((4096,), vector), b: T.Buffer((3,), vector)) -> None:
        acc = T.alloc_buffer((3,), vector, scope="local")
        acc[0] = a[0]
        acc[1] = a[1]
        acc[2] = a[2]
        for step in range(steps):
            acc[0] = acc[0] + a[step]
            acc[1] = acc[1] + a[step + 1]
            acc[2] = acc[2] + a[step + 2]
        b[0] = acc[0]
        b[1] = acc[1]
        b[2] = acc[2]

    return float(estimate_registers(kernel).as_written)


def loaded(dtype: str, *, is_in_branch: bool) -> float:
    """Return the registers of three vectors that are loaded in a branch, or before it, and stored behind it."""
    vector = f"{dtype}x4"

    @T.prim_func(s_tir=True, private=True)
    def inside(a: T.Buffer((64,), vector), b: T.Buffer((64,), vector)) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        ahead = T.alloc_buffer((3,), vector, scope="local")
        if i < 32:
            ahead[0] = a[0]
            ahead[1] = a[1]
            ahead[2] = a[2]
        b[0] = ahead[0]
        b[1] = ahead[1]
        b[2] = ahead[2]

    @T.prim_func(s_tir=True, private=True)
    def before(a: T.Buffer((64,), vector), b: T.Buffer((64,), vector)) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        ahead = T.alloc_buffer((3,), vector, scope="local")
        ahead[0] = a[0]
        ahead[1] = a[1]
        ahead[2] = a[2]
        if i < 32:
            b[4] = a[4]
        b[0] = ahead[0]
        b[1] = ahead[1]
        b[2] = ahead[2]

    return float(estimate_registers(inside if is_in_branch else before).as_written)


@pytest.mark.parametrize("of", [lambda kind: sums(kind, steps=64), lambda kind: loaded(kind, is_in_branch=True)])
def test_a_lane_has_a_register_where_two_paths_meet(of: Callable[[str], float]) -> None:
    # Three vectors of fp16 take 6 registers packed, and 12 by lane. In fp32 they take 12.
    assert 3 * 4 <= of("float16") <= of("float32")


def test_lanes_are_packed_elsewhere() -> None:
    assert sums("float16", steps=4) <= 3 * 2 + 4
    assert loaded("float16", is_in_branch=False) <= 3 * 2 + 4


def test_sums_of_a_loop_keep_a_register_for_each_lane_beside_what_an_iteration_loads() -> None:
    @T.prim_func(s_tir=True, private=True)
    def kernel(a: T.Buffer((4096,), "float16x4"), b: T.Buffer((3,), "float16x4")) -> None:
        acc = T.alloc_buffer((3,), "float16x4", scope="local")
        loaded = T.alloc_buffer((3,), "float16x4", scope="local")
        acc[0] = a[0]
        acc[1] = a[1]
        acc[2] = a[2]
        for step in range(64):
            acc[0] = acc[0] + a[step]
            acc[1] = acc[1] + a[step + 1]
            acc[2] = acc[2] + a[step + 2]
            loaded[0] = a[step + 8]
            loaded[1] = a[step + 9]
            loaded[2] = a[step + 10]
            acc[0] = acc[0] + loaded[0]
            acc[1] = acc[1] + loaded[1]
            acc[2] = acc[2] + loaded[2]
        b[0] = acc[0]
        b[1] = acc[1]
        b[2] = acc[2]

    # Three sums by lane, three packed vectors.
    assert estimate_registers(kernel).as_written >= 3 * 4 + 3 * 2


def sums_of_guarded(*, is_lane: bool) -> float:
    """Return the registers of three fp16 sums across a branch, of vectors loaded in a branch or of their lanes."""

    @T.prim_func(s_tir=True, private=True)
    def vectors(a: T.Buffer((64,), "float16x4"), b: T.Buffer((64,), "float16x4")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        acc = T.alloc_buffer((3,), "float16x4", scope="local")
        ahead = T.alloc_buffer((3,), "float16x4", scope="local")
        if i < 32:
            ahead[0] = a[0]
            ahead[1] = a[1]
            ahead[2] = a[2]
        acc[0] = ahead[0] + a[3]
        acc[1] = ahead[1] + a[3]
        acc[2] = ahead[2] + a[3]
        if i < 16:
            b[4] = a[4]
        b[0] = acc[0]
        b[1] = acc[1]
        b[2] = acc[2]

    @T.prim_func(s_tir=True, private=True)
    def lanes(a: T.Buffer((64,), "float16x4"), b: T.Buffer((64,), "float16x4")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        acc = T.alloc_buffer((3,), "float16x4", scope="local")
        ahead = T.alloc_buffer((3,), "float16x4", scope="local")
        if i < 32:
            ahead[0] = a[0]
            ahead[1] = a[1]
            ahead[2] = a[2]
        acc[0] = T.Broadcast(T.Shuffle([ahead[0]], [0]), 4) + a[3]
        acc[1] = T.Broadcast(T.Shuffle([ahead[1]], [0]), 4) + a[3]
        acc[2] = T.Broadcast(T.Shuffle([ahead[2]], [0]), 4) + a[3]
        if i < 16:
            b[4] = a[4]
        b[0] = acc[0]
        b[1] = acc[1]
        b[2] = acc[2]

    func = lanes if is_lane else vectors
    reader = Reader(func.body, is_mali=True)
    unpacked, merged = reader.values.unpacked, merged_values(reader.code)
    sums = {value for item in reader.code if getattr(item, "kind", "") == "value" for value in item.defines}
    return sum(unpacked[value] if value in merged else reader.values.sizes[value] for value in sums)


def test_sums_of_guarded_vectors_have_a_register_for_each_lane_and_sums_of_a_lane_have_not() -> None:
    assert sums_of_guarded(is_lane=False) == 3 * 4
    assert sums_of_guarded(is_lane=True) == 3 * 2
