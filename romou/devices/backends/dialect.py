"""How a kernel language spells what TIR has no word for: the one place for text that passes put into kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.ir import PointerType


class Dialect:
    """A kernel language; each backend's is in its own folder, and overrides what differs from this one.

    has_vector_arithmetic     whether vectors are added and multiplied as such; else every lane is an operation of its own
    has_images                whether kernels may access images, which takes buffers that keep the tensor's axes until vectors are made
    has_negative_truth        whether a lane that is true is -1, so that a vector of truth values cannot be cast to numbers
    has_pointers              whether a loop can advance a pointer to a tensor (`pointer_to`, `advance`)
    has_unroll_pragma         whether a loop can be left to the compiler to unroll
    widens_truth_values       whether TVM's code generator takes a vector of truth values in memory for one of larger integers
    packs_gathered_bytes      whether TVM's code generator makes one 32-bit integer of a vector of bytes that lie apart
    prints_seven_digits       whether TVM's code generator prints seven digits of a constant, and no more
    takes_vectors_apart       whether TVM's code generator keeps each vector in a variable that it finds again by its text
    converts_fp16_in_memory   whether loads and stores convert fp16 (`load_fp16`); else registers hold its bits (`fp32_of_fp16`)
    moves_fp16_bits           whether a kernel may read and write the fp16 of a buffer as 16-bit integers, so that what it only moves is not converted
    names_fp16_images         whether a kernel has to say that an image it writes holds fp16
    has_cooperative_matrices  whether tensor cores take matrices that a warp loads from local memory; else each work-item hands them its part in registers
    fp16_texel                the type of four fp16 numbers as they lie in memory
    rounds_divisions_roughly  whether a division of fp32 numbers may be off by more than one unit in the last place, but for those `correctly_rounded`
    rounding_mark             name of the external function that those are wrapped in
    """  # noqa: E501

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
    moves_fp16_bits = True
    names_fp16_images = False
    has_cooperative_matrices = False
    fp16_texel = "uint64"
    rounds_divisions_roughly = False
    rounding_mark = ""

    def broadcast(self, scalar: tirx.Expr, dtype: str) -> tirx.Expr:
        """A vector of copies, where there is vector arithmetic."""
        raise NotImplementedError

    def vector_of(self, scalars: Sequence[tirx.Expr], dtype: str) -> tirx.Expr:
        """A vector whose lanes are these scalars, which may be of a smaller type than the lanes."""
        raise NotImplementedError

    def narrowed(self, value: tirx.Expr) -> tirx.Expr:
        """A scalar of 8 or 16 bits in its own type, where arithmetic in C makes an int of it."""
        return value

    def bare_scalar(self, scalar: tirx.Expr, dtype: str) -> tirx.Expr:
        """A scalar in the place of a vector, where there is vector arithmetic."""
        raise NotImplementedError

    def correctly_rounded(self, quotient: tirx.Expr) -> tirx.Expr:
        """A division of fp32 numbers that has to be rounded correctly. Languages other than OpenCL C round each one so,
        or cannot be told to.
        """
        return quotient

    def short_function(self, name: str, operand: tirx.Expr, call: tirx.Expr) -> tirx.Expr:
        """A function of fp32 numbers of `passes/short_functions.py`: one of the language's own, or `call`, as it was."""  # noqa: E501
        return call

    def fp16_pointer(self, start: tirx.Expr, scope: str) -> tirx.Expr:
        """A pointer to fp16 numbers that are declared as anything else."""
        raise NotImplementedError

    def load_fp16(self, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool) -> tirx.Expr:
        """Read fp16 numbers from pointer[lanes * offset] on as fp32; is_aligned: whether they begin at a multiple of
        their bytes.
        """
        raise NotImplementedError

    def store_fp16(
        self, value: tirx.Expr, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool
    ) -> tirx.Stmt:
        """Write fp32 numbers as fp16 from pointer[lanes * offset] on; is_aligned: as for `load_fp16`."""
        raise NotImplementedError

    def pointer_to(self, ty: PointerType, buffer: tirx.Buffer, index: tirx.Expr) -> tirx.Expr:
        """Return a pointer to an element of a buffer in global memory that is only read
        (`passes/advancing_pointers.py`).
        """
        raise NotImplementedError

    def advance(self, pointer: tirx.Var, elements: int) -> tirx.Stmt:
        """Let such a pointer point so many elements further."""
        raise NotImplementedError

    def keep_nan(self, extreme: tirx.Max | tirx.Min) -> tirx.Expr | None:
        """A maximum or minimum of floats that keeps NaN; None where comparisons do (`passes/nan.py`)."""
        return None

    def fp32_of_fp16(self, bits: tirx.Expr) -> tirx.Expr:
        """The bits of fp16 numbers, as unsigned integers, as fp32."""
        raise NotImplementedError

    def fp16_of_fp32(self, value: tirx.Expr) -> tirx.Expr:
        """The bits of fp32 numbers rounded to fp16, as unsigned integers."""
        raise NotImplementedError


def dialect_of(func: tirx.PrimFunc) -> Dialect:
    """The language that a function bound to a target is going to be written in; that of the default kind for host
    functions and where none is bound.
    """
    from romou.devices.backends import DEFAULT_KIND, backend, installed

    target = func.attrs.get("target", None) if func.attrs else None
    kind = "" if target is None else str(target.kind.name)
    return backend(kind if kind in installed() else DEFAULT_KIND).dialect


