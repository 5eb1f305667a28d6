"""A normalization of the rows of activations in the kernel of their product, such as RMSNorm.

s[i] = sum over k of x[i, k]^2
d[i, k] = x[i, k] * g[k] / sqrt(s[i] / n + e)        the activations, whose product follows

A group adds up the terms of its rows, and computes what is the same for a whole row once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map

from romou.compiler.scheduling.blocks import axes_of, has_load, loads_of, reduction_of, replace_loads
from romou.compiler.tir.traversal import has_var, substitute

_WIDE, _FLOATS = "float32", ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """The normalization of a row, as expressions over two axes.

    data: the buffer that is normalized.
    row, at: axes of the rows, and of the numbers of a row.
    term: what is added up.
    total: buffer of the sums.
    factor: what a row's sum gives, the same for all numbers of the row.
    rest: a normalized number without this factor.
    """

    data: tirx.Buffer
    row: tirx.Var
    at: tirx.Var
    term: tirx.Expr
    total: tirx.Buffer
    factor: tirx.Expr
    rest: tirx.Expr

    @classmethod
    def of(cls, sums: s_tir.SBlock, product: s_tir.SBlock, activations: tirx.Expr) -> Norm | None:
        """Return the normalization of the activations of `product`, None if they are something else.

        sums: the block that reduces rows.
        """
        reduction, axes = reduction_of(sums), axes_of(product)
        row, _, at = axes
        if reduction is None or reduction.operation is not tirx.Add or not _is_zero(reduction.start):
            return None
        simplify = _simplifier(axes)
        activations = simplify(activations)
        parts = _split(activations, reduction.buffer, at)
        place = next((load.indices for load in loads_of(activations) if load.source.same_as(reduction.buffer)), None)
        if parts is None or place is None or [int(axis.dom.extent) for axis in reduction.reduced] != [axes[at]]:
            return None
        rest, factor = parts
        # The terms of the row that the product reads.
        values = dict(zip((axis.var for axis in sums.iter_vars if axis not in reduction.reduced), place, strict=True))
        term = simplify(substitute(reduction.term, {**values, reduction.reduced[0].var: at}))
        loads = loads_of(term)
        has_plain_places = all(_is_plain(load, row, at) for expr in (term, rest, factor) for load in loads_of(expr))
        if not loads or not has_plain_places or str(term.ty) != _WIDE:
            return None
        return cls(data=loads[0].source, row=row, at=at, term=term, total=reduction.buffer, factor=factor, rest=rest)

    def reads(self, buffer: tirx.Buffer) -> bool:
        """Return whether a normalized number is computed from `buffer`."""
        return self.total.same_as(buffer) or any(has_load(e, buffer) for e in (self.term, self.rest, self.factor))

    def term_of(self, row: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
        """Return the term that a number adds to the sum of its row."""
        return substitute(self.term, {self.row: row, self.at: at})

    def factor_of(self, row: tirx.Expr, total: tirx.Expr) -> tirx.Expr:
        """Return the factor of a row with this sum."""
        return substitute(replace_loads(self.factor, self.total, lambda _: total), {self.row: row})

    def number_of(self, row: tirx.Expr, at: tirx.Expr, factor: tirx.Expr) -> tirx.Expr:
        return substitute(self.rest, {self.row: row, self.at: at}) * factor


def _is_zero(start: tirx.Expr) -> bool:
    return isinstance(start, tirx.FloatImm) and start.value == 0


def _simplifier(axes: dict[tirx.Var, int]) -> Callable[[tirx.Expr], tirx.Expr]:
    """Return a function that simplifies the indices of loads. TVM would cancel floats as if they were exact."""
    analyzer = tvm.sym.Analyzer()
    for var, extent in axes.items():
        analyzer.bind(var, tvm.ir.Range(0, extent))

    def load(access: TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(access.source, [analyzer.simplify(index) for index in access.indices])

    return lambda expr: structural_map(expr, (TensorLoad, load))


def _split(expr: tirx.Expr, total: tirx.Buffer, at: tirx.Var) -> tuple[tirx.Expr, tirx.Expr] | None:
    """Return `expr` as two factors, the second of which is the same for all `at` and the only one that reads `total`.

    x[i, at] / sqrt(total[i]) * g[at]      ->      x[i, at] * g[at], 1 / sqrt(total[i])

    Numbers are not rounded to fp16 between them.
    """
    if isinstance(expr, tirx.Cast) and str(expr.ty) in _FLOATS:
        return _split(expr.value, total, at)
    if not isinstance(expr, tirx.Mul | tirx.Div):
        return None
    has_total = [has_load(side, total) for side in (expr.a, expr.b)]
    if sum(has_total) != 1:
        return None
    inner, outer = (expr.a, _wide(expr.b)) if has_total[0] else (expr.b, _wide(expr.a))
    is_of_row, one = not has_var(inner, at), tirx.const(1.0, _WIDE)
    if isinstance(expr, tirx.Div) and has_total[1]:
        return (outer, one / _wide(inner)) if is_of_row else None
    if is_of_row:
        return (outer if isinstance(expr, tirx.Mul) else one / outer), _wide(inner)
    parts = _split(inner, total, at)
    if parts is None:
        return None
    return (parts[0] * outer if isinstance(expr, tirx.Mul) else parts[0] / outer), parts[1]


def _wide(expr: tirx.Expr) -> tirx.Expr:
    """Return an expression in fp32."""
    return expr if str(expr.ty) == _WIDE else expr.astype(_WIDE)


def _is_plain(load: TensorLoad, row: tirx.Var, at: tirx.Var) -> bool:
    """Return whether the load is of a float, and its indices are axes themselves or constants."""
    is_place = [isinstance(index, tirx.IntImm) or index.same_as(row) or index.same_as(at) for index in load.indices]
    return all(is_place) and str(load.source.dtype) in _FLOATS
