"""Dialects: the spelling of operations that TIR has no word for. Passes take all text of kernels from here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.ir import PointerType


class Dialect:
    """A kernel language. Each backend's folder has a subclass.

    has_vector_arithmetic     whether vectors have + and *. Without it every lane is an operation
    has_images                whether kernels may access images. Buffers keep the tensor's axes until vectorization
    has_negative_truth        whether a true lane is -1 and not 1
    has_pointers              whether a loop can advance a pointer to a tensor (`pointer_to`, `advance`) and be kept
                              (`keep_loop`)
    has_unroll_pragma         whether a loop can be left to the compiler to unroll
    widens_truth_values       whether TVM's code generator stores vectors of truth values as larger integers
    packs_gathered_bytes      whether TVM's code generator packs a vector of gathered bytes into a 32-bit integer
    prints_seven_digits       whether TVM's code generator prints only seven digits of a constant
    takes_vectors_apart       whether TVM's code generator identifies each vector's variable by the vector's text
    converts_fp16_in_memory   whether loads and stores convert fp16 (`load_fp16`). Otherwise registers hold its bits
    packs_fp16_as_bits        whether fp16 vectors that are loaded ahead are held as bits in 32-bit integers
    moves_fp16_bits           whether kernels may move the fp16 of a buffer as 16-bit integers, without a conversion
    names_fp16_images         whether a kernel has to declare that an image it writes holds fp16
    has_cooperative_matrices  whether warps load matrices from local memory. Otherwise each work-item holds its fragment
    fp16_texel                the type of four fp16 values in memory
    rounds_divisions_roughly  whether fp32 divisions may be off by more than one ULP, unless `correctly_rounded`
    widest_vector             most lanes of the vectors that a register tile is made of
    rounding_mark             the external function around correctly rounded divisions
    """

    has_vector_arithmetic = True
    has_images = True
    has_negative_truth = False
    has_pointers = False
    has_unroll_pragma = False
    widens_truth_values = False
    packs_gathered_bytes = False
    prints_seven_digits = False
    takes_vectors_apart = False
    converts_fp16_in_memory = True
    packs_fp16_as_bits = False
    moves_fp16_bits = True
    names_fp16_images = False
    has_cooperative_matrices = False
    fp16_texel = "uint64"
    rounds_divisions_roughly = False
    widest_vector = 4
    rounding_mark = ""

    def broadcast(self, scalar: tirx.Expr, dtype: str) -> tirx.Expr:
        """Return a vector of copies, or the scalar in a language without vector arithmetic."""
        raise NotImplementedError

    def vector_of(self, scalars: Sequence[tirx.Expr], dtype: str) -> tirx.Expr:
        """Return a vector of scalars, which may have a smaller type than its lanes."""
        raise NotImplementedError

    def narrowed(self, value: tirx.Expr) -> tirx.Expr:
        """Return a scalar of 8 or 16 bits in its own type. C's arithmetic makes it an int."""
        raise NotImplementedError

    def bare_scalar(self, scalar: tirx.Expr, dtype: str) -> tirx.Expr:
        """Return a scalar in place of a vector, if the language has vector arithmetic."""
        raise NotImplementedError

    def reinterpreted(self, value: tirx.Expr, dtype: str) -> tirx.Expr:
        """Return the bits of a value as another type of the same size, if `packs_fp16_as_bits`."""
        raise NotImplementedError

    def load_fp16_bits(self, offset: tirx.Expr, pointer: tirx.Expr, lanes: int) -> tirx.Expr:
        """Read the bits of fp16 values from pointer[lanes * offset] on, aligned, if `packs_fp16_as_bits`."""
        raise NotImplementedError

    def correctly_rounded(self, quotient: tirx.Expr) -> tirx.Expr:
        """Return an fp32 division that is rounded correctly. Only OpenCL C needs a mark for it."""
        return quotient

    def short_function(self, name: str, operand: tirx.Expr, call: tirx.Expr) -> tirx.Expr:
        """Return a function of `passes/short_functions.py` as the language's own function, or `call` unchanged."""
        return call

    def native_function(self, name: str, operands: Sequence[tirx.Expr], call: tirx.Expr) -> tirx.Expr:
        """Return a function (exp, recip or divide) by the device's own instructions, or `call` unchanged."""
        return call

    def fp16_pointer(self, start: tirx.Expr, scope: str) -> tirx.Expr:
        """Return a pointer to fp16 values in memory that has another declared type."""
        raise NotImplementedError

    def load_fp16(self, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool) -> tirx.Expr:
        """Read fp16 values from pointer[lanes * offset] on as fp32.

        is_aligned: whether their address is a multiple of their size.
        """
        raise NotImplementedError

    def store_fp16(
        self, value: tirx.Expr, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool
    ) -> tirx.Stmt:
        """Write fp32 values as fp16 from pointer[lanes * offset] on. is_aligned: as for `load_fp16`."""
        raise NotImplementedError

    def pointer_to(self, ty: PointerType, buffer: tirx.Buffer, index: tirx.Expr) -> tirx.Expr:
        """Return a pointer to an element of a read-only buffer in global memory (`passes/advancing_pointers.py`)."""
        raise NotImplementedError

    def advance(self, pointer: tirx.Var, elements: int) -> tirx.Stmt:
        """Return the statement `pointer += elements`."""
        raise NotImplementedError

    def keep_loop(self) -> tirx.Stmt:
        """Return the statement in front of a loop that the device's compiler has to keep.

        The third dimension of the launch has one work group.
        """
        raise NotImplementedError

    def keep_nan(self, extreme: tirx.Max | tirx.Min) -> tirx.Expr | None:
        """Return a maximum or minimum of floats that propagates NaN. None if comparisons do (`passes/nan.py`)."""
        return None

    def fp32_of_fp16(self, bits: tirx.Expr) -> tirx.Expr:
        """Return fp32 values from the bits of fp16 values in unsigned integers of 16 bits.

        If `packs_fp16_as_bits`, the integers have 32 bits.
        """
        raise NotImplementedError

    def fp16_of_fp32(self, value: tirx.Expr) -> tirx.Expr:
        """Return the bits of fp32 values rounded to fp16, as unsigned integers."""
        raise NotImplementedError


