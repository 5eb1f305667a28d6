"""fp16 as storage: memory holds fp16, registers and arithmetic are fp32.

OpenCL reads and writes fp16 in any device's memory (vload_half, read_imagef on a half image), whether or not it
computes with it (cl_khr_fp16). Texture units and load instructions convert for free. CUDA converts the bits
(`romou.devices.backends.dialect`). So kernels of fp16 models run everywhere, with fp32 sums. fp16 stays only if a
template marks a kernel for fp16 arithmetic (`primitives.FP16_ARITHMETIC`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, PointerType, PrimType, TensorLoad
from tvm_ffi.structural import structural_map

from romou.compiler.passes.fp16_moves import Moves
from romou.compiler.tir.calls import is_conditional, is_fp16_conversion, is_reinterpretation, op_name
from romou.compiler.tir.primitives import FP16_ARITHMETIC, LANES, TENSOR_CORES
from romou.compiler.tir.traversal import function_pass, nodes_in, substitute, with_fields
from romou.devices.backends.dialect import Dialect, dialect_of

_BINARY = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.Min,
    tirx.Max,
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.EQ,
    tirx.NE,
)


def _widened(dtype: str) -> str:
    return dtype.replace("float16", "float32")


def _without_round_trip(cast: tirx.Cast) -> tirx.Expr:
    """Drop a cast from fp16 to fp32 and back, which changes nothing."""
    inner = cast.value
    is_round_trip = (
        isinstance(inner, tirx.Cast) and str(inner.value.ty) == str(cast.ty) and str(inner.ty) == _widened(str(cast.ty))
    )
    return inner.value if is_round_trip else cast


def _bits_of(value: tirx.Expr, dialect: Dialect) -> tirx.Expr:
    """Return an fp32 value as the bits of fp16. Loaded bits are returned unconverted."""
    if is_fp16_conversion(value):
        return value.args[1]
    if is_conditional(value):
        condition, *values = value.args
        return tirx.if_then_else(condition, *(_bits_of(branch, dialect) for branch in values))
    return dialect.fp16_of_fp32(value)


def _read_by_tensor_cores(func: tirx.PrimFunc) -> set[tirx.Var]:
    """Return the buffers of fp16 bits that tensor cores read: in marked statements, or by functions of the device."""
    marked = [stmt for stmt in nodes_in(func.body, tirx.AttrStmt) if stmt.attr_key == TENSOR_CORES]
    calls = [call for call in nodes_in(func.body, Call) if op_name(call) == "tirx.call_extern"]
    given = {var for call in calls for var in nodes_in(call, tirx.Var)}
    allocated = {stmt.buffer for stmt in nodes_in(func.body, tirx.AllocBuffer) if stmt.buffer in given}
    return {load.source for stmt in marked for load in nodes_in(stmt.body, TensorLoad)} | allocated


def _shape_of_scalars(buffer: tirx.Buffer) -> list[tirx.Expr]:
    """Return the shape of an array of vectors as an array of scalars."""
    return [*buffer.shape[:-1], buffer.shape[-1] * int(tvm.DataType(str(buffer.dtype)).lanes)]


def _of_scalars(buffer: tirx.Buffer, indices: list[tirx.Expr]) -> list[tirx.Expr]:
    """Return the indices of an access of an array of vectors as indices of an array of scalars."""
    lanes = int(tvm.DataType(str(buffer.dtype)).lanes)
    return [tirx.Ramp(indices[0] * lanes, tirx.const(1, "int32"), lanes)] if lanes > 1 else list(indices)


def _is_fp16(buffer: tirx.Var) -> bool:
    return "float16" in str(buffer.dtype)


def _is_in_memory(pointer: tirx.Var, pointers: Mapping[tirx.Var, tirx.Var]) -> bool:
    """Return whether a parameter holds fp16 as bits. Images hold floats."""
    return pointer in pointers and str(pointers[pointer].ty.element_type) == "uint16"


def _uses_fp16(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel without fp16 parameters stores or computes fp16. Most do not."""
    nodes = nodes_in(func.body, tirx.AllocBuffer, tirx.Cast, tirx.FloatImm)
    return any("float16" in str(node.buffer.dtype if isinstance(node, tirx.AllocBuffer) else node.ty) for node in nodes)


def _cast(old: tirx.Cast) -> tirx.Expr:
    dtype = _widened(str(old.ty))
    if str(old.value.ty) == dtype:
        return old.value
    return old if str(old.ty) == dtype else tirx.Cast(dtype, old.value)


def _binary(old: Any) -> tirx.Expr:
    return type(old)(old.a, old.b) if "float16" in str(old.ty) else old


