"""Equal loads are made once, as long as nothing that they read changes in between."""

from __future__ import annotations

import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from romou.compiler.passes.shared_loads import share_loads


def text_of(module: tvm.IRModule) -> str:
    return share_loads(module)["main"].script()


def test_a_load_that_is_used_twice_gets_a_name() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                B[x] = A[x] * T.float32(2)
                B[x + 8] = A[x] * T.float32(3)
                B[x + 16] = A[x + 1] * T.float32(4)

    text = text_of(Module)
    assert text.count("A[x]") == 1
    assert "A[x + 1] * T.float32(4" in text.replace("4.0", "4"), "what is used once stays where it is"


def test_a_store_in_between_is_seen() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                B[x] = A[x]
                A[x] = T.float32(1)
                B[x + 8] = A[x]

    text = text_of(Module)
    assert text.count("= A[x]") == 2


def test_a_loop_that_writes_forgets_before_it_starts() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                B[x] = A[x]
                for r in range(4):
                    B[x + r] = A[x]
                    A[x] = T.float32(2)

    assert text_of(Module).count("= A[x]") == 2


def test_a_guarded_load_stays_guarded() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            with T.launch_thread("threadIdx.x", 8) as x:
                B[x] = T.if_then_else(x < 4, A[x], T.float32(0))
                B[x + 8] = T.if_then_else(x < 4, A[x], T.float32(0))

    assert text_of(Module).count("T.if_then_else(x < 4, A[x]") == 2


def test_a_vector_of_copies_is_built_once() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), V: T.Buffer((64,), "float32x4"), B: T.Buffer((64,), "float32x4")):
            with T.launch_thread("threadIdx.x", 8) as x:
                B[x] = T.Broadcast(A[x], 4) * V[x]
                B[x + 8] = T.Broadcast(A[x], 4) * V[x + 8]

    assert text_of(Module).count("T.Broadcast(") == 1
