"""Properties of the register estimate on small kernels: bounds, and more sums or loads need no fewer registers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.script import tirx as T

from romou.compiler.operators.analysis.registers import RegisterEstimate, address_registers, estimate_registers

COUNTS = st.integers(1, 12)
REGISTERS = st.integers(1, 192)


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


@settings(max_examples=20, deadline=None)
@given(count=COUNTS)
def test_sums_are_live_until_the_end(count: int) -> None:
    estimate = accumulators(count, 4)
    assert estimate.live >= 4 * count
    assert estimate.as_written >= 4 * count


@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 11), loads=st.integers(1, 4))
def test_more_sums_need_no_fewer_registers(count: int, loads: int) -> None:
    assert accumulators(count, loads).as_written <= accumulators(count + 1, loads).as_written


def test_a_kernel_without_values_needs_nothing() -> None:
    @T.prim_func(s_tir=True, private=True)
    def empty(a: T.Buffer((1,), "float32")) -> None:
        T.evaluate(0)

    assert estimate_registers(empty) == RegisterEstimate(0.0, 0.0, 0.0)


@given(live=REGISTERS, written=st.integers(0, 400))
def test_allocated_is_at_least_live_and_needed_at_most(live: int, written: int) -> None:
    estimate = RegisterEstimate(float(live), float(written))
    assert estimate.needed <= estimate.live <= estimate.allocated
    assert estimate.error(estimate.allocated) == 0


@given(live=st.lists(REGISTERS, min_size=1, max_size=8))
def test_arrays_are_estimated_as_single_kernels_are(live: list[int]) -> None:
    many = RegisterEstimate(np.asarray(live, float), np.asarray(live, float) * 2)
    assert list(many.allocated) == [RegisterEstimate(float(n), float(n) * 2).allocated for n in live]


@given(loads=st.integers(0, 100), is_image=st.booleans())
def test_addresses_of_more_loads_take_no_fewer_registers(loads: int, is_image: bool) -> None:
    assert address_registers(loads, is_image=is_image) <= address_registers(loads + 1, is_image=is_image)
    assert address_registers(0, is_image=is_image) == 0
    assert address_registers(10**6, is_image=is_image) == address_registers(10**5, is_image=is_image)
