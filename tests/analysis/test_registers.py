"""Registers by a compiler's order of loads and arithmetic: addresses ahead, eight loads in flight,
the registers of loops, guards and barriers, and the script's statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

import bench_registers
from romou.base.space import Config
from romou.compiler.operators.analysis.registers import RegisterEstimate, estimate_registers
from romou.compiler.operators.analysis.registers.instructions import Code, Loop
from romou.compiler.operators.analysis.registers.reader import Reader
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import conv, task_of
from support.suite.exhaustive import exhaustive


def live(func: tirx.PrimFunc) -> float:
    return float(estimate_registers(func).live)


def sum_of(loads: int, *, has_barrier: bool = False, turns: int = 1) -> float:
    """Return the registers of a sum of `loads` vectors in a buffer, far apart. Each iteration of a
    loop adds that many.
    """

    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for i in range(turns):
            for j in range(loads):
                acc[0] = acc[0] + a[i * 7 + j * 2048]
        b[0] = acc[0]

    @T.prim_func(s_tir=True, private=True)
    def with_barriers(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for j in range(loads):
            T.evaluate(T.tvm_storage_sync("shared"))
            acc[0] = acc[0] + a[j * 2048]
        b[0] = acc[0]

    return live(with_barriers if has_barrier else sums)


def test_addresses_are_computed_ahead_and_loads_of_a_buffer_follow_each_other() -> None:
    # Each further load adds its address, and none its vector: it comes when the one before has been added.
    assert sum_of(12) - sum_of(8) == 4 * 2
    assert sum_of(16) - sum_of(12) == 4 * 2
    # After that many addresses the first load has arrived, and its vector is added in between.
    assert sum_of(30) - sum_of(20) < 10 * 2


def test_in_the_order_of_the_text_a_load_has_registers_when_it_is_used() -> None:
    """Mali's compiler moves no load ahead: a sum needs itself, one load and its address, however many loads follow."""

    def as_written(loads: int) -> float:
        @T.prim_func(s_tir=True, private=True)
        def sums(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
            acc = T.alloc_buffer((1,), "float32x4", scope="local")
            acc[0] = T.Broadcast(T.float32(0), 4)
            for j in range(loads):
                acc[0] = acc[0] + a[j * 2048]
            b[0] = acc[0]

        return float(estimate_registers(sums).as_written)

    assert as_written(16) == as_written(8) < sum_of(8)
    assert 8 <= as_written(8) <= 8 + 2


def texel(image: tirx.Var, place: tirx.Expr) -> tirx.Expr:
    return tirx.call_intrin("float32x4", "tirx.texture2d_load", image, place, place * 3, 0, 128, tirx.Ramp(0, 1, 4))


def sum_of_texels(count: int) -> float:
    """Return the registers of a sum of `count` texels of an image."""

    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.handle("float32", "global.texture"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for j in range(count):
            acc[0] = acc[0] + texel(a, j)
        b[0] = acc[0]

    return live(sums)


def test_eight_loads_of_an_image_are_under_way() -> None:
    # Each with its vector, and beyond eight with the three coordinates of its address.
    assert sum_of_texels(8) - sum_of_texels(4) == 4 * 4
    assert sum_of_texels(16) - sum_of_texels(12) == 4 * 3


def sum_of_vectors(*, is_vector: bool) -> float:
    """Return the registers of eight vectors of two numbers, in an array of vectors or of numbers."""

    @T.prim_func(s_tir=True, private=True)
    def vectors(a: T.Buffer((65536,), "float32x2"), b: T.Buffer((1,), "float32x2")) -> None:
        acc = T.alloc_buffer((1,), "float32x2", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 2)
        for j in range(8):
            acc[0] = acc[0] + a[j * 2048]
        b[0] = acc[0]

    @T.prim_func(s_tir=True, private=True)
    def numbers(a: T.Buffer((65536,), "float32"), b: T.Buffer((1,), "float32x2")) -> None:
        acc = T.alloc_buffer((1,), "float32x2", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 2)
        for j in range(8):
            acc[0] = acc[0] + a[T.Ramp(j * 4096, 1, 2)]
        b[0] = acc[0]

    return live(vectors if is_vector else numbers)


def test_numbers_of_a_vector_that_is_none_in_memory_have_addresses_of_their_own() -> None:
    # Eight more addresses of two registers, except for the one that is loaded immediately.
    assert sum_of_vectors(is_vector=False) - sum_of_vectors(is_vector=True) >= 7 * 2


def stored(count: int) -> float:
    """Return the registers of a vector that is loaded and added to `count` others, which are stored far apart."""

    @T.prim_func(s_tir=True, private=True)
    def stores(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((65536,), "float32x4")) -> None:
        for j in range(count):
            b[j * 2048] = a[j * 2048] * T.Broadcast(T.float32(2), 4)

    return live(stores)


def test_addresses_of_stores_do_not_wait_for_what_they_write() -> None:
    assert stored(8) - stored(4) == 4 * 2 * 2


def copied(*, is_copy: bool) -> float:
    """Return the registers of four vectors behind a barrier that are copied before they are used, or not."""

    @T.prim_func(s_tir=True, private=True)
    def copies(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((65536,), "float32x4")) -> None:
        texels = T.alloc_buffer((4,), "float32x4", scope="local")
        first: T.let[T.float32x4] = a[0]
        second: T.let[T.float32x4] = a[1000]
        texels[0] = first
        texels[1] = second
        T.evaluate(T.tvm_storage_sync("shared"))
        b[0] = texels[0] * first
        b[1] = texels[1] * second

    @T.prim_func(s_tir=True, private=True)
    def none(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((65536,), "float32x4")) -> None:
        first: T.let[T.float32x4] = a[0]
        second: T.let[T.float32x4] = a[1000]
        T.evaluate(T.tvm_storage_sync("shared"))
        b[0] = first * first
        b[1] = second * second

    return live(copies if is_copy else none)


def test_copies_take_no_registers() -> None:
    assert copied(is_copy=True) == copied(is_copy=False)


def test_short_loops_are_unrolled_and_long_ones_are_not() -> None:
    # In a loop that is not unrolled, the address of the store behind it is not computed ahead. Its counter is live as
    # long as the loop runs.
    assert sum_of(1, turns=20) == sum_of(20)
    assert sum_of(8, turns=1000) == sum_of(8) - 2 + 1


def test_a_short_loop_of_many_operations_is_not_unrolled() -> None:
    assert sum_of(20, turns=32) == sum_of(20) - 2 + 1


def test_a_product_and_a_sum_that_are_joined_late_fill_a_loop_sooner() -> None:
    """Mesa's compiler for Adreno 660 keeps this loop of rows with `mad` and unrolls it with `fma`."""
    adreno = Target("opencl -device=adreno660")
    task = task_of(conv(120, (28, 28), 120, (5, 5), padding=(2, 2, 2, 2), groups=120)).with_free_images()
    tile = {"pixels": "rows", "data": "image", "weight": "image", "tile_o": 1, "tile_h": 1, "tile_w": 7}

    def live_with(spelling: str) -> float:
        config = Config({**task.default_config(adreno), **tile, "unroll": "lanes", "multiply_add": spelling})
        (kernel,) = inspect_function(task.schedule(config, adreno)["main"], adreno, config=config)
        return float(kernel.registers.live)

    assert live_with("fma") > 1.5 * live_with("mad")


@pytest.mark.parametrize("spelling", ["mad", "fma", "plain"])
def test_a_loop_inside_another_one_has_mesas_limit(spelling: str) -> None:
    """Mesa's compiler for Adreno 630 keeps the loop over seven columns for 2 x 3 pixels (76 registers), and unrolls it
    for four (128).
    """
    adreno = Target("opencl -device=adreno640")
    task = task_of(conv(64, (17, 17), 96, (1, 7), padding=(0, 3, 0, 3))).with_free_images()
    images = dict.fromkeys(("data", "weight", "output"), "image")
    knobs = {**images, "pixels": "rows", "tile_o": 1, "wg_o": 8, "wg_w": 8, "split_k": 1, "unroll": "lanes"}

    def live_with(tile_h: int, tile_w: int) -> float:
        tile = {"tile_h": tile_h, "tile_w": tile_w, "multiply_add": spelling}
        config = Config({**task.default_config(adreno), **knobs, **tile})
        (kernel,) = inspect_function(task.schedule(config, adreno)["main"], adreno, config=config)
        return float(kernel.registers.live)

    assert live_with(2, 3) < 100
    assert live_with(1, 4) > 128


def test_no_load_passes_a_barrier_and_all_addresses_do() -> None:
    # Without barriers the first vectors are added while the last addresses are computed.
    assert sum_of(30, has_barrier=True) - sum_of(20, has_barrier=True) == 10 * 2
    assert sum_of(30, has_barrier=True) > sum_of(30)


def local_sum(size: int) -> float:
    """Return the registers of a sum of vectors in local memory, among the last of `size` vectors."""

    @T.prim_func(s_tir=True, private=True)
    def sums(b: T.Buffer((64,), "float32x4")) -> None:
        staged = T.alloc_buffer((size,), "float32x4", scope="shared")
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        for i in range(64):
            acc[0] = staged[i + (size - 1)]
            acc[0] = acc[0] + staged[i + (size - 2)]
            acc[0] = acc[0] + staged[i + (size - 3)]
            acc[0] = acc[0] + staged[i + (size - 4)]
            acc[0] = acc[0] + staged[i + (size - 5)]
            acc[0] = acc[0] + staged[i + (size - 6)]
            acc[0] = acc[0] + staged[i + (size - 7)]
            acc[0] = acc[0] + staged[i + (size - 8)]
            acc[0] = acc[0] + staged[i + (size - 9)]
            acc[0] = acc[0] + staged[i + (size - 10)]
            b[i] = acc[0]

    return live(sums)


def test_an_offset_does_not_reach_all_of_a_large_local_array() -> None:
    # 4096 bytes are 256 vectors. Beyond, each of the ten loads has an address. Two addresses are used when two vectors
    # have arrived.
    assert local_sum(256) == local_sum(64)
    assert local_sum(300) == local_sum(64) + 8


def test_loads_of_local_memory_follow_each_other() -> None:
    # Two vectors at a time: vectors that have arrived are added before the next one is loaded. The third is the sum.
    assert local_sum(64) == 3 * 4


def sum_of_turns(each: int) -> float:
    """Return the registers of a sum of vectors in local memory, `each` vectors apart from iteration to iteration of an
    unrolled loop.
    """

    @T.prim_func(s_tir=True, private=True)
    def sums(b: T.Buffer((64,), "float32x4")) -> None:
        staged = T.alloc_buffer((1024,), "float32x4", scope="shared")
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        for i in range(64):
            acc[0] = T.Broadcast(T.float32(0), 4)
            for j in range(16):
                at: T.let[T.int32] = i + j * each
                acc[0] = acc[0] + staged[at]
            b[i] = acc[0]

    return live(sums)


def test_an_offset_does_not_reach_the_later_turns_of_an_unrolled_loop() -> None:
    # 16 iterations of 16 vectors of 16 bytes are just within reach. At twice the distance, the last eight iterations
    # are not.
    assert sum_of_turns(16) == sum_of_turns(1)
    assert sum_of_turns(32) == sum_of_turns(1) + 8


def guarded(*, parts: int, turns: int) -> float:
    """Return the registers of a loop that adds up its loads under a condition of one or two parts."""

    @T.prim_func(s_tir=True, private=True)
    def one(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for i in range(turns):
            acc[0] = acc[0] + T.if_then_else(i > 3, a[i], T.Broadcast(T.float32(0), 4))
        b[0] = acc[0]

    @T.prim_func(s_tir=True, private=True)
    def two(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for i in range(turns):
            acc[0] = acc[0] + T.if_then_else(i > 3 and i < 50, a[i], T.Broadcast(T.float32(0), 4))
        b[0] = acc[0]

    return live((one, two)[parts - 1])


def test_what_a_condition_of_two_parts_skips_keeps_its_registers() -> None:
    assert guarded(parts=2, turns=1000) == guarded(parts=1, turns=1000) + 4
    # Loads under conditions stay in their branches, unrolled or not.
    assert guarded(parts=1, turns=16) == guarded(parts=1, turns=8)


def products(kind: str) -> float:
    """Return the registers of the products of four vectors with one lane each, with a copy of that lane, or with a
    whole vector.
    """

    @T.prim_func(s_tir=True, private=True)
    def lane() -> None:
        a = T.alloc_buffer((4,), "float32x4", scope="shared")
        w = T.alloc_buffer((4,), "float32x4", scope="shared")
        b = T.alloc_buffer((4,), "float32x4", scope="shared")
        texels = T.alloc_buffer((4,), "float32x4", scope="local")
        texels[0] = a[0]
        texels[1] = a[1]
        texels[2] = a[2]
        texels[3] = a[3]
        T.evaluate(T.tvm_storage_sync("shared"))
        b[0] = T.Broadcast(T.Shuffle([texels[0]], [0]), 4) * w[0]
        b[1] = T.Broadcast(T.Shuffle([texels[1]], [0]), 4) * w[0]
        b[2] = T.Broadcast(T.Shuffle([texels[2]], [0]), 4) * w[0]
        b[3] = T.Broadcast(T.Shuffle([texels[3]], [0]), 4) * w[0]

    @T.prim_func(s_tir=True, private=True)
    def copy() -> None:
        a = T.alloc_buffer((4,), "float32x4", scope="shared")
        w = T.alloc_buffer((4,), "float32x4", scope="shared")
        b = T.alloc_buffer((4,), "float32x4", scope="shared")
        texels = T.alloc_buffer((4,), "float32x4", scope="local")
        texels[0] = a[0]
        texels[1] = a[1]
        texels[2] = a[2]
        texels[3] = a[3]
        T.evaluate(T.tvm_storage_sync("shared"))
        first: T.let[T.float32x4] = T.Broadcast(T.Shuffle([texels[0]], [0]), 4)
        b[0] = first * w[0]
        b[1] = T.Broadcast(T.Shuffle([texels[1]], [0]), 4) * w[0]
        b[2] = T.Broadcast(T.Shuffle([texels[2]], [0]), 4) * w[0]
        b[3] = T.Broadcast(T.Shuffle([texels[3]], [0]), 4) * w[0]

    @T.prim_func(s_tir=True, private=True)
    def whole() -> None:
        a = T.alloc_buffer((4,), "float32x4", scope="shared")
        w = T.alloc_buffer((4,), "float32x4", scope="shared")
        b = T.alloc_buffer((4,), "float32x4", scope="shared")
        texels = T.alloc_buffer((4,), "float32x4", scope="local")
        texels[0] = a[0]
        texels[1] = a[1]
        texels[2] = a[2]
        texels[3] = a[3]
        T.evaluate(T.tvm_storage_sync("shared"))
        b[0] = texels[0] * w[0]
        b[1] = texels[1] * w[0]
        b[2] = texels[2] * w[0]
        b[3] = texels[3] * w[0]

    return live({"lane": lane, "copy": copy, "whole": whole}[kind])


def test_lanes_live_one_by_one_and_copies_of_them_are_free() -> None:
    assert products("whole") - products("lane") == 4 * 3
    assert products("copy") == products("lane")


def test_a_compiler_gets_by_with_less_than_it_takes() -> None:
    use = RegisterEstimate(
        np.asarray([50.0, 70.0, 130.0, 130.0, 250.0]), np.asarray([400.0, 400.0, 400.0, 150.0, 400.0])
    )
    # Few registers are not allocated in rotation. Many are, with gaps, up to the number of values written.
    assert use.allocated == pytest.approx([50, 70, 192, 172.5, 250])
    assert np.all(use.needed < use.allocated)
    assert np.all(np.diff(RegisterEstimate(np.arange(60, 140), 400).allocated) >= 0)


@exhaustive
def test_random_kernels_cover_all_operators() -> None:
    kernels = list(bench_registers.random_kernels(len(bench_registers.OPERATORS), seed=0))
    assert len({name for name, _, _ in kernels}) == len(bench_registers.OPERATORS)
    assert all(usage.needed_registers <= usage.registers for _, _, usage in kernels)


def loops_of(rows: int, columns: int, *, is_mali: bool = False) -> int:
    """Return how many loops of a nest of `rows` x `columns` additions are kept."""

    @T.prim_func(s_tir=True, private=True)
    def nest(a: T.Buffer((65536,), "float32x4"), b: T.Buffer((1,), "float32x4")) -> None:
        acc = T.alloc_buffer((1,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        for i in range(rows):
            for j in range(columns):
                acc[0] = acc[0] + a[i * 64 + j] * a[j]
        b[0] = acc[0]

    def count(code: Sequence[Code]) -> int:
        return sum(1 + count(item.body) for item in code if isinstance(item, Loop))

    return count(Reader(nest.body, is_mali=is_mali).code)


def test_a_loop_that_contains_a_loop_is_kept() -> None:
    assert loops_of(3, 40) == loops_of(40, 40) == 2
    assert loops_of(3, 4) == 0


def test_mali_unrolls_loops_of_vectors_that_adreno_keeps() -> None:
    # Each iteration has 4 products by lane and two loads, or one product of vectors.
    assert (loops_of(12, 9), loops_of(12, 9, is_mali=True)) == (1, 0)
