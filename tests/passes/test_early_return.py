"""A work-item beyond the last result computes nothing, unless others wait for its work."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from romou.compiler.passes.early_return import return_early
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, built, conv, random_arrays, reference, task_of

PHONE = Target("opencl -device=adreno640")


def text_of(module: tvm.IRModule) -> str:
    return return_early(module)["main"].script()


def test_one_comparison_stands_around_all_stores() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                if x < 7:
                    B[x] = A[x]
                if x < 7 and A[x] > T.float32(0):
                    B[x + 8] = A[x]

    text = text_of(Module)
    assert text.count("x < 7") == 1
    assert text.index("x < 7") < text.index("B[x]")
    assert "if A[x] > T.float32(0" in text, "what depends on data stays with its store"


def test_a_store_under_no_condition_is_made_by_all() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                if x < 7:
                    B[x] = A[x]
                B[x + 8] = A[x]

    assert return_early(Module)["main"].same_as(Module["main"])


def test_an_else_is_no_store_under_the_condition() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                if x < 7:
                    B[x] = A[x]
                else:
                    B[x] = T.float32(0)

    assert return_early(Module)["main"].same_as(Module["main"])


@pytest.mark.parametrize("through", ["local memory", "a barrier", "a sub-group"])
def test_work_items_that_others_wait_for_do_not_return(through: str) -> None:
    @I.ir_module
    class LocalMemory:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                shared = T.alloc_buffer((8,), scope="shared")
                shared[x] = A[x]
                if x < 7:
                    B[x] = shared[x + 1]

    @I.ir_module
    class Barrier:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                T.evaluate(T.tvm_storage_sync("shared"))
                if x < 7:
                    B[x] = A[x]

    @I.ir_module
    class SubGroup:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                if x < 7:
                    B[x] = T.call_pure_extern("float32", "sub_group_add_of_8", A[x])

    module = {"local memory": LocalMemory, "a barrier": Barrier, "a sub-group": SubGroup}[through]
    assert return_early(module)["main"].same_as(module["main"])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_transform_of_an_odd_number_of_tiles_compares_once(dtype: str, opencl_device: tvm.runtime.Device) -> None:
    """49 tiles fill no group: each of 16 stores was compared. The numbers stay."""
    task = task_of(conv(16, (14, 13), 20, (3, 3), dtype, padding=(1, 1, 1, 1))).with_free_images()
    config = next(c for c in task.starts(PHONE) if c["algorithm"] == "winograd2")
    arrays = random_arrays(task, np.random.default_rng(7))
    expected = reference(task, arrays)
    for without, comparisons in (((), 1), (("return_early",), 16)):
        source = str(built(task, config, PHONE, without).imports[0].inspect_source())
        transform, *_ = source[source.index("__kernel") :].split("\n}\n")
        assert transform.count("if (") == comparisons
        assert_agrees(PHONE, task, config, arrays, expected, 1e-5 if dtype == "float32" else 1e-2, without=without)
