"""Expressions over a block's axes, for several neighbours along one axis at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate, structural_visit, structural_walk

from romou.compiler.scheduling.blocks import loads_of, substitute
from romou.compiler.scheduling.statements import loop, register_type
from romou.compiler.tir.calls import is_conditional, takes_vectors

# Expressions that may be computed for all lanes at once.
_PARTS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Cast, tvm.ir.Call, TensorLoad)


class Vectors:
    """Expressions over some axes, for `width` neighbours along one of them.

        a[i, j] + c[i]      ->      a[i, 4 * vector + lane] + c[i]

    axes: each with its extent.
    axis: the one of them whose place `vector` and `lane` take; `index` is what stands for it.

    may_overlap: where `width` does not divide the axis, the last vector ends with it, so that `repeated` lanes are
    those of the vector before, too. `vector` is then where a vector begins (`begin`):

        a[i, j] + c[i]      ->      a[i, vector + lane] + c[i]
    """

    def __init__(self, axes: Mapping[tirx.Var, int], axis: tirx.Var, width: int, *, may_overlap: bool = False) -> None:
        self.axis, self.width = axis, width
        self._extent = next((extent for var, extent in axes.items() if var.same_as(axis)), width)
        self.repeated = -self._extent % width if may_overlap else 0
        self.vector, self.lane = tirx.Var("vector", axis.ty), tirx.Var("lane", axis.ty)
        self._known: list[tuple[tirx.Expr, bool]] = []
        self._analyzer = tvm.sym.Analyzer()
        for var, extent in axes.items():
            self._analyzer.bind(var, tvm.ir.Range(tirx.const(0, var.ty), tirx.const(extent, var.ty)))
            if var.same_as(axis):
                vectors = extent - width + 1 if self.repeated else extent // width
                self._analyzer.bind(self.vector, tvm.ir.Range(tirx.const(0, var.ty), tirx.const(vectors, var.ty)))
        self._analyzer.bind(self.lane, tvm.ir.Range(tirx.const(0, axis.ty), tirx.const(width, axis.ty)))

    @property
    def index(self) -> tirx.Expr:
        """What stands for the axis."""
        return (self.vector if self.repeated else self.vector * self.width) + self.lane

    def begin(self, number: tirx.Expr) -> tirx.Expr:
        """What `vector` is in the vector of that number."""
        return (
            tirx.min(number * self.width, tirx.const(self._extent - self.width, number.ty)) if self.repeated else number
        )

    def value_of(self, value: tirx.Expr) -> tirx.Expr:
        """An expression over `vector` and `lane`."""
        return substitute(value, {self.axis: self.index})

    def form_of(self, value: tirx.Expr) -> tirx.Expr | None:
        """An expression over `vector` and `lane` in which every load moves with the lane by one element or not at all,
        so that it is one load.

        None where there is none: a condition looks at single lanes, an address jumps, a function knows no vectors.
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
                return tvm.ir.Call(expr.op, [first, *expr.args[1:]], expr.attrs, expr.ty_args, ret_ty=expr.ty)
            fits.append(takes_vectors(expr) or not self.moves(expr))
            return expr

        def truth(expr: tirx.Expr) -> tirx.Expr:
            # In OpenCL the lanes of a true vector are -1, so what holds for scalars does not for vectors.
            operands = [expr.value] if isinstance(expr, tirx.Cast) else [expr]
            fits.append(not any(str(operand.ty).startswith("bool") and self.moves(operand) for operand in operands))
            return expr

        found = structural_map(
            self.value_of(value),
            [(TensorLoad, load), (tvm.ir.Call, call), ((tirx.Cast, tirx.Not, tirx.And, tirx.Or), truth)],
        )
        return found if all(fits) else None

    def _has_form(self, value: tirx.Expr) -> bool:
        """Whether `form_of` has an answer; asked for one tensor of an expression after the other."""
        known = next((has_form for other, has_form in self._known if other.same_as(value)), None)
        if known is None:
            known = self.form_of(value) is not None
            self._known.append((value, known))
        return known

    def aligned(self, access: TensorLoad) -> TensorLoad | None:
        """A load over `vector` and `lane` in the shape that `form_of` wants; None where it has another."""
        if not access.indices:
            return access
        *outer, last = access.indices
        step = self._step(last)
        if step is None or any(self._step(index) != 0 for index in outer):
            return None
        indices = [self._analyzer.simplify(self._at(index, 0)) for index in access.indices]
        indices[-1] = indices[-1] + self.lane * step
        return tirx.BufferLoad(access.source, indices)

    def neighbours_in(self, value: tirx.Expr) -> list[TensorLoad]:
        """The loads of whole vectors in an expression that no condition guards, as `aligned`; each once."""
        found: list[TensorLoad] = []

        def load(access: TensorLoad, visitor: Any) -> None:
            aligned = self.aligned(access)
            if (
                aligned is not None
                and self.moves(aligned)
                and not any(structural_equal(aligned, other) for other in found)
            ):
                found.append(aligned)

        def call(expr: tvm.ir.Call, visitor: Any) -> None:
            if not is_conditional(expr):
                visitor.default_visit(expr)

        structural_visit(self.value_of(value), [(TensorLoad, load), (tvm.ir.Call, call)])
        return found

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
        """The largest parts of an expression that have a form of their own and that no condition guards, each once,
        with that form: what is left for single lanes is little.
        """
        found: list[tuple[tirx.Expr, tirx.Expr]] = []

        def part(expr: tirx.Expr, visitor: Any) -> None:
            is_made_of_loads = any(self.moves(load) for load in loads_of(expr)) and not str(expr.ty).startswith("bool")
            form = self.form_of(expr) if is_made_of_loads else None
            if form is not None and self.moves(form):
                if not any(structural_equal(expr, other) for other, _ in found):
                    found.append((expr, form))
            elif is_conditional(expr):
                visitor.visit(expr.args[0])
            else:
                visitor.default_visit(expr)

        structural_visit(self.value_of(value), (_PARTS, part))
        return found

    def replaced(self, value: tirx.Expr, parts: Sequence[tuple[tirx.Expr, tirx.Expr]]) -> tirx.Expr:
        """`value` with each of `parts`, and each load that is aligned to one, replaced by what stands beside it; of
        parts that hold others, the outer ones.
        """
        loads = [(self.aligned(old), by) for old, by in parts if isinstance(old, TensorLoad)]

        def replace(expr: tirx.Expr, mutator: Any) -> tirx.Expr:
            by = next((by for old, by in parts if structural_equal(expr, old)), None)
            if by is None and isinstance(expr, TensorLoad) and loads and (other := self.aligned(expr)) is not None:
                by = next((by for load, by in loads if load is not None and structural_equal(other, load)), None)
            return mutator.default_mutate(expr) if by is None else by

        return structural_mutate(value, (_PARTS, replace))

    def moves(self, expr: tirx.Expr) -> bool:
        """Whether an expression differs from lane to lane."""
        found: list[bool] = []
        structural_walk(expr, (tirx.Var, lambda var: found.append(var.same_as(self.lane))))
        return any(found)

    def store(
        self, buffer: tirx.Buffer, place: Sequence[tirx.Expr], value: tirx.Expr
    ) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
        """Statements that compute `value`, over the axes, and store a vector of it at `place`, over `vector` and
        `lane`; and the registers they need.
        """
        form = self.form_of(value)
        if form is not None:
            return loop(self.lane, self.width, tirx.BufferStore(buffer, form, place), "vectorized"), []
        # Lanes that do not move together are put together in registers, and stored as one.
        kind = str(buffer.dtype)
        tile = tirx.decl_buffer([self.width], register_type(kind), "tile", scope="local")
        steps, tiles = [], [tile]
        parts: list[tuple[tirx.Expr, tirx.Expr]] = []
        for whole, form in self.vectors_in(value):
            name = next((f"{load.source.name}_tile" for load in loads_of(form)), "tile")
            loaded = tirx.decl_buffer([self.width], register_type(str(whole.ty)), name, scope="local")
            steps.append(
                loop(
                    self.lane,
                    self.width,
                    tirx.BufferStore(loaded, form.astype(str(loaded.dtype)), [self.lane]),
                    "vectorized",
                )
            )
            parts.append((whole, tirx.BufferLoad(loaded, [self.lane]).astype(str(whole.ty))))
            tiles.append(loaded)
        rest = self.replaced(self.value_of(value), parts)
        steps.append(
            loop(self.lane, self.width, tirx.BufferStore(tile, rest.astype(str(tile.dtype)), [self.lane]), "unrolled")
        )
        whole = tirx.BufferLoad(tile, [self.lane]).astype(kind)
        steps.append(loop(self.lane, self.width, tirx.BufferStore(buffer, whole, place), "vectorized"))
        return tirx.SeqStmt(steps), tiles

    def width_of(self, value: tirx.Expr, tensor: str) -> int:
        """Lanes of the narrowest load of a tensor that `store` makes of an expression."""
        loads = [self.aligned(load) for load in loads_of(self.value_of(value)) if str(load.source.name) == tensor]
        whole = loads if self._has_form(value) else self.neighbours_in(value)
        is_whole = all(
            load is not None and self.moves(load) and any(structural_equal(load, other) for other in whole)
            for load in loads
        )
        return self.width if is_whole else 1

    def takes_texels(self, value: tirx.Expr, tensor: str) -> bool:
        """Whether `store` loads a tensor in whole vectors alone, each of which begins at a multiple of their width
        along the tensor's last axis.
        """

        def is_texel(load: TensorLoad) -> bool:
            aligned = self.aligned(load)
            found = None if aligned is None else self._analyzer.modular_set(self._at(aligned.indices[-1], 0))
            return found is not None and int(found.coeff) % self.width == int(found.base) % self.width == 0

        loads = [load for load in loads_of(self.value_of(value)) if str(load.source.name) == tensor]
        return self.width_of(value, tensor) == self.width and all(map(is_texel, loads))
