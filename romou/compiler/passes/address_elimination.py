"""Address-calculation elimination (paper, Section 4.1, Algorithm 1).

Every address is computed once, in the outermost loop that it does not vary in.

The paper collects common sub-expressions of the addresses of loads. This pass takes all integer expressions of a kernel
(loads, stores, texture coordinates, conditions), writes each as a sum of products, and splits the sum by the loop in
which its terms vary:

    a[r * 216 + kx * 24 + min(ty, 5) + 6]        ->     int at = min(ty, 5) + 6
                                                        for r:   int at_1 = at + r * 216
                                                            for kx:   int at_2 = at_1 + kx * 24
                                                                … a[at_2] …   a[at_2 + 6] …

- Sums that differ by a constant share their variable. The difference stays at the access.
- Thread and group ids are read once.
- A variable's name shows the dimensions of the loops that it changes with: at_ky_kx.
- A division by a constant becomes a multiplication and a shift if the range of the dividend allows it.
- A variable is declared right before the statement that first needs it, to keep live ranges short.

It runs last, on device functions: any later simplification would put the expressions back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import tvm
from tvm import tirx

from romou.compiler.passes.bindings import inline_single_uses
from romou.compiler.tir.expressions import conjuncts
from romou.compiler.tir.traversal import function_pass, nodes_in, rewriting, sequence_of, statements_of, with_fields

Key: TypeAlias = tuple[Any, ...]
# a < b  <=>  -a > -b
_MIRRORED = {tirx.LT: tirx.GT, tirx.LE: tirx.GE, tirx.GT: tirx.LT, tirx.GE: tirx.LE, tirx.EQ: tirx.EQ, tirx.NE: tirx.NE}
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, *_DIVISIONS)
_INT_MAX = 2**31 - 1
# Names that TVM gives loops.
_UNNAMED = re.compile(r"(ax|i)\d|.*fused")


@function_pass
def eliminate_addresses(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute each address of a device function once, after the last simplification, before intrinsics are lowered."""
    eliminator = _Eliminator()

    def define_parameters() -> None:
        for parameter in func.params:
            eliminator.define(parameter, parameter)

    return func.with_body(inline_single_uses(eliminator.body(func.body, define_parameters), list(eliminator.declared)))


@dataclass(frozen=True, order=True)
class _Atom:
    """A factor of a term: a variable, or an operation that is not a sum.

    number: equal atoms have equal numbers.
    depth: of the innermost scope of its variables.
    make: returns the atom as an expression of variables.
    """

    number: int
    depth: int = field(compare=False)
    make: Callable[[], tirx.Expr] = field(compare=False)


@dataclass(frozen=True)
class _Sum:
    """constant + sum of coefficient * atom, no coefficient being zero."""

    terms: dict[_Atom, int]
    constant: int

    def plus(self, other: _Sum) -> _Sum:
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + coefficient
        return _Sum({a: c for a, c in terms.items() if c}, self.constant + other.constant)

    def times(self, factor: int) -> _Sum:
        return _Sum({a: c * factor for a, c in self.terms.items() if factor}, self.constant * factor)

    @property
    def depth(self) -> int:
        return max((a.depth for a in self.terms), default=0)

    @property
    def key(self) -> Key:
        return (*sorted((a.number, c) for a, c in self.terms.items()), self.constant)


@dataclass
class _Scope:
    """A sequence of statements.

    variables: key -> (a variable declared so far, the constant that it includes).
    sums: the sums whose terms all vary in this scope.
    pending: variables to declare before the next statement.
    """

    variables: dict[Key, tuple[tirx.Expr, int]] = field(default_factory=dict)
    sums: list[tuple[frozenset[tuple[_Atom, int]], tirx.Expr, int]] = field(default_factory=list)
    pending: list[tirx.Bind] = field(default_factory=list)


