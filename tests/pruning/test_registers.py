"""Registers for loads ahead of their use: addresses add up in straight code, loops that stay, barriers and conditions end it; the script's statistics."""

from __future__ import annotations

import bench_registers
import numpy as np
import pytest
from tvm.script import tirx as T

from romou.inspection.estimates import RegisterUse, register_use


def ahead_of(trips: int, loads: int, *, has_barrier: bool = False) -> float:
    """Of a loop that adds up `loads` numbers a turn."""

    @T.prim_func(s_tir=True, private=True)
    def once(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")) -> None:
        for i in range(trips):
            b[i] = a[i] * T.float32(2)

    @T.prim_func(s_tir=True, private=True)
    def twice(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")) -> None:
        for i in range(trips):
            b[i] = a[i] * a[i + 2048]

    @T.prim_func(s_tir=True, private=True)
    def with_barrier(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")) -> None:
        for i in range(trips):
            b[i] = a[i] * a[i + 2048]
            T.evaluate(T.tvm_storage_sync("shared"))

    return float(register_use(with_barrier if has_barrier else (once, twice)[loads - 1]).ahead)


def test_addresses_in_straight_code_add_up() -> None:
    # A pointer of 64 bits for each load and for the store.
    assert ahead_of(1, 1) == 4
    assert ahead_of(1, 2) == 6


def vectors_ahead(turns: int, size: int) -> float:
    """Of a loop, unrolled, that copies from local memory and from a buffer, vectors of four each."""

    @T.prim_func(s_tir=True, private=True)
    def copy(a: T.Buffer((4096,), "float32x4"), b: T.Buffer((4096,), "float32x4")) -> None:
        staged = T.alloc_buffer((size,), "float32x4", scope="shared")
        for i in range(turns):
            b[i] = a[i] + staged[i]

    return float(register_use(copy).ahead)


def test_values_of_eight_loads_are_under_way() -> None:
    assert vectors_ahead(1, 64) == 2 * 2 + 2
    assert vectors_ahead(8, 64) == 8 * (2 * 2 + 2)
    assert vectors_ahead(16, 64) == 16 * 2 * 2 + 8 * 2


def test_an_offset_does_not_reach_all_of_a_large_local_array() -> None:
    # 4096 bytes are 256 vectors.
    assert vectors_ahead(16, 256) == vectors_ahead(16, 64)
    assert vectors_ahead(16, 257) == vectors_ahead(16, 64) + 16


def test_a_short_loop_of_many_operations_is_not_unrolled() -> None:
    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.Buffer((4096,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        for i in range(32):
            b[i] = a[i] * a[i + 100] + a[i + 200] * a[i + 300] + a[i + 400] * a[i + 500]

    assert register_use(sums).ahead == (6 + 1) * 2


def test_a_compiler_gets_by_with_less_than_it_takes() -> None:
    use = RegisterUse(np.asarray([50, 50]), np.asarray([40, 400]))
    assert np.all(use.needed < use.allocated)
    # What is moved ahead counts, however much it is.
    assert use.needed[1] / use.needed[0] == pytest.approx(use.allocated[1] / use.allocated[0])


def test_short_loops_are_unrolled_and_long_ones_are_not() -> None:
    assert ahead_of(8, 1) == pytest.approx(8 * ahead_of(1, 1))
    assert ahead_of(1000, 1) == pytest.approx(ahead_of(1, 1))


def test_no_load_passes_a_barrier() -> None:
    assert ahead_of(8, 2, has_barrier=True) == pytest.approx(ahead_of(1, 2))


def test_rank_correlation() -> None:
    values = np.asarray([1, 2, 2, 3])
    assert list(bench_registers.ranks(values)) == [0, 1.5, 1.5, 3]
    assert bench_registers.rank_correlation(values, values**3) == pytest.approx(1)
    assert bench_registers.rank_correlation(values, -values) == pytest.approx(-1)


def test_random_kernels_cover_all_operators() -> None:
    kernels = list(bench_registers.random_kernels(len(bench_registers.OPERATORS), seed=0))
    assert len({name for name, _, _ in kernels}) == len(bench_registers.OPERATORS)
    assert all(usage.needed_registers <= usage.registers for _, _, usage in kernels)
