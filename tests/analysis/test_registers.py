"""Live registers of small kernels: where a value is live, what loads ahead add, and bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx
from tvm.script import tirx as T

import bench_registers
from romou.compiler.operators.analysis.registers import (
    RegisterEstimate,
    address_registers,
    estimate_registers,
    is_kept_on_mali,
    is_unrolled,
)
from support.suite.exhaustive import exhaustive

# Registers of a vector of four fp32 numbers, and what a load of a buffer or of local memory adds ahead.
VECTOR, AHEAD = 4, 1
REGISTERS = st.integers(1, 192)


def as_written(func: tirx.PrimFunc) -> float:
    return float(estimate_registers(func).as_written)


def ahead(func: tirx.PrimFunc) -> float:
    """Return the registers that loads ahead add."""
    estimate = estimate_registers(func)
    return float(estimate.live - estimate.as_written)


def sum_of(loads: int, *, iterations: int = 1, is_guarded: bool = False) -> tirx.PrimFunc:
    """Return a sum of `loads` vectors in a buffer, or of that many in each iteration of a loop."""

    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for i in range(iterations):
            for j in range(loads):
                acc[0] = acc[0] + a[i * 7 + j * 2048]
        b[0] = acc[0]

    @T.prim_func(s_tir=True, private=True)
    def guarded(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for j in range(loads):
            if j > 3:
                acc[0] = acc[0] + a[j * 2048]
        b[0] = acc[0]

    return guarded if is_guarded else sums


def test_a_sum_is_live_with_one_loaded_vector_and_the_counters() -> None:
    assert as_written(sum_of(8)) == as_written(sum_of(16)) == VECTOR + VECTOR + 2


def test_each_load_ahead_adds_registers_and_unrolled_iterations_have_their_own() -> None:
    assert ahead(sum_of(12)) - ahead(sum_of(8)) == 4 * AHEAD
    assert ahead(sum_of(8, iterations=3)) == ahead(sum_of(24)) == 24 * AHEAD


def test_loops_that_stay_and_branches_end_a_block() -> None:
    assert ahead(sum_of(8, iterations=1000)) == ahead(sum_of(8))
    assert ahead(sum_of(8, is_guarded=True)) == AHEAD


def test_values_are_live_through_the_loops_that_read_them() -> None:
    @T.prim_func(s_tir=True, private=True)
    def kept(a: T.Buffer((64,), "float32x4"), b: T.Buffer((64,), "float32x4")) -> None:
        before = T.alloc_buffer((3,), "float32x4", scope="local")
        inside = T.alloc_buffer((5,), "float32x4", scope="local")
        after = T.alloc_buffer((9,), "float32x4", scope="local")
        for i in range(3):
            before[i] = a[i]
        for j in range(64):
            b[j] = before[0]
            inside[0] = a[j]
            b[j] = inside[0]
        for k in range(9):
            after[k] = a[k]
        b[0] = after[0]

    # The last array, its counter, and nothing of the other two.
    assert as_written(kept) == 9 * VECTOR + 1

    @T.prim_func(s_tir=True, private=True)
    def together(a: T.Buffer((64,), "float32x4"), b: T.Buffer((64,), "float32x4")) -> None:
        before = T.alloc_buffer((3,), "float32x4", scope="local")
        inside = T.alloc_buffer((5,), "float32x4", scope="local")
        for i in range(3):
            before[i] = a[i]
        for j in range(64):
            b[j] = before[0]
            inside[0] = a[j]
            b[j] = inside[0]

    # `before` is read early in each iteration, so it is live until the last one ends.
    assert as_written(together) == (3 + 5) * VECTOR + 1


@pytest.mark.parametrize(("iterations", "registers"), [(4, 2), (64, 4)])
def test_lanes_of_fp16_that_a_loop_carries_have_a_register_each_on_mali(iterations: int, registers: int) -> None:
    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.Buffer((65536,), "float16x4"), b: T.Buffer((8,), "float16x4")) -> None:
        acc = T.alloc_buffer((8,), "float16x4", scope="local")
        for i in range(8):
            acc[i] = T.Broadcast(T.float16(0), 4)
        for j in range(iterations):
            acc[0] = acc[0] + a[j]
        for i in range(8):
            b[i] = acc[i]

    # The loaded vector takes two, the counter one.
    assert as_written(sums) == 8 * registers + 2 + 1


def accumulators(count: int, loads: int) -> RegisterEstimate:
    """Return the estimate for `count` sums of vectors, each of `loads` products of a separate load and a shared one."""

    @T.prim_func(s_tir=True, private=True)
    def sums(
        a: T.Buffer((65536,), "float32x4"), w: T.Buffer((4096,), "float32x4"), b: T.Buffer((16,), "float32x4")
    ) -> None:
        acc = T.alloc_buffer((count,), "float32x4", scope="local")
        for i in range(count):
            acc[i] = T.Broadcast(T.float32(0), 4)
        for j in range(loads):
            for i in range(count):
                acc[i] = acc[i] + a[i * 2048 + j] * w[j]
        for i in range(count):
            b[i] = acc[i]

    return estimate_registers(sums)


@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 11), loads=st.integers(1, 4))
def test_sums_are_live_until_the_end_and_more_need_no_fewer_registers(count: int, loads: int) -> None:
    fewer, more = accumulators(count, loads), accumulators(count + 1, loads)
    assert VECTOR * count <= fewer.as_written <= more.as_written
    assert fewer.live <= more.live


def test_a_kernel_without_values_needs_nothing() -> None:
    @T.prim_func(s_tir=True, private=True)
    def empty(a: T.Buffer((1,), "float32")) -> None:
        T.evaluate(0)

    assert estimate_registers(empty) == RegisterEstimate(0.0, 0.0)


@given(live=st.lists(REGISTERS, min_size=1, max_size=8))
def test_arrays_are_estimated_as_single_kernels_are(live: list[int]) -> None:
    many = RegisterEstimate(np.asarray(live, float))
    assert list(many.needed) == [RegisterEstimate(float(n)).needed for n in live]
    assert np.all(many.needed <= many.live)
    assert np.all(many.error(many.live) == 0)


@given(loads=st.integers(0, 100), is_image=st.booleans())
def test_addresses_of_more_loads_take_no_fewer_registers(loads: int, is_image: bool) -> None:
    assert address_registers(loads, is_image=is_image) <= address_registers(loads + 1, is_image=is_image)
    assert address_registers(0, is_image=is_image) == 0
    assert address_registers(10**6, is_image=is_image) == address_registers(10**5, is_image=is_image)


def test_mali_unrolls_loops_of_vectors_that_adreno_keeps() -> None:
    # Each iteration has 32 products by lane and 16 loads, or 8 products of vectors.
    assert not is_unrolled(9, 32, 16)
    assert not is_kept_on_mali(9, 8, 16, is_fused=True)
    assert is_kept_on_mali(32, 8, 16, is_fused=True)


@exhaustive
def test_random_kernels_cover_all_operators() -> None:
    kernels = list(bench_registers.random_kernels(len(bench_registers.OPERATORS), seed=0))
    assert len({name for name, _, _ in kernels}) == len(bench_registers.OPERATORS)
    assert all(usage.needed_registers <= usage.registers for _, _, usage in kernels)