# Expressions made again of operands that have become single precision. Sums, products and casts of integers stay the
# same objects: new ones in the shape of a buffer would make another variable of the buffer.
_ARITHMETIC: list[tuple[Any, Callable[[Any], Any]]] = [
    (tirx.Cast, _cast),
    (tirx.FloatImm, lambda old: tirx.FloatImm(_widened(str(old.ty)), old.value)),
    (_BINARY, _binary),
    (tirx.Broadcast, lambda old: tirx.Broadcast(old.value, old.lanes)),
    (tirx.Select, lambda old: tirx.Select(old.condition, old.true_value, old.false_value)),
    (tirx.Shuffle, lambda old: tirx.Shuffle(old.vectors, old.indices)),
]


def compute_in_single(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return an unscheduled function that computes in fp32, as its kernels do. Only its parameters are fp16.

    a: fp16                                  s: float
    s[i] = s[i] + a[i, k]            ->      s[i] = s[i] + float(a[i, k])
    b[i] = s[i] / fp16(2)                    b[i] = fp16(s[i] / 2.0f)
    """
    if not any(str(p.dtype) == "float16" for p in func.params):
        return func
    root = func.body.block
    inside = {
        old: tirx.decl_buffer(old.shape, _widened(str(old.dtype)), old.name)
        for old in root.alloc_buffers
        if str(old.dtype) == "float16"
    }

    def load(access: TensorLoad) -> tirx.Expr:
        if access.source in inside:
            return tirx.BufferLoad(inside[access.source], access.indices)
        return tirx.Cast("float32", access) if str(access.ty) == "float16" else access

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        buffer = inside.get(access.buffer, access.buffer)
        value = access.value
        return tirx.BufferStore(
            buffer, value if str(value.ty) == str(buffer.dtype) else tirx.Cast(str(buffer.dtype), value), access.indices
        )

    def call(old: Call) -> tirx.Expr:
        return with_fields(old, ret_ty=_widened(str(old.ty))) if isinstance(old.ty, PrimType) else old

    def block(old: s_tir.SBlock) -> s_tir.SBlock:
        reads, writes = (
            [tirx.BufferRegion(inside.get(r.source, r.source), r.region) for r in part]
            for part in (old.reads, old.writes)
        )
        allocated = [inside.get(buffer, buffer) for buffer in old.alloc_buffers]
        return with_fields(old, reads=reads, writes=writes, alloc_buffers=allocated)

    body = structural_map(
        func.body, [(TensorLoad, load), (tirx.BufferStore, store), (Call, call), (s_tir.SBlock, block), *_ARITHMETIC]
    )
    return func.with_body(body)


def _with_wide_outputs(func: tirx.PrimFunc) -> tirx.Stmt:
    """Return the body of a kernel that computes in fp16, with the epilogue of its sums in fp32, rounded once.

    half4 *y, *bias
    y[i] = max(half4(acc) + bias[i], half4(0))
        ->  y[i] = half4(max(acc + float4(bias[i]), float4(0)))
    """

    def load(access: TensorLoad) -> tirx.Expr:
        return tirx.Cast(_widened(str(access.ty)), access) if "float16" in str(access.ty) else access

    def call(old: Call) -> tirx.Expr:
        if op_name(old) == "tirx.texture2d_load":
            return tirx.Cast(_widened(str(old.ty)), old) if "float16" in str(old.ty) else old
        return with_fields(old, ret_ty=_widened(str(old.ty))) if isinstance(old.ty, PrimType) else old

    def wide(value: tirx.Expr) -> tirx.Expr:
        widened = structural_map(value, [(TensorLoad, load), (Call, call), *_ARITHMETIC])
        return _without_round_trip(tirx.Cast(str(value.ty), widened)) if str(widened.ty) != str(value.ty) else widened

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        if "float16" not in str(access.value.ty) or str(access.buffer.scope()) != "global":
            return access
        return tirx.BufferStore(access.buffer, wide(access.value), access.indices)

    def evaluated(stmt: tirx.Evaluate) -> tirx.Stmt:
        texel_store = stmt.value
        if op_name(texel_store) != "tirx.texture2d_store" or "float16" not in str(texel_store.args[-1].ty):
            return stmt
        return tirx.Evaluate(
            with_fields(texel_store, args=[*texel_store.args[:-1], wide(texel_store.args[-1])], ret_ty=texel_store.ty)
        )

    marks = (tirx.AttrStmt, lambda s: s.body if s.attr_key == FP16_ARITHMETIC else s)
    return structural_map(
        func.body, [marks, (tirx.BufferStore, store), (tirx.Evaluate, evaluated), (tirx.Cast, _without_round_trip)]
    )


@function_pass
def widen_fp16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute fp16 values of a device function as fp32, while accesses are still accesses of scalar buffers.

    half* a, … a[4 * i : 4 * i + 4] * h(2)
        ->  ushort* a, … vloada_half4(i, (half*)a) * 2.0f                      OpenCL
        ->  ushort* a, … float_of_half(a[4 * i : 4 * i + 4]) * 2.0f            CUDA

    Values that the kernel only moves stay bits (`fp16_moves.py`):

    half *a, *b, … b[i] = a[i]      ->      ushort *a, *b, … b[i] = a[i]

    A vector at a multiple of its lanes is aligned, because every buffer is. OpenCL reads other vectors lane by lane.
    """
    dialect = dialect_of(func)
    pointers = _fp16_pointers(func, dialect)
    if not pointers and not _uses_fp16(func):
        return func
    if any(stmt.attr_key == FP16_ARITHMETIC for stmt in nodes_in(func.body, tirx.AttrStmt)):
        return func.with_body(_with_wide_outputs(func))
    body = _Widener(func, dialect, pointers).widened()
    return with_fields(func, params=[pointers.get(p, p) for p in func.params], body=body)


def _fp16_pointers(func: tirx.PrimFunc, dialect: Dialect) -> dict[tirx.Var, tirx.Var]:
    """Return fp16 parameter -> parameter that replaces it: a pointer to bits, or an image."""
    pointers = {}
    for parameter in func.params:
        # The element may be a vector: TVM turns workspaces, which are no parameters of the function, into arrays of
        # vectors.
        if isinstance(parameter.ty, PointerType) and str(parameter.ty.element_type).partition("x")[0] == "float16":
            # A kernel needs the extension if its text names the type half. Other 16-bit types need none.
            image = "float16" if dialect.names_fp16_images else "float32"
            stored = image if "texture" in str(parameter.ty.storage_scope) else "uint16"
            pointers[parameter] = tirx.Var(parameter.name, PointerType(PrimType(stored), parameter.ty.storage_scope))
    return pointers


class _Widener:
    """Rewrites a device function from fp16 to fp32 arithmetic.

    pointers: fp16 parameter -> its replacement.
    buffers: fp16 buffer -> its replacement, of bits or of fp32.
    names: fp16 variable -> fp32 variable.
    """

    def __init__(self, func: tirx.PrimFunc, dialect: Dialect, pointers: Mapping[tirx.Var, tirx.Var]) -> None:
        self.func, self.dialect, self.pointers = func, dialect, pointers
        self.analyzer = tvm.sym.Analyzer()
        self.buffers: dict[tirx.Var, tirx.Var] = {}
        self.names: dict[tirx.Var, tirx.Var] = {}
        self.for_tensor_cores = _read_by_tensor_cores(func)
        stored_as_bits = {
            stmt.buffer for stmt in nodes_in(func.body, tirx.DeclBuffer) if _is_in_memory(stmt.data, pointers)
        } | {buffer for buffer in self.for_tensor_cores if str(buffer.scope()) == "shared" and _is_fp16(buffer)}
        self.moves = Moves(func.body, stored_as_bits) if stored_as_bits and dialect.moves_fp16_bits else None

    def widened(self) -> tirx.Stmt:
        """Return the rewritten body: declarations first, because accesses depend on them."""
        body = structural_map(
            self.func.body, [(tirx.DeclBuffer, self.visit_declaration), (tirx.AllocBuffer, self.visit_allocation)]
        )
        if (moves := self.moves) is not None:

            def indices_of(buffer: tirx.Var, indices: list[tirx.Expr]) -> list[tirx.Expr]:
                return _of_scalars(buffer, indices) if buffer in moves.memory else indices

            body = moves.with_bits(body, self.buffers, indices_of)
        if self.dialect.packs_fp16_as_bits:
            body = structural_map(body, (Call, self.visit_bits))
        body = structural_map(
            body,
            [
                (TensorLoad, self.visit_load),
                (tirx.BufferStore, self.visit_store),
                (Call, self.visit_call),
                (tirx.Bind, self.visit_bind),
                (tirx.Var, lambda var: self.names.get(var, var)),
                *_ARITHMETIC,
            ],
        )
        # What is left of old buffers are addresses that functions get.
        return substitute(body, self.buffers)

    def visit_declaration(self, stmt: tirx.DeclBuffer) -> tirx.Stmt:
        """Declare a parameter's buffer as one of scalars."""
        if stmt.data not in self.pointers:
            return stmt
        old, pointer = stmt.buffer, self.pointers[stmt.data]
        self.buffers[old] = tirx.decl_buffer(
            _shape_of_scalars(old), str(pointer.ty.element_type), old.name, data=pointer, scope=str(old.scope())
        )
        return tirx.DeclBuffer(self.buffers[old], data=pointer)

    def visit_allocation(self, stmt: tirx.AllocBuffer) -> tirx.Stmt:
        """Allocate fp32, or bits if the values are only moved or tensor cores read them."""
        old = stmt.buffer
        if self.moves is not None and old in self.moves.registers:
            stored = str(tvm.DataType("uint16").with_lanes(tvm.DataType(str(old.dtype)).lanes))
        elif "float16" not in str(old.dtype):
            return stmt
        else:
            stored = "uint16" if old in self.for_tensor_cores else _widened(str(old.dtype))
        shape = _shape_of_scalars(old) if stored == "uint16" else old.shape
        self.buffers[old] = tirx.decl_buffer(shape, stored, old.name, scope=str(old.scope()))
        return tirx.AllocBuffer(self.buffers[old])

    def visit_bind(self, stmt: tirx.Bind) -> tirx.Stmt:
        """Bind an fp32 variable."""
        if "float16" not in str(stmt.var.ty):
            return stmt
        self.names[stmt.var] = tirx.Var(stmt.var.name, _widened(str(stmt.var.ty)))
        return tirx.Bind(self.names[stmt.var], stmt.value)

    def visit_bits(self, call: Call) -> tirx.Expr:
        """Load the bits of fp16, or convert them (`double_buffers.py`)."""
        if not is_reinterpretation(call):
            return call
        (value,) = call.args[1:]
        if "float16" in str(call.ty):
            return self.dialect.fp32_of_fp16(value)
        if not isinstance(value, TensorLoad) or value.source not in self.buffers:
            return call
        indices = _of_scalars(value.source, value.indices)
        offset, pointer, lanes, is_aligned = self._address(value.source, indices)
        if is_aligned:
            return self.dialect.load_fp16_bits(offset, pointer, lanes)
        return self.dialect.reinterpreted(tirx.BufferLoad(self.buffers[value.source], indices), str(call.ty))

    def visit_load(self, access: TensorLoad) -> tirx.Expr:
        """Load bits and convert them, or load fp32."""
        new = self.buffers.get(access.source)
        if new is None:
            return access
        if str(new.dtype) != "uint16":
            return tirx.BufferLoad(new, access.indices)
        indices = _of_scalars(access.source, access.indices)
        if self.dialect.converts_fp16_in_memory:
            return self.dialect.load_fp16(*self._address(access.source, indices))
        return self.dialect.fp32_of_fp16(tirx.BufferLoad(new, indices))

    def visit_store(self, access: tirx.BufferStore) -> tirx.Stmt:
        """Convert and store bits, or store fp32."""
        new = self.buffers.get(access.buffer)
        if new is None:
            return access
        if str(new.dtype) != "uint16":
            return tirx.BufferStore(new, access.value, access.indices)
        indices = _of_scalars(access.buffer, access.indices)
        if self.dialect.converts_fp16_in_memory:
            return self.dialect.store_fp16(access.value, *self._address(access.buffer, indices))
        return tirx.BufferStore(new, _bits_of(access.value, self.dialect), indices)

    def visit_call(self, old: Call) -> tirx.Expr:
        """Return the call with fp32 operands and result."""
        name = op_name(old)
        arguments = list(old.args)
        if name == "tirx.buffer_data":
            return self.buffers[old.args[0]].data if old.args[0] in self.buffers else old
        if name in ("tirx.texture2d_load", "tirx.texture2d_store"):
            # Four fp32 values are read from and written to an fp16 image as well. The code generator chooses the
            # function by these bits.
            arguments[4] = tirx.const(LANES * np.dtype("float32").itemsize * 8, "int32")
        elif not isinstance(old.ty, PrimType):
            return old
        return with_fields(old, args=arguments, ret_ty=_widened(str(old.ty)))

    def _address(self, buffer: tirx.Var, indices: list[tirx.Expr]) -> tuple[tirx.Expr, tirx.Expr, int, bool]:
        """Return (offset, pointer, lanes, is_aligned) of an access of the vector at pointer[lanes * offset]."""
        (index,) = indices
        base, lanes = (index.base, int(index.lanes)) if isinstance(index, tirx.Ramp) else (index, 1)
        multiples = self.analyzer.modular_set(base)
        is_aligned = int(multiples.coeff) % lanes == int(multiples.base) % lanes == 0
        if is_aligned:
            start, offset = self.buffers[buffer].data, self.analyzer.simplify(base // lanes)
        else:
            start, offset = tirx.address_of(tirx.BufferLoad(self.buffers[buffer], [base])), tirx.const(0, "int32")
        return offset, self.dialect.fp16_pointer(start, str(buffer.scope())), lanes, is_aligned
