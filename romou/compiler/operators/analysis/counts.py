"""Counts of integer operations inside loops, and memory traffic of the busiest loop.

Operations are counted in lowered TIR or in source text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_visit

from romou.compiler.operators.analysis.expressions import LOCAL, PRIVATE, multiply_adds_of, scope_of, value_bytes
from romou.compiler.tir.calls import is_load_for_tensor_cores, is_texel_load
from romou.compiler.tir.traversal import nodes_in

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_OPERATIONS = (
    *_DIVISIONS,
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Min,
    tirx.Max,
    tirx.LShift,
    tirx.RShift,
    tirx.BitwiseAnd,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
    tirx.BitwiseNot,
)


@dataclass(frozen=True)
class IntegerOperations:
    """Integer operations inside the loops of one work-item. An operation on a vector counts once.

    in_loops: operations in the code
    in_loops_weighted: each times the trip counts of all loops around it. An unknown trip count is taken as one
    divisions_in_loops: divisions and modulos among `in_loops`
    """

    in_loops: int
    in_loops_weighted: int
    divisions_in_loops: int


@dataclass(frozen=True)
class TextOperations:
    """Divisions (/) and modulos (%) inside the loops of a source text, whatever the type of their operands."""

    divisions_in_loops: int
    modulos_in_loops: int


def count_integer_operations(func: tirx.PrimFunc) -> IntegerOperations:
    """Count operations on integers inside loops.

    They are additions, subtractions, multiplications, divisions, modulos, minima, maxima, shifts and bit operations.

        for i in range(8): a[i * 4 + threadIdx_x % 3] = 0
            ->  in_loops 3, in_loops_weighted 24, divisions_in_loops 1

    func: lowered TIR of any pipeline. Serial, pragma-unrolled and while loops count. Loops bound to work groups,
        work-items or vector lanes do not. An expression that is written twice counts twice. Comparisons and the
        loop counter do not count.
    """
    operations = divisions = 0
    weighted = 0
    trips: list[int] = []

    def loop(node: tirx.For, visitor: Any) -> None:
        # The bounds of a loop are computed outside it.
        visitor.visit(node.min)
        visitor.visit(node.extent)
        if node.kind in (tirx.ForKind.THREAD_BINDING, tirx.ForKind.VECTORIZED):
            visitor.visit(node.body)
            return
        trips.append(int(node.extent) if isinstance(node.extent, tirx.IntImm) else 1)
        visitor.visit(node.body)
        trips.pop()

    def while_loop(node: tirx.While, visitor: Any) -> None:
        trips.append(1)
        visitor.default_visit(node)
        trips.pop()

    def operation(node: tirx.Expr, visitor: Any) -> None:
        nonlocal operations, weighted, divisions
        if trips and str(node.ty.dtype).startswith(("int", "uint")):
            weight = 1
            for count in trips:
                weight *= count
            operations += 1
            weighted += weight
            divisions += isinstance(node, _DIVISIONS)
        visitor.default_visit(node)

    def skip(_node: Any, _visitor: Any) -> None:
        # The shape of a type is no code.
        return

    structural_visit(
        func.body, [(tvm.ir.Type, skip), (tirx.For, loop), (tirx.While, while_loop), (_OPERATIONS, operation)]
    )
    return IntegerOperations(operations, weighted, divisions)


_NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|^[ \t]*#[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(r"\b(?:for|while|else)\b|[(){};/%]")


def count_text_operations(source: str) -> TextOperations:
    """Count `/` and `%` in the loops of OpenCL C.

    They count in the bodies of `for` and `while` loops, and in the parts of their heads that every iteration computes.

    Comments, strings and preprocessor lines do not count. Types are not known here: a division of floats counts too.
    """
    tokens = _TOKEN.findall(_NO_CODE.sub(" ", source))
    counts = {"/": 0, "%": 0}

    def statement(at: int, in_loop: bool) -> int:
        """Count one statement or block from token `at` on. Return the start of the next one."""
        while at < len(tokens):
            token = tokens[at]
            if token in ("for", "while"):
                return statement(head(at + 1, is_for=token == "for", in_loop=in_loop), True)
            at += 1
            if token == "{":
                while at < len(tokens) and tokens[at] != "}":
                    at = statement(at, in_loop)
                return alternative(at + 1, in_loop)
            if token == ";":
                return alternative(at, in_loop)
            if token == "}":
                return at - 1
            if token in counts:
                counts[token] += in_loop
        return at

    def alternative(at: int, in_loop: bool) -> int:
        """Return the end of the `else` branch, if there is one, behind a statement that ended before token `at`."""
        return statement(at + 1, in_loop) if tokens[at : at + 1] == ["else"] else at

    def head(at: int, *, is_for: bool, in_loop: bool) -> int:
        """Count the parentheses after `for` or `while`. Return the position behind them."""
        depth, semicolons = 0, 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            depth += (token == "(") - (token == ")")
            semicolons += token == ";"
            if depth == 0:
                break
            if token in counts:
                counts[token] += in_loop or not is_for or semicolons > 0
        return at

    at = 0
    while at < len(tokens):
        # A closing brace that nothing opened ends no block.
        at = statement(at + (tokens[at] == "}"), False)
    return TextOperations(counts["/"], counts["%"])


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Loads and multiply-adds of one work-item in one iteration of the innermost loop with the most multiply-adds.

    The whole kernel counts if no loop is left.

    buffer_bytes, image_bytes, local_bytes: loaded from buffers, images and local memory, as the code is written.
        Conditional loads count, and equal loads of two expressions count twice.
    multiply_adds: multiplications of floats, by lanes.
    """

    buffer_bytes: int
    image_bytes: int
    local_bytes: int
    multiply_adds: int

    @property
    def bytes_loaded(self) -> int:
        """Bytes loaded from buffers, images and local memory."""
        return self.buffer_bytes + self.image_bytes + self.local_bytes


def busiest_traffic(func: tirx.PrimFunc) -> Traffic:
    """Return the loads and multiply-adds of one iteration of the innermost reduction loop.

    func: a lowered device function.
    """
    traffics = [_traffic(loop.body) for loop in nodes_in(func.body, tirx.For) if not nodes_in(loop.body, tirx.For)]
    busy = max(traffics, key=lambda t: t.multiply_adds, default=None)
    return busy if busy is not None and busy.multiply_adds else _traffic(func.body)


def _traffic(body: tirx.Stmt) -> Traffic:
    bytes_of = {"buffer": 0, "image": 0, "local": 0}
    for access in nodes_in(body, tvm.ir.TensorLoad, tvm.ir.Call):
        if is_texel_load(access):
            bytes_of["image"] += value_bytes(access)
        elif isinstance(access, tvm.ir.TensorLoad) or is_load_for_tensor_cores(access):
            scope = scope_of(access)
            if scope != PRIVATE:
                bytes_of["local" if scope in LOCAL else "buffer"] += value_bytes(access)
    products = sum(map(multiply_adds_of, nodes_in(body, tvm.ir.Call, tirx.Mul)))
    return Traffic(
        buffer_bytes=bytes_of["buffer"],
        image_bytes=bytes_of["image"],
        local_bytes=bytes_of["local"],
        multiply_adds=products,
    )
