"""Spelling of the multiplications and additions of a kernel (paper, Section 4.1, Listing 4).

It covers autobroadcast and fused multiply-add.

A product or sum of a scalar and a vector is written without a broadcast, because hardware combines a scalar register
with a vector register. TVM writes a vector of four copies. It takes four registers, and four loads of the scalar if the
compiler does not recognize the copies.

    acc = acc + ((float4)(x, x, x, x)) * v      ->      acc = acc + x * v                 autobroadcast
                                                        acc = mad((float4)(x), v, acc)    with multiply-add
    out = a + ((float4)(n, n, n, n))            ->      out = a + n                       autobroadcast
    out = ((float4)(n, n, n, n)) / a            ->      out = n / a                       autobroadcast

`(float4)(x)` is OpenCL's broadcast. A multiply-add has it with autobroadcast, too: in OpenCL C, arguments of `mad` and
`fma` have one type ("gentype"). PoCL, Intel's and Mesa's compilers, all built on clang, convert a scalar by themselves;
no phone's compiler was at hand to try. The spelling "plain" has no conversion.

Mesa's compilers for Adreno and Mali recognise the copies: neither spelling changes an instruction or a register there
(benchmarks/bench_listing4.py). The paper's 4.9 times on an Adreno 640 is by Qualcomm's compiler.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_map, structural_mutate

from romou.compiler.tir.calls import extern_name
from romou.compiler.tir.primitives import AUTOBROADCAST, MULTIPLY_ADD
from romou.compiler.tir.traversal import function_pass
from romou.devices.backends.dialect import Dialect, dialect_of


@function_pass
def spell_arithmetic(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write products as `primitives.autobroadcast` and `primitives.multiply_add` marked them, after VectorizeLoop."""

    dialect = dialect_of(func)

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        marks, body = {}, stmt
        while isinstance(body, tirx.AttrStmt) and body.attr_key in (AUTOBROADCAST, MULTIPLY_ADD):
            marks[body.attr_key] = body.value
            body = body.body
        if not marks:
            return mutator.default_mutate(stmt)
        # Without vector arithmetic, TVM writes products lane by lane, and each lane of a broadcast is the scalar
        # already.
        if AUTOBROADCAST in marks and dialect.has_vector_arithmetic:
            body = structural_map(
                body,
                [
                    (
                        tirx.Mul,
                        lambda product: tirx.Mul(*(_scalar(factor, dialect) for factor in (product.a, product.b))),
                    ),
                    ((tirx.Add, tirx.Sub, tirx.Div), lambda pair: _with_scalar(pair, dialect)),
                ],
            )
        if MULTIPLY_ADD in marks:
            function = str(marks[MULTIPLY_ADD].value)
            body = structural_map(body, (tirx.Add, lambda add: _multiply_add(function, add, dialect)))
        return mutator.mutate(body)

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def _scalar(operand: tirx.Expr, dialect: Dialect) -> tirx.Expr:
    """Return a vector of copies as a scalar. OpenCL converts no int to the type of shorter integers, as of char4."""
    is_copied = isinstance(operand, tirx.Broadcast) and "float" in str(operand.ty)
    return dialect.bare_scalar(operand.value, str(operand.ty)) if is_copied else operand


def _with_scalar(pair: tirx.Add | tirx.Sub | tirx.Div, dialect: Dialect) -> tirx.Expr:
    """Return a sum or quotient of a vector and a scalar. Of two scalars it stays a vector."""
    operands = (pair.a, pair.b)
    if sum(isinstance(operand, tirx.Broadcast) for operand in operands) != 1:
        return pair
    return type(pair)(*(_scalar(operand, dialect) for operand in operands))


def _multiply_add(name: str, add: tirx.Expr, dialect: Dialect) -> tirx.Expr:
    for product, term in ((add.b, add.a), (add.a, add.b)):
        if isinstance(product, tirx.Mul) and "float" in str(add.ty):
            return tirx.call_pure_extern(
                add.ty, name, *(_as_vector(factor, dialect) for factor in (product.a, product.b)), term
            )
    return add


def _as_vector(factor: tirx.Expr, dialect: Dialect) -> tirx.Expr:
    """Return a factor of a multiply-add, a scalar as a vector of copies. All operands must have one type."""
    return dialect.broadcast(factor.args[1], str(factor.ty)) if extern_name(factor) == "" else factor
