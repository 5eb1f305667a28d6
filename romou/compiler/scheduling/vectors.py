"""Expressions over a block's axes, for several neighbours along one axis at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate, structural_visit, structural_walk

from romou.base.errors import InvalidConfigError
from romou.compiler.scheduling.blocks import loads_of
from romou.compiler.scheduling.statements import loop, register_type, typed
from romou.compiler.tir.calls import is_conditional, takes_vectors
from romou.compiler.tir.expressions import is_multiple
from romou.compiler.tir.traversal import nodes_in, substitute, with_fields

# Expressions that may be computed for all lanes at once.
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
_PARTS = (*_ARITHMETIC, tirx.Max, tirx.Min, tirx.Cast, tvm.ir.Call, TensorLoad)


class Vectors:
    """Vector form of expressions: `width` neighbours along one of some axes.

        a[i, j] + c[i]      ->      a[i, 4 * vector + lane] + c[i]

    axes: each with its extent.
    axis: the axis that `vector` and `lane` replace by `index`.
    may_overlap: whether the last vector may end at the end of an axis that `width` does not divide. Its first
    `repeated` lanes are then in the vector before it too, and `vector` is the vector's first element (`begin`):

        a[i, j] + c[i]      ->      a[i, vector + lane] + c[i]
    """

    def __init__(self, axes: Mapping[tirx.Var, int], axis: tirx.Var, width: int, *, may_overlap: bool = False) -> None:
        self.axis, self.width = axis, width
        self._extent = next((extent for var, extent in axes.items() if var.same_as(axis)), width)
        if not isinstance(self._extent, int) and not is_multiple(self._extent, width):
            raise InvalidConfigError(f"vectors of {width} do not divide {self._extent} elements at all sizes")
        self.repeated = -self._extent % width if may_overlap and isinstance(self._extent, int) else 0
        self.vector, self.lane = tirx.Var("vector", axis.ty), tirx.Var("lane", axis.ty)
        self._has_forms: list[tuple[tirx.Expr, bool]] = []
        self._analyzer = tvm.sym.Analyzer()
        for var, extent in axes.items():
            self._analyzer.bind(var, tvm.ir.Range(tirx.const(0, var.ty), typed(extent, var)))
            if var.same_as(axis):
                vectors = extent - width + 1 if self.repeated else extent // width
                self._analyzer.bind(self.vector, tvm.ir.Range(tirx.const(0, var.ty), typed(vectors, var)))
        self._analyzer.bind(self.lane, tvm.ir.Range(tirx.const(0, axis.ty), tirx.const(width, axis.ty)))

    @property
    def index(self) -> tirx.Expr:
        """The expression that replaces the axis."""
        return (self.vector if self.repeated else self.vector * self.width) + self.lane

    def begin(self, number: tirx.Expr) -> tirx.Expr:
        """Return the value of `vector` in the vector of that number."""
        return (
            tirx.min(number * self.width, tirx.const(self._extent - self.width, number.ty)) if self.repeated else number
        )

    def value_of(self, value: tirx.Expr) -> tirx.Expr:
        """Return an expression over `vector` and `lane`."""
        return substitute(value, {self.axis: self.index})

    def form_of(self, value: tirx.Expr) -> tirx.Expr | None:
        """Return an expression over `vector` and `lane` with one vector or one broadcast element for each load.

        None if a condition varies between lanes, an address jumps, or a function takes no vectors.
        """
        fits: list[bool] = []

        def load(access: TensorLoad) -> tirx.Expr:
            aligned = self.aligned(access)
            fits.append(aligned is not None)
            return access if aligned is None else aligned

        def call(expr: tvm.ir.Call) -> tirx.Expr:
            if is_conditional(expr):
                first, *others = (self._analyzer.simplify(self._at(expr.args[0], lane)) for lane in range(self.width))
                fits.append(all(structural_equal(first, other) for other in others))
                return with_fields(expr, args=[first, *expr.args[1:]], ret_ty=expr.ty)
            fits.append(takes_vectors(expr) or not self.moves(expr))
            return expr

        def truth(expr: tirx.Expr) -> tirx.Expr:
            # In OpenCL a true lane is -1 in a vector but 1 as a scalar, so boolean vectors have no form.
            operands = [expr.value] if isinstance(expr, tirx.Cast) else [expr]
            fits.append(not any(str(operand.ty).startswith("bool") and self.moves(operand) for operand in operands))
            return expr

        form = structural_map(
            self.value_of(value),
            [(TensorLoad, load), (tvm.ir.Call, call), ((tirx.Cast, tirx.Not, tirx.And, tirx.Or), truth)],
        )
        return form if all(fits) else None

    def _has_form(self, value: tirx.Expr) -> bool:
        """Return whether `form_of` has a result. Cached, because it is called once for each tensor."""
        has_form = next((has_form for other, has_form in self._has_forms if other.same_as(value)), None)
        if has_form is None:
            has_form = self.form_of(value) is not None
            self._has_forms.append((value, has_form))
        return has_form

    def aligned(self, access: TensorLoad) -> TensorLoad | None:
        """Return a load over `vector` and `lane` in the shape of `form_of`, or None if it has another one."""
        if not access.indices:
            return access
        *outer, last = indices = [self._undivided(index) for index in access.indices]
        step = self._step(last)
        if step is None or any(self._step(index) != 0 for index in outer):
            return None
        indices = [self._analyzer.simplify(self._at(index, 0)) for index in indices]
        indices[-1] = indices[-1] + self.lane * step
        return tirx.BufferLoad(access.source, indices)

    def neighbours_in(self, value: tirx.Expr) -> list[TensorLoad]:
        """Return the unguarded loads of whole vectors in an expression, as `aligned`, without duplicates."""
        vector_loads: list[TensorLoad] = []

        def load(access: TensorLoad, visitor: Any) -> None:
            aligned = self.aligned(access)
            if (
                aligned is not None
                and self.moves(aligned)
                and not any(structural_equal(aligned, other) for other in vector_loads)
            ):
                vector_loads.append(aligned)

        def call(expr: tvm.ir.Call, visitor: Any) -> None:
            if not is_conditional(expr):
                visitor.default_visit(expr)

        structural_visit(self.value_of(value), [(TensorLoad, load), (tvm.ir.Call, call)])
        return vector_loads

    def _undivided(self, index: tirx.Expr) -> tirx.Expr:
        """Take the lane out of divisions by multiples of the width, as reshapes of whole vectors have them.

        x[(4 * a + lane) // 12, (4 * a + lane) % 12]      ->      x[4 * a // 12, 4 * a % 12 + lane]
        """

        def divided(expr: tirx.FloorDiv | tirx.FloorMod) -> tirx.Expr:
            first = self._at(expr.a, 0)
            multiples = self._analyzer.modular_set(first)
            sizes = (multiples.coeff, multiples.base, expr.b) if isinstance(expr.b, tirx.IntImm) else (1,)
            if any(int(size) % self.width for size in sizes) or self._step(expr.a) != 1:
                return expr
            return type(expr)(first, expr.b) + (self.lane if isinstance(expr, tirx.FloorMod) else 0)

        return structural_map(index, ((tirx.FloorDiv, tirx.FloorMod), divided)) if self.moves(index) else index

    def _at(self, expr: tirx.Expr, lane: int) -> tirx.Expr:
        return substitute(expr, {self.lane: tirx.const(lane, self.lane.ty)})

    def _step(self, index: tirx.Expr) -> int | None:
        if not self.moves(index):
            return 0
        first = self._at(index, 0)
        steps = [self._analyzer.simplify(self._at(index, lane) - first) for lane in range(self.width)]
        numbers = [int(step) if isinstance(step, tirx.IntImm) else None for step in steps]
        return 0 if not any(n != 0 for n in numbers) else 1 if numbers == list(range(self.width)) else None

    def vectors_in(self, value: tirx.Expr) -> list[tuple[tirx.Expr, tirx.Expr]]:
        """Return the maximal unguarded subexpressions that have a vector form, with that form, without duplicates."""
        parts: list[tuple[tirx.Expr, tirx.Expr]] = []

        def part(expr: tirx.Expr, visitor: Any) -> None:
            is_made_of_loads = any(self.moves(load) for load in loads_of(expr)) and not str(expr.ty).startswith("bool")
            form = self.form_of(expr) if is_made_of_loads else None
            if form is not None and self.moves(form):
                if not any(structural_equal(expr, other) for other, _ in parts):
                    parts.append((expr, form))
            elif is_conditional(expr):
                visitor.visit(expr.args[0])
            else:
                visitor.default_visit(expr)

        structural_visit(self.value_of(value), (_PARTS, part))
        return parts

    def scalars_in(self, value: tirx.Expr) -> list[tirx.Expr]:
        """Return the operands of `value` that float arithmetic combines with vectors and that are none themselves."""
        form = self.form_of(value)
        forms = [form] if form is not None else [part for _, part in self.vectors_in(value)]
        pairs = (pair for form in forms for pair in nodes_in(form, *_ARITHMETIC) if "float" in str(pair.ty))
        scalars = ([operand for operand in (pair.a, pair.b) if not self.moves(operand)] for pair in pairs)
        return [operands[0] for operands in scalars if len(operands) == 1]

    def replaced(self, value: tirx.Expr, parts: Sequence[tuple[tirx.Expr, tirx.Expr]]) -> tirx.Expr:
        """Replace each of `parts`, and each load that aligns to one, outermost first.

        parts: (subexpression, its replacement).
        """
        loads = [(self.aligned(part), replacement) for part, replacement in parts if isinstance(part, TensorLoad)]

        def replacement_of(expr: tirx.Expr) -> tirx.Expr | None:
            for part, replacement in parts:
                if structural_equal(expr, part):
                    return replacement
            aligned = self.aligned(expr) if loads and isinstance(expr, TensorLoad) else None
            if aligned is None:
                return None
            return next((by for load, by in loads if load is not None and structural_equal(aligned, load)), None)

        def replace(expr: tirx.Expr, mutator: Any) -> tirx.Expr:
            replacement = replacement_of(expr)
            return mutator.default_mutate(expr) if replacement is None else replacement

        return structural_mutate(value, (_PARTS, replace))

    def moves(self, expr: tirx.Expr) -> bool:
        """Return whether an expression differs between lanes."""
        is_lane: list[bool] = []
        structural_walk(expr, (tirx.Var, lambda var: is_lane.append(var.same_as(self.lane))))
        return any(is_lane)

    def store(
        self, buffer: tirx.Buffer, indices: Sequence[tirx.Expr], value: tirx.Expr
    ) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
        """Return statements that compute `value` and store a vector of it at `indices`, with their registers.

        value: over the axes.
        indices: over `vector` and `lane`.
        """
        form = self.form_of(value)
        if form is not None:
            return loop(self.lane, self.width, tirx.BufferStore(buffer, form, indices), "vectorized"), []
        # Values without a vector form are assembled in registers, then stored as one vector.
        dtype = str(buffer.dtype)
        tile = tirx.decl_buffer([self.width], register_type(dtype), "tile", scope="local")
        steps, tiles = [], [tile]
        parts: list[tuple[tirx.Expr, tirx.Expr]] = []
        for whole, form in self.vectors_in(value):
            name = next((f"{load.source.name}_tile" for load in loads_of(form)), "tile")
            loaded = tirx.decl_buffer([self.width], register_type(str(whole.ty)), name, scope="local")
            load = tirx.BufferStore(loaded, form.astype(str(loaded.dtype)), [self.lane])
            steps.append(loop(self.lane, self.width, load, "vectorized"))
            parts.append((whole, tirx.BufferLoad(loaded, [self.lane]).astype(str(whole.ty))))
            tiles.append(loaded)
        rest = self.replaced(self.value_of(value), parts)
        assemble = tirx.BufferStore(tile, rest.astype(str(tile.dtype)), [self.lane])
        steps.append(loop(self.lane, self.width, assemble, "unrolled"))
        whole = tirx.BufferLoad(tile, [self.lane]).astype(dtype)
        steps.append(loop(self.lane, self.width, tirx.BufferStore(buffer, whole, indices), "vectorized"))
        return tirx.SeqStmt(steps), tiles

    def width_of(self, value: tirx.Expr, tensor: str) -> int:
        """Return the lanes of the narrowest load of a tensor that `store` makes of an expression."""
        loads = [self.aligned(load) for load in loads_of(self.value_of(value)) if str(load.source.name) == tensor]
        whole = loads if self._has_form(value) else self.neighbours_in(value)
        is_whole = all(
            load is not None and self.moves(load) and any(structural_equal(load, other) for other in whole)
            for load in loads
        )
        return self.width if is_whole else 1

    def takes_texels(self, value: tirx.Expr, tensor: str) -> bool:
        """Return whether `store` loads a tensor only in vectors aligned to their width."""

        def is_texel(load: TensorLoad) -> bool:
            aligned = self.aligned(load)
            alignment = None if aligned is None else self._analyzer.modular_set(self._at(aligned.indices[-1], 0))
            return alignment is not None and int(alignment.coeff) % self.width == int(alignment.base) % self.width == 0

        loads = [load for load in loads_of(self.value_of(value)) if str(load.source.name) == tensor]
        return self.width_of(value, tensor) == self.width and all(map(is_texel, loads))
