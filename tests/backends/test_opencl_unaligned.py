"""Vectors at any number of a buffer are one access in OpenCL C. Other accesses are unchanged."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_walk

from romou.devices.backends.opencl.unaligned_vectors import access_unaligned


def copy(start: int, stride: int = 1, dtype: str = "float32", scope: str = "global") -> tirx.PrimFunc:
    """Return a copy of four numbers, from `start` on in a buffer of `scope`, to the start of another buffer."""
    source = tirx.decl_buffer([64], dtype, "source", scope=scope)
    target = tirx.decl_buffer([64], dtype, "target")
    load = tirx.BufferLoad(source, [tirx.Ramp(tirx.const(start, "int32"), tirx.const(stride, "int32"), 4)])
    return tirx.PrimFunc(
        [source, target],
        tirx.BufferStore(target, load, [tirx.Ramp(tirx.const(start, "int32"), tirx.const(1, "int32"), 4)]),
    )


def vectors_of(func: tirx.PrimFunc) -> tuple[int, list[str]]:
    """Return the number of vector accesses that are left to TVM, and the functions called for the others."""
    left, called = [], []
    structural_walk(
        func.body,
        [
            (TensorLoad, lambda load: left.append(load) if isinstance(load.indices[0], tirx.Ramp) else None),
            (tirx.BufferStore, lambda store: left.append(store)),
            (
                tvm.ir.Call,
                lambda call: called.append(str(call.args[0].value)) if "extern" in str(call.op.name) else None,
            ),
        ],
    )
    return len(left), sorted(called)


@pytest.mark.parametrize("start", [3, 8], ids=["unaligned", "aligned"])
def test_vectors_are_one_access(start: int) -> None:
    """Aligned ones, too: as vload4 and vstore4, phones' compilers would split them."""
    assert vectors_of(access_unaligned(copy(start))) == (0, ["load_unaligned_float4", "store_unaligned_float4"])


@pytest.mark.parametrize(
    ("func", "left", "called"),
    [
        (copy(3, dtype="int32"), 2, []),
        (copy(8, stride=2), 1, ["store_unaligned_float4"]),
        (copy(8, scope="shared"), 1, ["store_unaligned_float4"]),
    ],
    ids=["integers", "apart", "local memory"],
)
def test_others_stay(func: tirx.PrimFunc, left: int, called: list[str]) -> None:
    assert vectors_of(access_unaligned(func)) == (left, called)