def dialect_of(func: tirx.PrimFunc) -> Dialect:
    """Return the language of a function with a target.

    Other functions, and functions of the host, have the default kind's language.
    """
    from romou.devices.backends import DEFAULT_KIND, backend, installed

    target = func.attrs.get("target", None) if func.attrs else None
    kind = "" if target is None else str(target.kind.name)
    return backend(kind if kind in installed() else DEFAULT_KIND).dialect


def dialects_of(mod: tvm.IRModule) -> list[Dialect]:
    """Return the language of each function of a module."""
    return [dialect_of(func) for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]


# Functions that a language with tensor cores defines (`backends/ptx.py`). A texel is four adjacent elements.


# Rows of activations that a warp group multiplies at a time.
WARP_GROUP_COLUMNS = tuple(range(16, 257, 16))


def call_on_device(name: str, *args: tirx.Expr | int) -> tirx.Stmt:
    """Return the call of a function that the device's language defines and that stores its results."""
    return tirx.Evaluate(tirx.call_extern("int32", name, *args))


def load_texel(offset: tirx.Expr, pointer: tirx.Expr, dtype: str, *, is_staged: bool) -> tirx.Expr:
    """Return the four elements from pointer[4 * offset] on: fp16 as their 64 bits in memory, or fp32.

    dtype: the dialect's type of fp16 texels, or "float32x4".
    is_staged: whether they are in local memory.
    """
    name = f"load{'_staged' * is_staged}_{'floats' if dtype == 'float32x4' else 'texel'}"
    return tirx.call_pure_extern(dtype, name, offset, pointer)


def load_texel_pair(offset: tirx.Expr, buffer: tirx.Var, into: tirx.Var) -> tirx.Stmt:
    """Read the eight fp16 values from buffer[8 * offset] on, as their bits in memory, into two 64-bit integers."""
    return call_on_device("load_texel_pair", offset, buffer.data, into.data)


def copy_async(
    count: int, offset: tirx.Expr, buffer: tirx.Var, into_offset: tirx.Expr, into: tirx.Var, inside: tirx.Expr
) -> tirx.Stmt:
    """Start an asynchronous copy of the `count` elements from buffer[count * offset] on: four, or eight of fp16.

    They become into[count * into_offset : ...] in local memory, or zeros if they are not `inside`.
    """
    texels = "floats" if str(buffer.dtype) == "float32" else {4: "texel", 8: "texel_pair"}[count]
    return call_on_device(f"copy_{texels}_async", offset, buffer.data, into_offset, into.data, inside)


def tf32_of_fp32(value: tirx.Expr) -> tirx.Expr:
    """Return floats rounded to TF32, to the nearest, ties away from zero."""
    return tirx.call_pure_extern(str(value.ty), "tf32_of_float", value)


def tensor_core_fma(
    acc: tirx.Var, first: int, weight: Sequence[tirx.Expr], data: tirx.Expr, *, splits_floats: bool = False
) -> tirx.Stmt:
    """Add the products of a warp's texels to acc[first + 4 * pixel + lane] on tensor cores.

    There are two pixels and four lanes.

    weight: four output channels for each of four input channels.
    data: four input channels. Both are bits of fp16, or fp32 rounded to TF32.
    splits_floats: whether both are fp32 as it is, which is multiplied in fp32's precision.
    """
    name = "tensor_core_fma" + ("" if "float32" not in str(data.ty) else "_tf32x3" if splits_floats else "_tf32")
    return call_on_device(name, first, acc.data, *weight, data)


