"""Buffers that are accessed in whole texels become arrays of vectors: `data[i]` instead of `vload4(0, data + i * 4)`.

A pointer to `float4` tells the compiler that the access is aligned, and its index is a quarter of the address
arithmetic away from the loop counters. Registers that are filled in whole texels and read lane by lane become vectors
whose lanes have names (`patch[1].s2`); read through a pointer, they would lie in private memory. TVM's
PointerValueTypeRewrite passes by the parameters of a device function, and fails on scalar reads whose addresses are
multiples of more than a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType, TensorLoad
from tvm_ffi.structural import structural_map, structural_walk

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import LANES, is_texel
from romou.devices.backends.dialect import dialect_of

Indices: TypeAlias = Sequence[tirx.Expr]


@tirx.transform.prim_func_pass(opt_level=0)
def vectorize_pointers(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run on a device function, after its pointers have become parameters.

    data: T.handle("float32"); data[4 * i : 4 * i + 4]      ->      data: T.handle("float32x4"); data[i]
    patch: T.alloc_local(8); patch[4:8] = v; … patch[6]
        ->  patch: T.alloc_local(2, "float32x4"); patch[1] = v; … patch[1].s2
    """
    analyzer = tvm.sym.Analyzer()
    loads: dict[tirx.Var, list[Indices]] = {}
    stores: dict[tirx.Var, list[Indices]] = {}
    handed_on: set[tirx.Var] = set()
    structural_walk(
        func.body,
        [
            (TensorLoad, lambda a: loads.setdefault(a.source, []).append(a.indices)),
            (tirx.BufferStore, lambda a: stores.setdefault(a.buffer, []).append(a.indices)),
            # A pointer that is handed on by itself may be used in any way.
            (tvm.ir.Call, lambda c: handed_on.add(c.args[0]) if op_name(c) == "tirx.buffer_data" else None),
        ],
    )
    # `gather_bytes` takes truth values one by one.
    is_kept = {"bool"} if dialect_of(func).widens_truth_values else set()
    pointers = {p: p for p in func.params}
    buffers: dict[tirx.Var, tirx.Var] = {}

    def is_whole(indices: Indices) -> bool:
        if len(indices) != 1 or not is_texel(indices[0]):
            return False
        step = analyzer.modular_set(indices[0].base)
        return int(step.coeff) % LANES == 0 and int(step.base) % LANES == 0

    def is_lane(indices: Indices) -> bool:
        return len(indices) == 1 and isinstance(indices[0], tirx.IntImm)

    def vectors(old: tirx.Var, name: str, **where: Any) -> tirx.Var:
        buffers[old] = tirx.decl_buffer([-(-old.shape[0] // LANES)], f"{old.dtype}x{LANES}", name, **where)
        return buffers[old]

    def declare(stmt: tirx.DeclBuffer) -> tirx.Stmt:
        old = stmt.buffer
        accesses = [*loads.get(old, []), *stores.get(old, [])]
        if (
            stmt.data not in pointers
            or old in handed_on
            or not accesses
            or not all(map(is_whole, accesses))
            or str(old.dtype) in is_kept
        ):
            return stmt
        pointer = tirx.Var(stmt.data.name, PointerType(PrimType(f"{old.dtype}x{LANES}"), str(old.scope())))
        pointers[stmt.data] = pointer
        return tirx.DeclBuffer(vectors(old, old.name, data=pointer, scope=str(old.scope())), data=pointer)

    def allocate(stmt: tirx.AllocBuffer) -> tirx.Stmt:
        old = stmt.buffer
        is_register_tile = (
            str(old.scope()) == "local" and old in stores and old not in handed_on and len(old.shape) == 1
        )
        is_scalar = tvm.DataType(str(old.dtype)).lanes == 1 and str(old.dtype) not in is_kept
        if (
            is_register_tile
            and is_scalar
            and all(map(is_whole, stores[old]))
            and all(is_whole(i) or is_lane(i) for i in loads.get(old, []))
        ):
            return tirx.AllocBuffer(vectors(old, old.name, scope="local"))
        return stmt

    def texel(indices: Indices) -> list[tirx.Expr]:
        return [analyzer.simplify((indices[0].base if is_whole(indices) else indices[0]) // LANES)]

    def load(access: TensorLoad) -> tirx.Expr:
        new = buffers.get(access.source)
        if new is None:
            return access
        vector = tirx.BufferLoad(new, texel(access.indices))
        return vector if is_whole(access.indices) else tirx.Shuffle([vector], [int(access.indices[0]) % LANES])

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        new = buffers.get(access.buffer)
        return access if new is None else tirx.BufferStore(new, access.value, texel(access.indices))

    # Declarations come before uses, and what they say is needed there.
    body = structural_map(func.body, [(tirx.DeclBuffer, declare), (tirx.AllocBuffer, allocate)])
    body = structural_map(body, [(TensorLoad, load), (tirx.BufferStore, store)])
    return tirx.PrimFunc([pointers[p] for p in func.params], body, func.ret_type, func.attrs)
