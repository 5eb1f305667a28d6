"""Optimizations of Vulkan's code generator that no compiler has to do: conditional loads without branches, and unrolled
loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from romou.compiler import pipeline
from romou.devices.backends.vulkan.unrolling import MOST_LOADS, iterations_at_once
from romou.devices.targets import Target
from support.kernels.shaders import shaders_of, validate

SIZE, ITEMS = 256, 32
OP_SELECTION_MERGE = 247


def scheduled(output: te.Tensor, *inputs: te.Tensor) -> tvm.IRModule:
    """Return a schedule with one element of the output for each work-item."""
    sch = s_tir.Schedule(te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main"))
    group, item = sch.split(sch.get_loops(sch.get_sblock(output.op.name))[0], [None, ITEMS])
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    return sch.mod


def run(mod: tvm.IRModule, device: tvm.runtime.Device, result: str, *arrays: np.ndarray) -> np.ndarray:
    module = tvm.tirx.build(mod, target=Target("vulkan").tvm_target, pipeline=pipeline.NAME)
    output = tvm.runtime.empty((SIZE,), result, device)
    module["main"](*(tvm.runtime.tensor(array, device) for array in arrays), output)
    found: np.ndarray = output.numpy()
    return found


def branches(mod: tvm.IRModule) -> int:
    """Count the branches, other than loops, in the SPIR-V of the only kernel."""
    (kernel,) = shaders_of(mod, Target("vulkan -device=adreno640"))
    words = np.frombuffer(validate(kernel), "<u4")
    at, found = 5, 0
    while at < len(words):
        found += int(words[at]) & 0xFFFF == OP_SELECTION_MERGE
        at += int(words[at]) >> 16
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8"])
def test_a_conditional_load(dtype: str, vulkan_device: tvm.runtime.Device) -> None:
    """The window of a padded convolution has three conditions. Its index is only valid if they hold."""
    x = te.placeholder((SIZE // 2,), dtype, "x")
    mod = scheduled(
        te.compute(
            (SIZE,),
            lambda i: tirx.if_then_else(tirx.all(i >= 3, i * 3 < 360, i < 250), x[i - 3], tirx.const(0, dtype)),
            "out",
        ),
        x,
    )
    given = np.random.default_rng(0).integers(-9, 9, SIZE // 2).astype(dtype)
    expected = np.zeros(SIZE, dtype)
    expected[3:120] = given[:117]
    np.testing.assert_array_equal(run(mod, vulkan_device, dtype, given), expected)
    # No choice by a condition is there for 8 bits.
    assert branches(mod) == 0 or dtype == "int8"


def test_a_conditional_load_whose_index_must_not_be_computed(vulkan_device: tvm.runtime.Device) -> None:
    """A loaded index is used only if the condition holds, and so is a quotient with a divisor that may be zero."""
    at, x = te.placeholder((SIZE,), "int32", "at"), te.placeholder((SIZE,), "float32", "x")

    def chosen(i: tirx.Var) -> tirx.Expr:
        return tirx.if_then_else(at[i] != 0, x[at[at[i]]] + x[tirx.truncdiv(SIZE - 1, at[i])], 0.0)

    rng = np.random.default_rng(0)
    places, given = rng.permutation(SIZE).astype("int32"), rng.standard_normal(SIZE).astype("float32")
    found = run(scheduled(te.compute((SIZE,), chosen, "out"), at, x), vulkan_device, "float32", places, given)
    np.testing.assert_array_equal(found, [given[places[p]] + given[(SIZE - 1) // p] if p else 0.0 for p in places])


@pytest.mark.parametrize(
    ("extents", "is_unrolled"), [((3,), True), ((8 * MOST_LOADS,), True), ((61,), False), ((7, 5), True)]
)
def test_sums_over_loops(extents: tuple[int, ...], is_unrolled: bool, vulkan_device: tvm.runtime.Device) -> None:
    """Loops that are fully unrolled, unrolled in steps or not at all compute the same."""
    count = int(np.prod(extents))
    x = te.placeholder((SIZE + count,), "float32", "x")
    axes = [te.reduce_axis((0, extent), f"r{place}") for place, extent in enumerate(extents)]

    def at(i: tirx.Var) -> Any:
        offset: Any = 0
        for axis in axes:
            offset = offset * int(axis.dom.extent) + axis.var
        return x[i + offset]

    mod = scheduled(te.compute((SIZE,), lambda i: te.sum(at(i), axes), "out"), x)
    given = np.random.default_rng(0).integers(-9, 9, SIZE + count).astype("float32")
    expected = [given[i : i + count].sum() for i in range(SIZE)]
    np.testing.assert_array_equal(run(mod, vulkan_device, "float32", given), expected)
    (kernel,) = shaders_of(mod, Target("vulkan"))
    assert ("[[unroll]]" in kernel.text) == is_unrolled


def test_how_much_is_written_out() -> None:
    data = tirx.decl_buffer((SIZE,), "float32", "data")
    total = tirx.decl_buffer((1,), "float32", "total", scope="local")

    def loop(extent: Any, loads: int, extra: tirx.Stmt | None = None) -> tirx.For:
        var = tirx.Var("i", "int32")
        value = sum((tirx.BufferLoad(data, [var + load]) for load in range(loads)), tirx.const(0.0, "float32"))
        store = tirx.BufferStore(total, value, [0])
        return tirx.For(var, 0, extent, tirx.ForKind.SERIAL, store if extra is None else tirx.SeqStmt([store, extra]))

    for extent, loads in [(1, 1), (7, 9), (80, 5), (97, 3), (1000, 1), (12, 2 * MOST_LOADS)]:
        count = iterations_at_once(loop(extent, loads), lambda buffer: buffer.same_as(data))
        assert extent % count == 0
        assert count == 1 or count * loads <= MOST_LOADS
        # No larger divisor would do.
        assert not [
            other for other in range(count + 1, extent + 1) if extent % other == 0 and other * loads <= MOST_LOADS
        ]
    barrier = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
    assert iterations_at_once(loop(4, 1, barrier), lambda buffer: True) == 1
    assert iterations_at_once(loop(tirx.Var("n", "int32"), 1), lambda buffer: True) == 1
