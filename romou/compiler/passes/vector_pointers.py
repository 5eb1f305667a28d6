"""Arrays of vectors for buffers accessed in whole texels: `data[i]` instead of `vload4(0, data + i * 4)`.

A pointer to `float4` shows the compiler that the access is aligned, and its index is a quarter of the address. A
register tile written in whole texels and read lane by lane becomes vectors with named lanes (`patch[1].s2`). Read
through a pointer, it would be in private memory. Local memory that holds vectors and scalars is accessed through
pointers of both types: compilers split `vload4`, whose address may be any scalar's. TVM's PointerValueTypeRewrite skips
the parameters of a device function, and fails on scalar reads whose addresses are multiples of more than a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType, TensorLoad
from tvm_ffi.structural import structural_map, structural_walk

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import LANES, is_lanes
from romou.compiler.tir.traversal import function_pass, with_fields
from romou.devices.backends.dialect import dialect_of

Indices: TypeAlias = Sequence[tirx.Expr]


@function_pass
def vectorize_pointers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Access buffers of a device function in vectors, after its pointers have become parameters.

    data: T.handle("float32")        ->      data: T.handle("float32x4")
    data[4 * i : 4 * i + 4]                  data[i]

    patch: T.alloc_local(8)          ->      patch: T.alloc_local(2, "float32x4")
    patch[4:8] = v                           patch[1] = v
    … patch[6]                               … patch[1].s2

    staged: T.alloc_shared(8)        ->      staged: T.alloc_shared(8)          in OpenCL, with scalar accesses as well
    … staged[4:8]                            texels: T.decl_buffer(2, "float32x4", data=staged.data)
                                             … texels[1]

    In OpenCL, a register tile may also have vectors of 8 or 16.
    """
    vectors = _Vectors(func)
    # Declarations come before accesses, which depend on them.
    body = structural_map(func.body, [(tirx.DeclBuffer, vectors.declare), (tirx.AllocBuffer, vectors.allocate)])
    body = structural_map(body, [(TensorLoad, vectors.load), (tirx.BufferStore, vectors.store)])
    return with_fields(func, params=[vectors.pointers[p] for p in func.params], body=body)