def dialects_of(mod: tvm.IRModule) -> list[Dialect]:
    """Return the language of each function of a module."""
    return [dialect_of(func) for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]


# Functions that a language with tensor cores defines (`backends/cuda/dialect.py`), or writes as it goes. Texels are
# four numbers that lie together.


def load_texel(offset: tirx.Expr, pointer: tirx.Expr, dtype: str) -> tirx.Expr:
    """Four fp16 numbers from pointer[4 * offset] on, as they lie in memory: 64 bits, of a dialect's type for them."""
    return tirx.call_pure_extern(dtype, "load_texel", offset, pointer)


def load_texel_pair(offset: tirx.Expr, buffer: tirx.Var, into: tirx.Var) -> tirx.Stmt:
    """Read the eight fp16 numbers from buffer[8 * offset] on, as they lie in memory, into two numbers of 64 bits."""
    return tirx.Evaluate(tirx.call_extern("int32", "load_texel_pair", offset, buffer.data, into.data))


def copy_texel_async(
    offset: tirx.Expr, buffer: tirx.Var, into_offset: tirx.Expr, into: tirx.Var, inside: tirx.Expr
) -> tirx.Stmt:
    """Begin to copy the texel buffer[4 * offset] and on to into[4 * into_offset] and on, in local memory; zeros where
    it is not `inside`.
    """
    name = "copy_floats_async" if str(buffer.dtype) == "float32" else "copy_halfs_async"
    return tirx.Evaluate(tirx.call_extern("int32", name, offset, buffer.data, into_offset, into.data, inside))


def tf32_of_fp32(value: tirx.Expr) -> tirx.Expr:
    """Floats rounded to TF32: to the nearest, and away from zero where two are equally near."""
    return tirx.call_pure_extern(str(value.ty), "tf32_of_float", value)


def tensor_core_fma(acc: tirx.Var, first: int, weight: Sequence[tirx.Expr], data: tirx.Expr) -> tirx.Stmt:
    """Add what a warp's tensor cores make of its texels to acc[first + 4 * pixel + lane], for two pixels and four
    lanes.

    weight: four output channels for each of four input channels.
    data: four input channels.   Both are bits of fp16, or fp32 rounded to TF32.
    """
    name = "tensor_core_fma_tf32" if "float32" in str(data.ty) else "tensor_core_fma"
    return tirx.Evaluate(tirx.call_extern("int32", name, first, acc.data, *weight, data))


@dataclass(frozen=True, kw_only=True)
class MatricesInMemory:
    """Matrices in local memory, one behind the other: column j of matrix i begins at buffer[start + (16 * i + j) *
    stride].

    count: how many there are.
    """

    buffer: tirx.Var
    start: tirx.Expr
    stride: int
    count: int = 1


# Scope of cooperative matrices, as TVM names it: an array of them, whose sides are `MATRIX`, that begin as zeros. No
# work-item knows what it holds of one.
MATRICES, MATRIX = "wmma.accumulator", 16


def multiply_matrices(sums: tirx.Var, rows: MatricesInMemory, columns: MatricesInMemory) -> tirx.Stmt:
    """Add to sums[r * columns.count + c] the product of matrix r of `rows` and matrix c of `columns`, both of fp16."""
    counts = (tirx.const(count, "int32") for count in (rows.count, columns.count))
    operands = (
        part for side in (rows, columns) for part in (side.buffer.data, side.start, tirx.const(side.stride, "int32"))
    )
    return tirx.Evaluate(tirx.call_extern("int32", "multiply_matrices", sums.data, *counts, *operands))


def store_matrix(sums: tirx.Var, number: int, into: MatricesInMemory) -> tirx.Stmt:
    """Write sums[number] to local memory, column by column."""
    return tirx.Evaluate(
        tirx.call_extern(
            "int32", "store_matrix", sums.data, number, into.buffer.data, into.start, tirx.const(into.stride, "int32")
        )
    )


# Functions of sub-groups, which each language's own folder spells: the operations of a reduction, and the size that
# they count on.
SUB_GROUP_CALL = re.compile(r"\bsub_group_(add|max|min|max_with_nan|min_with_nan|shuffle_xor)_of_(\d+)\b")


def sub_group_reduce(operation: str, value: tirx.Expr, size: int) -> tirx.Expr:
    """Return the sum ("add"), largest or smallest number ("max", "min"; "max_with_nan", "min_with_nan") of a sub-group
    of `size`, for all of it.

    value: an fp32 number. Every work-item of the group has to come here, and the result is NaN where sub-groups have
    another size.
    """
    return tirx.call_pure_extern("float32", f"sub_group_{operation}_of_{size}", value)


def sub_group_shuffle_xor(value: tirx.Expr, lanes: int, size: int) -> tirx.Expr:
    """Return the fp32 number that the work-item `lanes` apart has, its number in the sub-group of `size` xor `lanes`;
    else as `sub_group_reduce`.
    """
    return tirx.call_pure_extern("float32", f"sub_group_shuffle_xor_of_{size}", value, tirx.const(lanes, "int32"))


def vector_type(base: str, lanes: int) -> str:
    """TVM's name of a vector type; of one lane, of the scalar."""
    return base if lanes == 1 else f"{base}x{lanes}"