class _Eliminator:
    """The rewriting of one kernel, from the outermost scope inwards, statement by statement."""

    def __init__(self) -> None:
        self.analyzer = tvm.sym.Analyzer()
        self.scopes = [_Scope()]
        self.declared: dict[tirx.Var, None] = {}
        # Loop variables, and declared variables that change with them -> the dimensions of the loops.
        self.dimensions: dict[tirx.Var, tuple[str, ...]] = {}
        self._atoms: dict[tirx.Var, _Atom] = {}
        self._numbers: dict[Key, int] = {}
        # Rewrites a statement or an expression: variables replace its largest integer parts.
        self._rewrite = rewriting(
            ((tirx.Var, *_OPERATIONS), self._index), (tirx.Ramp, self._ramp), ((tirx.And, *_MIRRORED), self._truth)
        )

    # Statements

    def define(self, variable: tirx.Var, value: tirx.Var) -> None:
        """Note that `variable`, read as `value`, is constant in the innermost scope."""
        self._atoms[variable] = _Atom(self._number(("variable", len(self._atoms))), len(self.scopes) - 1, lambda: value)

    def body(self, stmt: tirx.Stmt, begin: Callable[[], None] | None = None) -> tirx.Stmt:
        """Return the statements of a new scope, each preceded by the variables that it needs.

        `begin` defines its variables.
        """
        self.scopes.append(_Scope())
        if begin is not None:
            begin()
        done = self._sequence(stmt)
        self.scopes.pop()
        return done

    def _sequence(self, stmt: tirx.Stmt) -> tirx.Stmt:
        done: list[tirx.Stmt] = []
        for child in statements_of(stmt):
            new = self._statement(child)
            done += [*self.scopes[-1].pending, new]
            self.scopes[-1].pending.clear()
        return sequence_of(done)

    def _statement(self, stmt: tirx.Stmt) -> tirx.Stmt:
        match stmt:
            case tirx.For():
                low, extent = self._rewrite(stmt.min), self._rewrite(stmt.extent)
                self.analyzer.bind(stmt.loop_var, tvm.ir.Range.from_min_extent(stmt.min, stmt.extent))
                self.dimensions[stmt.loop_var] = _dimensions_of(stmt.loop_var)
                body = self.body(stmt.body, lambda: self.define(stmt.loop_var, stmt.loop_var))
                return with_fields(stmt, min=low, extent=extent, body=body)
            case tirx.AttrStmt():
                if stmt.attr_key == "thread_extent":
                    self._read_thread(stmt)
                    # Thread ids share the scope around them. An expression of the first of several ids can then be
                    # computed after all of them.
                    body = self._sequence(stmt.body)
                else:
                    # A mark. If a loop around it is unrolled, a variable declared inside the mark is undefined after
                    # it.
                    body = self.body(stmt.body) if isinstance(stmt.body, tirx.SeqStmt) else self._statement(stmt.body)
                return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)
            case tirx.IfThenElse():
                condition = self._rewrite(stmt.condition)
                return tirx.IfThenElse(
                    condition, self.body(stmt.then_case), None if stmt.else_case is None else self.body(stmt.else_case)
                )
            case tirx.Bind():
                value = self._rewrite(stmt.value)
                self.define(stmt.var, stmt.var)
                return tirx.Bind(stmt.var, value)
            case tirx.BufferStore() | tirx.Evaluate():
                return self._rewrite(stmt)
        return stmt

    def _read_thread(self, stmt: tirx.AttrStmt) -> None:
        thread = stmt.node.var
        self.analyzer.bind(thread, tvm.ir.Range(0, stmt.value))
        kind, axis = str(stmt.node.thread_tag).split(".")
        self.define(
            thread,
            self._declare(
                thread, len(self.scopes) - 1, {"blockIdx": "group", "threadIdx": "local"}.get(kind, kind) + f"_{axis}"
            ),
        )

    # Expressions

    def _index(self, expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        index_sum = self._as_sum(expr) if _is_index(expr) else None
        return mutator.default_mutate(expr) if index_sum is None else self._value_of(index_sum)

    def _truth(self, expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        conditions = [self._condition(part) for part in conjuncts(expr)]
        translated = [c for c in conditions if c is not None]
        return self._all_of(translated) if len(translated) == len(conditions) else mutator.default_mutate(expr)

    def _ramp(self, expr: tirx.Ramp, mutator: Any) -> tirx.Expr:
        """Keep the product in a vector's address: it shows the code generator that the vector is aligned."""
        lanes, base = int(expr.lanes), self._as_sum(expr.base)
        if base is None or base.constant % lanes or any(c % lanes for c in base.terms.values()):
            return mutator.default_mutate(expr)
        texel = self._value_of(_Sum({a: c // lanes for a, c in base.terms.items()}, base.constant // lanes))
        return tirx.Ramp(texel * lanes, self._rewrite(expr.stride), expr.lanes)

    def _condition(self, expr: tirx.Expr) -> _Atom | None:
        """Rewrite a comparison, so that bounds checks share the variables of addresses.

        a < b      ->      (variables of a - b) < constant
        """
        if type(expr) not in _MIRRORED or not _is_index(expr.a):
            return None
        left, right = self._as_sum(expr.a), self._as_sum(expr.b)
        if left is None or right is None:
            return None
        difference, kind = left.plus(right.times(-1)), type(expr)
        if difference.terms and max(difference.terms.items(), key=lambda term: (term[0].depth, -term[0].number))[1] < 0:
            difference, kind = difference.times(-1), _MIRRORED[kind]

        def make() -> tirx.Expr:
            value, included = self._variable_of(_Sum(difference.terms, 0))
            return kind(value, tirx.const(included - difference.constant, "int32"))

        return (
            _Atom(self._number((kind.__name__, difference.key)), difference.depth, make) if difference.terms else None
        )

    def _all_of(self, conditions: Sequence[_Atom]) -> tirx.Expr:
        """Join conditions. A condition that does not change in a loop is computed outside of it."""
        parts = []
        for depth in sorted({c.depth for c in conditions}):
            here = [c for c in conditions if c.depth == depth]
            key, scope = ("all", *sorted(c.number for c in here)), self.scopes[depth]
            if key not in scope.variables:
                scope.variables[key] = (self._declare(reduce(tirx.And, [c.make() for c in here]), depth, "inside"), 0)
            parts.append(scope.variables[key][0])
        return reduce(tirx.And, parts)

    def _as_sum(self, expr: tirx.Expr) -> _Sum | None:
        """Return `expr` as a sum of products, or None if it reads memory or has an unsupported operation."""
        kind = type(expr)
        if kind is tirx.IntImm:
            return _Sum({}, int(expr))
        if kind is tirx.Var:
            atom = self._atoms.get(expr)
            return None if atom is None else _Sum({atom: 1}, 0)
        if kind not in _OPERATIONS:
            return None
        left, right = self._as_sum(expr.a), self._as_sum(expr.b)
        if left is None or right is None:
            return None
        if kind is tirx.Add:
            return left.plus(right)
        if kind is tirx.Sub:
            return left.plus(right.times(-1))
        if kind is tirx.Mul and not (left.terms and right.terms):
            return left.times(right.constant) if not right.terms else right.times(left.constant)
        if kind in _DIVISIONS and not right.terms and right.constant > 0:
            bound = self.analyzer.const_int_bound(expr.a)
            if int(bound.min_value) >= 0:
                return self._division(
                    left, right.constant, int(bound.max_value), is_quotient=kind in (tirx.FloorDiv, tirx.Div)
                )
        return self._operation(kind.__name__, [left, right], kind)

    def _division(self, dividend: _Sum, divisor: int, high: int, *, is_quotient: bool) -> _Sum:
        """Return the quotient or remainder of a dividend from 0 to `high`."""
        if not is_quotient and divisor & (divisor - 1) == 0:
            return self._operation(f"and {divisor}", [dividend], lambda n: n & (divisor - 1))
        quotient = self._operation(f"quotient {divisor}", [dividend], lambda n: _quotient(n, divisor, high))
        return quotient if is_quotient else dividend.plus(quotient.times(-divisor))

    def _operation(self, name: str, operands: Sequence[_Sum], make: Callable[..., tirx.Expr]) -> _Sum:
        number = self._number((name, *(o.key for o in operands)))
        atom = _Atom(number, max(o.depth for o in operands), lambda: make(*(self._value_of(o) for o in operands)))
        return _Sum({atom: 1}, 0)

    def _number(self, key: Key) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    # Variables

    def _value_of(self, wanted: _Sum) -> tirx.Expr:
        """Return a variable, a constant, or a variable plus a constant."""
        if not wanted.terms:
            return tirx.const(wanted.constant, "int32")
        value, included = self._variable_of(wanted)
        return _plus(value, wanted.constant - included)

    def _variable_of(self, wanted: _Sum) -> tuple[tirx.Expr, int]:
        """Return a variable for the terms of a sum, and the constant that it includes.

        Each scope declares one variable if some of the terms vary in it.
        """
        value: tirx.Expr | None = None
        included = 0
        key: Key = ()
        for depth in sorted({a.depth for a in wanted.terms}):
            here = sorted((a, c) for a, c in wanted.terms.items() if a.depth == depth)
            key = (*key, *((a.number, c) for a, c in here))
            variables = self.scopes[depth].variables
            if value is None and wanted.constant == 0 and len(here) == 1 and here[0][1] == 1:
                value = self._atom_value(here[0][0])
                continue
            if key not in variables:
                if value is None:
                    included = wanted.constant
                    variables[key] = (self._declare(self._sum_of(here, included, depth), depth, "at"), included)
                    self.scopes[depth].sums.append((frozenset(here), *variables[key]))
                else:
                    variables[key] = (self._declare(self._total(value, here), depth, "at"), included)
            value, included = variables[key]
        assert value is not None
        return value, included

    def _sum_of(self, terms: Sequence[tuple[_Atom, int]], constant: int, depth: int) -> tirx.Expr:
        """Return the sum of terms of one scope, starting from its longest partial sum that has a variable there."""
        for atom, _ in terms:
            self._atom_value(atom)  # its declarations may include the longest part
        parts = [partial for partial in self.scopes[depth].sums if len(partial[0]) > 1 and partial[0] < set(terms)]
        if not parts:
            return _plus(self._total(None, terms), constant)
        part, start, included = max(parts, key=lambda partial: len(partial[0]))
        return _plus(self._total(start, [t for t in terms if t not in part]), constant - included)

    def _total(self, start: tirx.Expr | None, terms: Sequence[tuple[_Atom, int]]) -> tirx.Expr:
        total = start
        # Additions come first: a sum that begins with a minus costs one more operation.
        for atom, coefficient in sorted(terms, key=lambda term: term[1] < 0):
            product, before = self._product(atom, abs(coefficient)), tirx.const(0, "int32") if total is None else total
            total = (
                product
                if total is None and coefficient > 0
                else before + product
                if coefficient > 0
                else before - product
            )
        assert total is not None, "a sum without terms is a constant"
        return total

    def _product(self, atom: _Atom, factor: int) -> tirx.Expr:
        value = self._atom_value(atom)
        if factor == 1:
            return value
        variables, key = self.scopes[atom.depth].variables, ("product", atom.number, factor)
        if key not in variables:
            variables[key] = (self._declare(value * factor, atom.depth, "at"), 0)
        return variables[key][0]

    def _atom_value(self, atom: _Atom) -> tirx.Expr:
        variables, key = self.scopes[atom.depth].variables, ("atom", atom.number)
        if key not in variables:
            made = atom.make()
            variables[key] = (made if isinstance(made, tirx.Var) else self._declare(made, atom.depth, "at"), 0)
        return variables[key][0]

    def _declare(self, value: tirx.Expr, depth: int, name: str) -> tirx.Var:
        if isinstance(value, tirx.Var) and value in self.declared:
            return value
        of_parts = [self.dimensions.get(part, ()) for part in nodes_in(value, tirx.Var)]
        dimensions = tuple(dict.fromkeys(dimension for part in of_parts for dimension in part))
        variable = tirx.Var("_".join((name, *dimensions)), value.ty)
        self.dimensions[variable] = dimensions
        self.declared[variable] = None
        self.scopes[depth].pending.append(tirx.Bind(variable, value))
        return variable


def _dimensions_of(loop: tirx.Var) -> tuple[str, ...]:
    """Return the dimensions that a loop is named after (`romou.compiler.scheduling.loop_names`)."""
    name = str(loop.name)
    return () if _UNNAMED.match(name) else tuple(name.split("_"))


def _is_index(expr: tirx.Expr) -> bool:
    return getattr(expr.ty, "dtype", None) == "int32"


def _plus(value: tirx.Expr, constant: int) -> tirx.Expr:
    return value + constant if constant > 0 else value - -constant if constant < 0 else value


def _quotient(dividend: tirx.Expr, divisor: int, high: int) -> tirx.Expr:
    """Return dividend // divisor for 0 <= dividend <= high.

    It is computed by a multiplication and a shift if the product fits 32 bits.

    With m = 2^s // d + 1 and e = m * d - 2^s,  (n * m) >> s  equals  n // d  for every n with  n * e < 2^s.
    """
    if divisor & (divisor - 1) == 0:
        return dividend >> (divisor.bit_length() - 1)
    for shift in range(31):
        multiplier = (1 << shift) // divisor + 1
        if high * multiplier <= _INT_MAX and high * (multiplier * divisor - (1 << shift)) < 1 << shift:
            return (dividend * multiplier) >> shift
    return tirx.truncdiv(dividend, tirx.const(divisor, "int32"))
