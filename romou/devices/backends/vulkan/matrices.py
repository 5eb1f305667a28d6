"""Cooperative matrices in GLSL (GL_KHR_cooperative_matrix): declaration, load, product and store.

A subgroup of 32 work-items holds a matrix. All matrices are 16 x 16, factors in fp16 and sums in fp32, and are stored
in local memory column by column. The driver numbers subgroups, so kernels with matrices compute the number of a
work-item in its group from it:

    int item = int(gl_SubgroupID * 32 + gl_SubgroupInvocationID);
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from romou.devices.backends.dialect import MATRIX

ITEM = "int(gl_SubgroupID * 32 + gl_SubgroupInvocationID)"
# Vulkan features and extensions of GLSL for matrices.
NEEDS = ("cooperativeMatrix", "shaderFloat16")
EXTENSIONS = ("GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic")
_LAYOUT = "gl_CooperativeMatrixLayoutColumnMajor"


@dataclass(frozen=True, kw_only=True)
class MatricesText:
    """`MatricesInMemory` as texts: the array's name, the first element, and numbers."""

    array: str
    start: str
    stride: int
    count: int = 1

    def place(self, number: int) -> str:
        """Return the array and the first element of a matrix, as two arguments."""
        offset = number * MATRIX * self.stride
        return f"{self.array}, {self.start} + {offset}" if offset else f"{self.array}, {self.start}"


def _type(number: str, use: str) -> str:
    return f"coopmat<{number}, gl_ScopeSubgroup, {MATRIX}, {MATRIX}, gl_MatrixUse{use}>"


SUMS = _type("float", "Accumulator")


def declared(name: str, count: int) -> Iterator[str]:
    """Declare an array of sums, initially zero."""
    yield f"{SUMS} {name}[{count}];"
    yield from (f"{name}[{i}] = {SUMS}(0.0);" for i in range(count))


def multiplied(sums: str, rows: MatricesText, columns: MatricesText) -> Iterator[str]:
    """Add products of row matrices and column matrices to sums."""
    rows_of, columns_of = _type("float16_t", "A"), _type("float16_t", "B")
    yield "{"
    for j in range(columns.count):
        yield f"  {columns_of} columns_{j};"
        yield f"  coopMatLoad(columns_{j}, {columns.place(j)}, {columns.stride}, {_LAYOUT});"
    yield f"  {rows_of} rows;"
    for i in range(rows.count):
        yield f"  coopMatLoad(rows, {rows.place(i)}, {rows.stride}, {_LAYOUT});"
        for j in range(columns.count):
            total = f"{sums}[{i * columns.count + j}]"
            yield f"  {total} = coopMatMulAdd(rows, columns_{j}, {total});"
    yield "}"


def stored(sums: str, number: int, into: MatricesText) -> str:
    """Write one matrix of sums to local memory."""
    return f"coopMatStore({sums}[{number}], {into.place(0)}, {into.stride}, {_LAYOUT});"
