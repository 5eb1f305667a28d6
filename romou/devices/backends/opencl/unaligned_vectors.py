"""Accesses of vectors that start at any element of a buffer of scalars.

TVM's code generator splits a vector into scalars unless it can prove the vector's alignment, which a pointer to
vectors requires. In a matrix with rows of 299 elements, the alignment changes from row to row.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map

from romou.devices.backends.opencl.functions import function_name

_NUMBERS = {"float32": "float", "float16": "half", "uint16": "ushort"}


def access_unaligned(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn vector accesses of buffers of scalars into calls. Only the code generator may follow.

    v = data[at : at + 4]      ->      v = load_unaligned_float4(&data[at])
    out[at : at + 4] = v       ->      store_unaligned_float4(v, &out[at])

    For fp32 and the bits of fp16 in global memory. Functions that convert fp16 need no alignment
    (`passes/fp16_storage.py`).
    """

    def start(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> tirx.Expr | None:
        """Return a pointer to the first of adjacent elements. None for any other access.

        Aligned ones of a buffer that is no array of vectors would be vload4 and vstore4, which Mesa's compilers split.
        """
        index = indices[-1]
        if (
            len(indices) > 1
            or not isinstance(index, tirx.Ramp)
            or str(buffer.dtype) not in _NUMBERS
            or str(buffer.scope()) != "global"
        ):
            return None
        is_row = isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1
        return tirx.address_of(tirx.BufferLoad(buffer, [index.base])) if is_row else None

    def load(access: TensorLoad) -> tirx.Expr:
        at = start(access.source, access.indices)
        return access if at is None else tirx.call_pure_extern(access.ty, _name("load", access), at)

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        at = start(access.buffer, access.indices)
        return (
            access
            if at is None
            else tirx.Evaluate(tirx.call_extern("int32", _name("store", access.value), access.value, at))
        )

    return func.with_body(structural_map(func.body, [(TensorLoad, load), (tirx.BufferStore, store)]))


def _name(access: str, vector: tirx.Expr) -> str:
    dtype = tvm.DataType(str(vector.ty))
    return function_name(f"{access}_unaligned", int(dtype.lanes), _NUMBERS[str(dtype.with_lanes(1))])