class _Vectors:
    """The buffers of a function that become arrays of vectors.

    loads, stores: buffer -> indices of its accesses.
    escaping: buffers whose pointer is an argument of a call, which may use it in any way.
    pointers: parameter -> its replacement, or itself.
    buffers: scalar buffer -> array of vectors, and the lanes of each. Scalar accesses of local memory keep the buffer.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.analyzer = tvm.sym.Analyzer()
        self.loads: dict[tirx.Var, list[Indices]] = {}
        self.stores: dict[tirx.Var, list[Indices]] = {}
        self.escaping: set[tirx.Var] = set()
        self.pointers = {p: p for p in func.params}
        self.buffers: dict[tirx.Var, tuple[tirx.Var, int]] = {}
        dialect = dialect_of(func)
        # `gather_bytes` reads truth values one by one.
        self.scalar_types = {"bool"} if dialect.widens_truth_values else set()
        self.widest, self.has_pointers = dialect.widest_vector, dialect.has_pointers
        structural_walk(
            func.body,
            [
                (TensorLoad, lambda a: self.loads.setdefault(a.source, []).append(a.indices)),
                (tirx.BufferStore, lambda a: self.stores.setdefault(a.buffer, []).append(a.indices)),
                (tvm.ir.Call, lambda c: self.escaping.add(c.args[0]) if op_name(c) == "tirx.buffer_data" else None),
            ],
        )

    def declare(self, stmt: tirx.DeclBuffer) -> tirx.Stmt:
        """Declare a parameter's buffer as vectors, if all accesses are whole vectors."""
        old = stmt.buffer
        if self._is_shared(old):
            return self._with_vectors(stmt)
        accesses = [*self.loads.get(old, []), *self.stores.get(old, [])]
        is_scalar = stmt.data not in self.pointers or old in self.escaping or str(old.dtype) in self.scalar_types
        if is_scalar or not accesses or not all(map(self._is_whole, accesses)):
            return stmt
        pointer = tirx.Var(stmt.data.name, PointerType(PrimType(f"{old.dtype}x{LANES}"), str(old.scope())))
        self.pointers[stmt.data] = pointer
        return tirx.DeclBuffer(self._array(old, LANES, data=pointer, scope=str(old.scope())), data=pointer)

    def allocate(self, stmt: tirx.AllocBuffer) -> tirx.Stmt:
        """Allocate a register tile as vectors, if it is filled in whole vectors and its lanes have constant indices."""
        old = stmt.buffer
        if self._is_shared(old):
            return self._with_vectors(stmt)
        stores = self.stores.get(old, [])
        is_register_tile = str(old.scope()) == "local" and stores and old not in self.escaping and len(old.shape) == 1
        is_scalar = tvm.DataType(str(old.dtype)).lanes == 1 and str(old.dtype) not in self.scalar_types
        if not is_register_tile or not is_scalar:
            return stmt
        lanes = _lanes_of(stores[0])
        if lanes > self.widest or not all(self._is_whole(indices, lanes) for indices in stores):
            return stmt
        if not all(self._is_whole(indices, lanes) or _is_lane(indices) for indices in self.loads.get(old, [])):
            return stmt
        return tirx.AllocBuffer(self._array(old, lanes, scope="local"))

    def _is_shared(self, buffer: tirx.Var) -> bool:
        """Return whether a buffer is local memory that a pointer to vectors can access, in some places."""
        accesses = [*self.loads.get(buffer, []), *self.stores.get(buffer, [])]
        is_scalar = tvm.DataType(str(buffer.dtype)).lanes == 1 and str(buffer.dtype) not in self.scalar_types
        return (
            self.has_pointers and is_scalar and str(buffer.scope()) == "shared" and any(map(self._is_whole, accesses))
        )

    def _with_vectors(self, stmt: tirx.DeclBuffer | tirx.AllocBuffer) -> tirx.Stmt:
        """Return the declaration of local memory with one of the same memory as vectors."""
        old = stmt.buffer
        array = self._array(old, LANES, data=old.data, scope=str(old.scope()))
        return tirx.SeqStmt([stmt, tirx.DeclBuffer(array, data=old.data)])

    def load(self, access: TensorLoad) -> tirx.Expr:
        """Load a vector, or a lane of one."""
        new = self.buffers.get(access.source)
        if new is None or (str(access.source.scope()) == "shared" and not self._is_whole(access.indices)):
            return access
        array, lanes = new
        vector = tirx.BufferLoad(array, self._place(access.indices, lanes))
        return (
            vector
            if self._is_whole(access.indices, lanes)
            else tirx.Shuffle([vector], [int(access.indices[0]) % lanes])
        )

    def store(self, access: tirx.BufferStore) -> tirx.Stmt:
        """Store a vector."""
        new = self.buffers.get(access.buffer)
        if new is None or not self._is_whole(access.indices, new[1]):
            return access
        array, lanes = new
        return tirx.BufferStore(array, access.value, self._place(access.indices, lanes))

    def _is_whole(self, indices: Indices, lanes: int = LANES) -> bool:
        if len(indices) != 1 or not is_lanes(indices[0], lanes):
            return False
        step = self.analyzer.modular_set(indices[0].base)
        return int(step.coeff) % lanes == 0 and int(step.base) % lanes == 0

    def _place(self, indices: Indices, lanes: int) -> list[tirx.Expr]:
        first = indices[0].base if self._is_whole(indices, lanes) else indices[0]
        return [self.analyzer.simplify(first // lanes)]

    def _array(self, old: tirx.Var, lanes: int, **options: Any) -> tirx.Var:
        shape = [-(-old.shape[0] // lanes)]
        array = tirx.decl_buffer(shape, f"{old.dtype}x{lanes}", old.name, **options)
        self.buffers[old] = array, lanes
        return array


def _lanes_of(indices: Indices) -> int:
    """Return the lanes of an access: 4 of another number than 4, 8 and 16, which no array of vectors has."""
    lanes = int(indices[0].lanes) if len(indices) == 1 and isinstance(indices[0], tirx.Ramp) else LANES
    return lanes if lanes in (2 * LANES, 4 * LANES) else LANES


def _is_lane(indices: Indices) -> bool:
    return len(indices) == 1 and isinstance(indices[0], tirx.IntImm)
