"""How the multiplications and additions of a kernel are spelled: autobroadcast and fused multiply-add (paper, Section 4.1, Listing 4).

A scalar times a vector is written as just that. Hardware multiplies a scalar register with a vector one; a vector of four copies, which
TVM writes, takes four registers and, where the compiler does not see through it, four loads of the scalar.

    acc = acc + ((float4)(x, x, x, x)) * v      ->      acc = acc + x * v               autobroadcast
                                                        acc = mad((float4)(x), v, acc)      with multiply-add; (float4)(x) is OpenCL's broadcast
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_mutate

from romou.backends.dialects import CUDA, bare_scalar, broadcast, dialect_of
from romou.tir.calls import extern_name
from romou.tir.primitives import AUTOBROADCAST, MULTIPLY_ADD


@tirx.transform.prim_func_pass(opt_level=0)
def spell_arithmetic(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run after VectorizeLoop: what `primitives.autobroadcast` and `primitives.multiply_add` marked is written out, the marks go."""

    # Without vector arithmetic, TVM writes products lane by lane, and each lane of a broadcast is the scalar already.
    has_vectors = dialect_of(func) != CUDA

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        marks, body = {}, stmt
        while isinstance(body, tirx.AttrStmt) and body.attr_key in (AUTOBROADCAST, MULTIPLY_ADD):
            marks[body.attr_key] = body.value
            body = body.body
        if not marks:
            return mutator.default_mutate(stmt)
        if AUTOBROADCAST in marks and has_vectors:
            body = structural_map(body, (tirx.Mul, _scalar_times_vector))
        if MULTIPLY_ADD in marks:
            function = str(marks[MULTIPLY_ADD].value)
            body = structural_map(body, (tirx.Add, lambda add: _multiply_add(function, add)))
        return mutator.mutate(body)

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def _scalar_times_vector(product: tirx.Expr) -> tirx.Expr:
    return tirx.Mul(_scalar(product.a), _scalar(product.b))


def _scalar(factor: tirx.Expr) -> tirx.Expr:
    return bare_scalar(factor.value, str(factor.ty)) if isinstance(factor, tirx.Broadcast) else factor


def _multiply_add(name: str, add: tirx.Expr) -> tirx.Expr:
    for product, term in ((add.b, add.a), (add.a, add.b)):
        if isinstance(product, tirx.Mul) and "float" in str(add.ty):
            return tirx.call_pure_extern(add.ty, name, _as_vector(product.a), _as_vector(product.b), term)
    return add


def _as_vector(factor: tirx.Expr) -> tirx.Expr:
    """A scalar among the operands of a multiply-add, which must all have one type: OpenCL's broadcast of it."""
    return broadcast(factor.args[1], str(factor.ty)) if extern_name(factor) == "" else factor
