"""Registers of values that a compiler computes once: texels, local addresses and indices that reads share."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from romou.compiler.operators.analysis.registers import estimate_registers


def as_written(func: tirx.PrimFunc) -> float:
    return float(estimate_registers(func).as_written)


def texel(image: tirx.Var, x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    return tirx.call_intrin("float32x4", "tirx.texture2d_load", image, x, y, 0, 128, tirx.Ramp(0, 1, 4))


def rows(distance: int) -> float:
    """Return the registers of two sums of eight texels. The second one starts `distance` rows below the first one."""

    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.handle("float32", "global.texture"), b: T.Buffer((2,), "float32x4")) -> None:
        acc = T.alloc_buffer((2,), "float32x4", scope="local")
        acc[0] = T.Broadcast(T.float32(0), 4)
        acc[1] = T.Broadcast(T.float32(0), 4)
        for row in range(8):
            acc[0] = acc[0] + texel(a, 0, row)
            acc[1] = acc[1] + texel(a, 0, row + distance)
        b[0] = acc[0]
        b[1] = acc[1]

    return as_written(sums)


def test_a_texel_that_iterations_share_is_live_from_the_first_to_the_last() -> None:
    # Between its two reads come the reads of `distance` rows, each of four registers.
    assert rows(4) - rows(2) == 2 * 4
    assert rows(2) > rows(8), "nothing is shared"


def branches(*, is_in_branch: bool) -> float:
    """Return the registers of 20 texels that are read twice. The first reads are inside a branch, or before it."""

    @T.prim_func(s_tir=True, private=True)
    def inside(a: T.handle("float32", "global.texture"), b: T.Buffer((64,), "float32x4")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        if i < 32:
            for j in range(20):
                b[j] = texel(a, 0, j)
        for j in range(20):
            b[20 + j] = texel(a, 0, j)

    @T.prim_func(s_tir=True, private=True)
    def before(a: T.handle("float32", "global.texture"), b: T.Buffer((64,), "float32x4")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        for j in range(20):
            b[j] = texel(a, 0, j)
        if i < 32:
            for j in range(20):
                b[20 + j] = texel(a, 0, j)

    return as_written(inside if is_in_branch else before)


def test_a_texel_of_a_branch_is_read_again_behind_it() -> None:
    assert branches(is_in_branch=False) >= 20 * 4
    assert branches(is_in_branch=True) < 20 * 4


def addresses(iterations: int) -> float:
    """Return the registers of the sum of 16 numbers in local memory, which is computed `iterations` times."""

    @T.prim_func(s_tir=True, private=True)
    def sums(b: T.Buffer((64,), "float32")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        staged = T.alloc_buffer((1024,), "float32", scope="shared")
        acc = T.alloc_buffer((1,), "float32", scope="local")
        acc[0] = T.float32(0)
        for _ in range(iterations):
            T.evaluate(T.tvm_storage_sync("shared"))
            for j in range(16):
                acc[0] = acc[0] + staged[i + j * 64]
        b[i] = acc[0]

    return as_written(sums)


def test_a_local_address_that_unrolled_iterations_share_keeps_a_register() -> None:
    assert addresses(2) - addresses(1) >= 14
    assert addresses(2) == addresses(4)


def indices(variables: int) -> float:
    """Return the registers of a loop that is not unrolled, with six reads at `variables` changing indices."""

    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.Buffer((65536,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        acc = T.alloc_buffer((1,), "float32", scope="local")
        for i in range(64):
            first: T.let[T.int32] = i * 8
            second: T.let[T.int32] = i * 16
            third: T.let[T.int32] = i * 24
            acc[0] = T.float32(0)
            for j in range(2):
                acc[0] = acc[0] + a[first + j]
                acc[0] = acc[0] + a[(second if variables == 3 else first) + j + 2]
                acc[0] = acc[0] + a[(third if variables == 3 else first) + j + 4]
            b[i] = acc[0]

    return as_written(sums)


def test_an_index_that_reads_share_keeps_a_register_and_one_for_its_bytes() -> None:
    assert indices(3) == indices(1) + 2 * 2


def shifts(loops: int) -> float:
    """Return the registers of `loops` unrolled loops that compute the same twelve indices."""

    @T.prim_func(s_tir=True, private=True)
    def stores(b: T.Buffer((65536,), "float32")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        for k in range(loops):
            for j in range(12):
                index: T.let[T.int32] = ((i + j * 2) * 29) >> 8
                b[index + k * 4096] = T.float32(0)

    return as_written(stores)


def test_an_index_that_is_no_linear_sum_is_shared_too() -> None:
    assert shifts(2) - shifts(1) >= 11
    assert shifts(2) == shifts(3)


def halves(iterations: int, *, is_second: int) -> float:
    """Return the registers of `iterations` sums of 16 numbers in local memory. Every other one may read a second
    half.
    """

    @T.prim_func(s_tir=True, private=True)
    def sums(b: T.Buffer((64,), "float32")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        staged = T.alloc_buffer((2048,), "float32", scope="shared")
        acc = T.alloc_buffer((1,), "float32", scope="local")
        acc[0] = T.float32(0)
        for k in range(iterations):
            half: T.let[T.int32] = T.bitwise_and(k, 1)
            T.evaluate(T.tvm_storage_sync("shared"))
            for j in range(16):
                acc[0] = acc[0] + staged[i + half * (1024 * is_second) + j * 64]
        b[i] = acc[0]

    return as_written(sums)


def test_two_halves_of_local_memory_have_addresses_that_every_other_iteration_shares() -> None:
    assert halves(4, is_second=1) - halves(4, is_second=0) >= 14
    assert halves(4, is_second=1) == halves(6, is_second=1)


def coordinates(scope: str) -> float:
    """Return the registers of an image's texels at four rows that two loops share."""

    @T.prim_func(s_tir=True, private=True)
    def sums(a: T.handle("float32", scope), b: T.Buffer((64,), "float32x4"), rows: T.Buffer((4,), "int32")) -> None:
        i = T.launch_thread("threadIdx.x", 64)
        first: T.let[T.int32] = rows[0]
        second: T.let[T.int32] = rows[1]
        third: T.let[T.int32] = rows[2]
        fourth: T.let[T.int32] = rows[3]
        for j in range(2):
            b[i] = texel(a, i + j, first)
            b[i] = texel(a, i + j, second)
            b[i] = texel(a, i + j, third)
            b[i] = texel(a, i + j, fourth)

    return as_written(sums)


def test_coordinates_of_a_sampled_image_are_floats_beside_the_integers() -> None:
    assert coordinates("global.texture") >= coordinates("global.texture-inside") + 3
