"""Pointers that advance with a loop: right numbers, and one pointer for all reads of a buffer that differ by constants."""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.compiler.operators.analysis.registers import estimate_registers
from romou.compiler.operators.families.batch_matmul import BatchMatmul
from romou.compiler.operators.workload import Conv2d
from romou.compiler.passes.advancing_pointers import advance_pointers
from romou.compiler.tir.calls import keeps_next_loop
from romou.compiler.tir.primitives import ADVANCE_POINTERS
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, conv, matmul, random_arrays, reference, task_of

PHONE = Target("opencl -device=adreno640 -half=storage")
SAME = (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("work", "knobs"),
    [
        (matmul((2,), 8, 32, 16), {"tile_w": 2, "tile_o": 2, "data": "buffer", "weight": "buffer"}),
        (matmul((), 16, 64, 48), {"tile_w": 4, "tile_o": 1, "data": "buffer", "weight": "buffer"}),
        # The products between Winograd's transforms.
        (
            conv(16, (9, 11), 10, (3, 3), padding=SAME),
            {"algorithm": "winograd2", "data": "buffer", "weight": "buffer", "output": "buffer"},
        ),
    ],
    ids=str,
)
def test_numbers(work: Conv2d | BatchMatmul, knobs: dict[str, int | str]) -> None:
    task = task_of(work).with_free_images()
    starts = {start.get("algorithm", "direct"): start for start in task.starts(PHONE)}
    config = starts[str(knobs.get("algorithm", "direct"))].replace(**{"wg_o": 2, "wg_w": 2, "split_k": 1, **knobs})
    assert task.space(PHONE).is_valid(config), config
    assert any(
        " += " in kernel.source
        for kernel in inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
    )
    arrays = random_arrays(task, np.random.default_rng(5))
    assert_agrees(PHONE, task, config, arrays, reference(task, arrays), 1e-5)


def test_a_loop_reads_through_pointers_alone() -> None:
    """Each operand has one pointer, because the distances between its reads are constant."""
    task = task_of(matmul((), 64, 64, 64))
    config = task.default_config(PHONE).replace(split_k=1)

    def loop() -> str:
        (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
        found = re.search(r"\n( *)for .*?\n\1\}", kernel.source, re.DOTALL)
        assert found is not None
        return found[0]

    assert "_ptr[" not in re.sub(r"(acc|patch)_local_ptr\[", "", loop())
    assert loop().count(" += ") == 2


def test_other_devices_read_at_indices() -> None:
    """Their compilers optimize addresses, or (Vulkan's phones) their language has no pointers."""
    task = task_of(matmul((), 64, 64, 64))
    for other in map(Target, ("opencl -device=nvidia_h200", "vulkan -device=adreno640")):
        (kernel,) = inspect_function(task.schedule(task.default_config(other), other)["main"], other)
        assert " += " not in kernel.source
        assert "POINTER" not in kernel.source


@pytest.mark.parametrize(("accumulate", "has_pointers"), [("float16", True), ("float32", False)])
def test_fp16_has_pointers_where_it_is_computed_with(accumulate: str, has_pointers: bool) -> None:
    """Kernels that convert fp16 read it by functions with an offset."""
    task, target = task_of(matmul((), 64, 64, 64, "float16")), Target("opencl -device=adreno640")
    config = task.default_config(target).replace(split_k=1, accumulate=accumulate)
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
    assert ("const __global half4* " in kernel.source) == has_pointers
    assert (" += " in kernel.source) == has_pointers


def summed(address: Callable[[tirx.Buffer, tirx.Var], tirx.Expr], *, is_written: bool) -> str:
    """Return the text of a kernel that adds up eight numbers in a marked loop, each at an address that the loop
    declares.
    """
    places, data, out = (
        tirx.decl_buffer([64], "int32", "places"),
        tirx.decl_buffer([64], "float32", "data"),
        tirx.decl_buffer([1], "float32", "out"),
    )
    k, at = tirx.Var("k", "int32"), tirx.Var("at", "int32")
    body = [
        tirx.Bind(at, address(places, k)),
        tirx.BufferStore(out, tirx.BufferLoad(out, [0]) + tirx.BufferLoad(data, [at]), [0]),
        *([tirx.BufferStore(places, k * 3, [0])] if is_written else []),
    ]
    loop = tirx.For(k, tirx.const(0, "int32"), tirx.const(8, "int32"), tirx.ForKind.SERIAL, tirx.SeqStmt(body))
    marked = tirx.AttrStmt(tirx.const(0, "int32"), ADVANCE_POINTERS, tirx.const(1, "int32"), loop)
    func = tirx.PrimFunc([places, data, out], marked).with_attr("target", PHONE.tvm_target)
    return str(advance_pointers(tvm.IRModule({"main": func}))["main"].script())


@pytest.mark.parametrize(
    ("k", "columns", "stays"),
    # An iteration loads two rows and four texels, or two rows and sixteen single numbers.
    [(24, 20, True), (10, 20, False), (12, 20, True), (64, 20, False), (4, 19, True), (3, 19, False)],
)
def test_a_loop_that_a_compiler_would_unroll_stays(k: int, columns: int, stays: bool) -> None:
    """Its counter starts at the third number of the group, a zero that no compiler knows. Loops of few loads are
    unrolled, long ones stay anyway.
    """
    task = task_of(matmul((2,), 18, 4 * k, columns))
    memory = {"data": "buffer", "weight": "buffer", "output": "buffer"}
    config = task.default_config(PHONE).replace(split_k=1, tile_o=1, tile_w=2, **memory)
    (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
    assert (f" = LOOP_START; k < {k};" in kernel.source) == stays, kernel.source
    assert "KEEP_LOOP" not in kernel.source
    arrays = random_arrays(task, np.random.default_rng(5))
    assert_agrees(PHONE, task, config, arrays, reference(task, arrays), 1e-5)


def test_a_loop_that_stays_needs_fewer_registers() -> None:
    """The estimate of an unrolled loop counts what is loaded ahead in all iterations."""
    task = task_of(matmul((2,), 18, 48, 20))
    config = task.default_config(PHONE).replace(
        split_k=1, tile_o=1, tile_w=2, data="buffer", weight="buffer", output="buffer"
    )
    (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)

    def unmarked(stmt: tirx.Evaluate) -> tirx.Stmt:
        return tirx.Evaluate(0) if keeps_next_loop(stmt.value) else stmt

    unrolled = kernel.lowered.with_body(structural_map(kernel.lowered.body, (tirx.Evaluate, unmarked)))
    assert estimate_registers(kernel.lowered).needed < estimate_registers(unrolled).needed


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "only_read"])
def test_an_address_out_of_memory_stays_in_the_loop(is_written: bool) -> None:
    """The address is itself read from memory. It grows by one each iteration only if nothing writes there, but a store
    or another work-item may.
    """
    text = summed(lambda places, k: tirx.BufferLoad(places, [0]) + k, is_written=is_written)
    assert "data[at]" in text
    assert text.index("for k") < text.index("places[0] + k")


def test_an_address_of_the_loop_s_variable_alone_advances() -> None:
    text = summed(lambda places, k: k * 4 + 3, is_written=True)
    assert "data[at]" not in text
    assert "data_at" in text