@dataclass(frozen=True, kw_only=True)
class MatricesInMemory:
    """Consecutive matrices in local memory: column j of matrix i starts at buffer[start + (16 * i + j) * stride].

    count: the number of matrices.
    """

    buffer: tirx.Var
    start: tirx.Expr
    stride: int
    count: int = 1


# TVM's scope of cooperative matrices: an array of matrices with sides of `MATRIX`, initially zero. A work-item cannot
# see which elements it holds.
MATRICES, MATRIX = "wmma.accumulator", 16


def multiply_matrices(sums: tirx.Var, rows: MatricesInMemory, columns: MatricesInMemory) -> tirx.Stmt:
    """Add to sums[r * columns.count + c] the product of matrix r of `rows` and matrix c of `columns`, both of fp16."""
    counts = (tirx.const(count, "int32") for count in (rows.count, columns.count))
    operands = (
        part for side in (rows, columns) for part in (side.buffer.data, side.start, tirx.const(side.stride, "int32"))
    )
    return call_on_device("multiply_matrices", sums.data, *counts, *operands)


def store_matrix(sums: tirx.Var, number: int, into: MatricesInMemory) -> tirx.Stmt:
    """Write sums[number] to local memory, column by column."""
    stride = tirx.const(into.stride, "int32")
    return call_on_device("store_matrix", sums.data, number, into.buffer.data, into.start, stride)


# Functions of sub-groups, which each language's folder defines: the operations of a reduction, and the size that it
# assumes.
SUB_GROUP_CALL = re.compile(r"\bsub_group_(add|max|min|max_with_nan|min_with_nan|shuffle_xor)_of_(\d+)\b")


def sub_group_reduce(operation: str, value: tirx.Expr, size: int) -> tirx.Expr:
    """Return a reduction over a sub-group of `size` work-items. Each of them gets the result.

    operation: "add", "max", "min", "max_with_nan" or "min_with_nan".
    value: an fp32 number. Every work-item of the group has to reach the call. The result is NaN if sub-groups have
    another size.
    """
    return tirx.call_pure_extern("float32", f"sub_group_{operation}_of_{size}", value)


def sub_group_shuffle_xor(value: tirx.Expr, lanes: int, size: int) -> tirx.Expr:
    """Return the fp32 number of the work-item at (own number xor `lanes`) in the sub-group of `size`.

    The rules of `sub_group_reduce` apply.
    """
    return tirx.call_pure_extern("float32", f"sub_group_shuffle_xor_of_{size}", value, tirx.const(lanes, "int32"))


# Functions of four bytes with four bytes, which each language's folder defines. Those of vectors are OpenCL's.
DOT_CALL = re.compile(r"\bdot_of_bytes_(ss|us)(?:_(\d+))?\b")


def dot_of_bytes(data: tirx.Expr, weight: tirx.Expr, total: tirx.Expr, *, is_signed: bool) -> tirx.Expr:
    """Return `total`, an int32, plus the dot product of the four bytes of two uint32. It wraps around.

    data: its bytes are signed, or unsigned.
    weight: its bytes are signed. `weight` and `total` may be vectors. All lanes meet `data`.
    """
    lanes = int(tvm.DataType(str(weight.ty)).lanes)
    name = f"dot_of_bytes_{'ss' if is_signed else 'us'}" + (f"_{lanes}" if lanes > 1 else "")
    return tirx.call_pure_extern(vector_type("int32", lanes), name, data, weight, total)


def fetch_ahead(load: tirx.Expr, ahead: int) -> tirx.Stmt:
    """Start to read the cache line `ahead` words after a loaded word. It may be outside of the tensor.

    OpenCL's folder defines it. It does nothing but on CPUs with VNNI.
    """
    return call_on_device("fetch_ahead", tirx.address_of(load), ahead)


# Accesses of bytes, four to a word of 32 bits, which OpenCL's folder defines.
WORDS_CALL = re.compile(r"\b(load|store)_words_(\d+)(?:_by_(\d+))?\b")


def load_words(tensor: tirx.Expr, at: tirx.Expr, count: int, lanes: int, stride: int) -> tirx.Expr:
    """Return a vector of uint32: the words at, at + stride, ... of a tensor. Words that it lacks may be any number.

    tensor: a load of its first byte. It has `count` words.
    """
    name = f"load_words_{lanes}_by_{stride}"
    return tirx.call_pure_extern(vector_type("uint32", lanes), name, tirx.address_of(tensor), at, count)


def store_words(words: tirx.Expr, tensor: tirx.Expr, at: tirx.Expr) -> tirx.Stmt:
    """Store one or several uint32 as word `at` of a tensor, and those after it. tensor: as in `load_words`."""
    lanes = int(tvm.DataType(str(words.ty)).lanes)
    return call_on_device(f"store_words_{lanes}", words, tirx.address_of(tensor), at)


def vector_type(base: str, lanes: int) -> str:
    """Return TVM's name of a vector type, or the scalar's name for one lane."""
    return base if lanes == 1 else f"{base}x{lanes}"
