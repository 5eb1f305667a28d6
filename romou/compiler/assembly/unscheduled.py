"""The unscheduled functions of a model for any sizes, from those at some sizes.

Sizes of all remainders of four are compared, and more where rules of integers need them (`SizeRules`).
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tvm
from tvm import relax, s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.base.errors import ModelError
from romou.base.pages import page_of
from romou.compiler.assembly.size_constants import ConstantShapes, constant_shapes, has_corners, with_constant_shapes
from romou.compiler.assembly.symbolic import one_kernel
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.onnx_graph import shapes_of
from romou.compiler.frontend.size_rules import NeedsPointError, NotOneKernelError, Point, Rule, SizeRules, Values
from romou.compiler.operators.workload import WORKLOAD, Workload
from romou.compiler.scheduling.blocks import find_blocks, is_view
from romou.compiler.task import plain_form
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import SIZES
from romou.compiler.tir.traversal import nodes_in
from tvm_patches.host_nodes import FUNCTION as HOST_NODES

logger = logging.getLogger("romou")

HINT = f"Give sizes instead of a range: each gets kernels of its own ({page_of('shapes')})."

# Axis of a tensor, place of a dimension, factor, offset and divisor. See `RunTimeSizes`.
Axis: TypeAlias = "tuple[int, int, int, int, int]"
_Found = TypeVar("_Found")
# Sizes of a dimension that are compared first, and more sizes that decide between rules.
_LINE, _MORE_POINTS = 5, 16


@dataclass(kw_only=True)
class Unscheduled:
    """The unscheduled functions, and what their integers follow from.

    fused_at, imported_at: the functions, and the imported model, at sizes. ModelError if the model has no such sizes.
    dims: the range of each dimension, from the least size that the model takes.
    points: the sizes at which functions are known. The first has the largest.
    """

    fused_at: Callable[[Point], tvm.IRModule]
    imported_at: Callable[[Point], ImportedModel]
    dims: Mapping[str, range]
    points: list[Point] = field(default_factory=list)
    _lacking: set[Point] = field(default_factory=set)
    _rules: dict[tuple[tuple[Point, ...], frozenset[Point]], SizeRules] = field(default_factory=dict)
    _modules: dict[Point, Mapping[str, tirx.PrimFunc]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        fused_at: Callable[[Point], tvm.IRModule],
        imported_at: Callable[[Point], ImportedModel],
        dims: Mapping[str, range],
    ) -> Unscheduled:
        """Return the functions at the sizes that are compared first.

        Raises
        ------
        ModelError
            A constant depends on a size, or the model has other functions for other sizes.
        """
        dims = {name: _taken(name, dims, imported_at) for name in dims}
        unscheduled = cls(fused_at=fused_at, imported_at=imported_at, dims=dims)
        for point in _first_points(dims):
            unscheduled._add(point)
        for place, sizes in enumerate(dims.values()):
            # What is one number at large sizes may be another one at small sizes.
            low, middle, most = max(sizes[0], 2), max(sizes[-1] // 2, sizes[0]), unscheduled.most
            while low < middle and not unscheduled._add((*most[:place], low, *most[place + 1 :])):
                low *= 2
            if all(point[place] == most[place] for point in unscheduled.points):
                names = list(dims)
                raise ModelError(f"the model takes {names[place]}={most[place]} only, of the sizes tried", hint=HINT)
        return unscheduled

    @property
    def most(self) -> Point:
        """The largest sizes."""
        return tuple(sizes[-1] for sizes in self.dims.values())

    def _fused(self, point: Point) -> Mapping[str, tirx.PrimFunc]:
        """Return the functions at sizes of `points`, as named at the largest sizes. They read constants of these."""
        if point not in self._modules:
            module = self.fused_at(point)
            names = _names_at(self.fused_at(self.most), module) or {}
            functions = {name: module[own] for name, own in names.items()}
            self._modules[point] = with_constant_shapes(functions, self._constant_shapes)
        return self._modules[point]

    @cached_property
    def _constant_shapes(self) -> ConstantShapes:
        return constant_shapes(self.fused_at(self.most))

    @cached_property
    def functions(self) -> dict[str, tirx.PrimFunc]:
        """The functions for any sizes that depend on sizes, in the order of their calls.

        Raises
        ------
        ModelError
            A function is not one for all sizes, an integer follows no rule, or a tensor is larger at other sizes than
            the largest ones.
        """
        names = [name for name, func in self._fused(self.most).items() if not is_view(func)]
        found = {name: self._decided(f"the kernel {name}", partial(self._function, name)) for name in names}
        return {name: func for name, func in found.items() if func is not None}

    def _function(self, name: str) -> tirx.PrimFunc | None:
        functions, rules = [self._fused(point)[name] for point in self.points], self._rules_at(self.points)
        func = one_kernel([_without_attributes(plain_form(each)) for each in functions], rules)
        for shapes in zip(*map(shapes_in, functions), strict=True) if func is not None else ():
            self._check_largest(f"a tensor of the kernel {name}", list(zip(*shapes, strict=True)), rules)
        return func

    def _add(self, point: Point) -> bool:
        """Compare the model at further sizes, and return whether it takes them."""
        if point in self.points:
            return True
        try:
            module = self.fused_at(point)
        except ModelError:
            if not self.points or self._is_large(point):
                raise
            self._lacking.add(point)
            return False
        if self.points:
            whole = self.fused_at(self.most)
            if not self._is_large(point) and _unit_extents(module) != _unit_extents(whole):
                # Axes of one element are left out, so kernels are fused otherwise. This says nothing of other sizes.
                self._lacking.add(point)
                return False
            if _names_at(whole, module) is None:
                raise ModelError(f"the graph has other kernels with {text_of(self.dims, point)}", hint=HINT)
            if changed := _host_nodes(module) ^ _host_nodes(whole):
                nodes = ", ".join(json.loads(min(changed))["nodes"])
                raise ModelError(f"{nodes} would run on the host, where a size at run time is not known", hint=HINT)
            is_inside = all(a <= b for a, b in zip(point, self.most, strict=True))
            if is_inside and not has_corners(whole, module, self._constant_shapes):
                text = (
                    f"a constant of the model depends on the size: it is another one with {text_of(self.dims, point)}"
                )
                raise ModelError(text, hint=HINT)
        self.points.append(point)
        return True

    def _is_large(self, point: Point) -> bool:
        """Return whether all sizes are in their ranges, above half of the bound: what holds there has to be known, or
        sizes of one remainder are all that is.
        """
        halves = (size // 2 for size in self.most)
        return all(
            size in sizes and size > max(half, 1)
            for size, sizes, half in zip(point, self.dims.values(), halves, strict=True)
        )

    def _rules_at(self, points: Sequence[Point]) -> SizeRules:
        key = tuple(points), frozenset(self._lacking - {*points})
        if key not in self._rules:
            self._rules[key] = SizeRules(points=key[0], ranges=list(self.dims.values()), lacking=key[1])
        return self._rules[key]

    def _decided(self, what: str, find: Callable[[], _Found]) -> _Found:
        """Call `find` with more and more points, until rules are known. ModelError if they are not."""
        reason: object = "it has several rules that differ at few sizes"
        for _ in range(_MORE_POINTS):
            try:
                return find()
            except NeedsPointError as error:
                self._add(error.point)
            except NotOneKernelError as error:
                reason = error
                break
        raise ModelError(f"{what} takes no size at run time: {reason}", hint=HINT)

    def _check_largest(self, what: str, extents: Sequence[Values], rules: SizeRules) -> None:
        counts = np.ones_like(rules.grid[0])
        for values in extents:
            counts = counts * (values[0] if len(set(values)) == 1 else rules.of(values)(rules.grid))
        most = int(np.prod([values[0] for values in extents]))
        if counts.size and int(counts.max()) > most:
            point = tuple(int(column[int(counts.argmax())]) for column in rules.grid)
            raise ModelError(f"{what} has more elements with {text_of(self.dims, point)} than at the bounds", hint=HINT)

    def workload(self, name: str, largest: Workload) -> Workload:
        """Return a function's operator, whose numbers that follow from sizes are expressions of its parameters.

        largest: the operator at the largest sizes.

        Raises
        ------
        NotOneKernelError, NeedsPointError
            A number follows no rule, or several.
        """
        sizes, rules = list(self.functions[name].attrs[SIZES]), self._rules_at(self.points)

        def number(values: Sequence[Any]) -> Any:
            if isinstance(values[0], list):
                return tuple(map(number, zip(*values, strict=True)))
            if all(value == values[0] for value in values):
                return values[0]
            if not all(isinstance(value, int) for value in values):
                raise NotOneKernelError(f"the operator is {values} at the sizes {[*self.points]}")
            return rules.of(tuple(values))(sizes)

        works = [_workload(self._fused(point)[name]) for point in self.points]
        if any(work.keys() != works[0].keys() for work in works):
            raise NotOneKernelError("it is another operator at some sizes")
        numbers = {field: number([work[field] for work in works]) for field in works[0]}
        changed: Any = {field: value for field, value in numbers.items() if value != works[0][field]}
        return replace(largest, **changed)

    @cached_property
    def _edges(self) -> list[Point]:
        """The points with the least size of each dimension, as far as the model takes them."""
        least = tuple(sizes[0] for sizes in self.dims.values())
        lines = ((*self.most[:place], size, *self.most[place + 1 :]) for place, size in enumerate(least))
        found = []
        for point in dict.fromkeys((least, *lines)):
            with contextlib.suppress(ModelError):
                self.imported_at(point)
                found.append(point)
        return found

    def axes(self, name: str) -> tuple[Axis, ...]:
        """Return the rules of each axis of an input or output that changes.

        Raises
        ------
        ModelError
            An axis is no product of shares of sizes, or its tensor is larger at other sizes than the largest ones.
        """

        def find() -> tuple[Axis, ...]:
            points = list(dict.fromkeys((*self.points, *self._edges)))
            shapes = [_shape(self.imported_at(point), name) for point in points]
            if len(set(map(len, shapes))) > 1:
                raise NotOneKernelError("its number of axes depends on sizes")
            rules, extents = self._rules_at(points), list(zip(*shapes, strict=True))
            self._check_largest(f"{name!r}", extents, rules)
            several = (_axes(axis, rules.of(each)) for axis, each in enumerate(extents) if len(set(each)) > 1)
            return tuple(itertools.chain.from_iterable(several))

        return self._decided(f"the shape of {name!r}", find)


def _workload(func: tirx.PrimFunc) -> dict[str, Any]:
    """Return the numbers of the last operator in a function. What is computed on the fly for it comes before it."""
    texts = [str(block.annotations[WORKLOAD]) for block in find_blocks(func) if WORKLOAD in block.annotations]
    if not texts:
        raise NotOneKernelError("it is no operator")
    work: dict[str, Any] = json.loads(texts[-1])
    return work


def _without_attributes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function without what is noted of it and its blocks, its workload for example: that is of one size."""

    def bare(block: s_tir.SBlock) -> s_tir.SBlock:
        parts = (block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init)
        return s_tir.SBlock(*parts, block.alloc_buffers, block.match_buffers) if block.annotations else block

    body = structural_map(func.body, (s_tir.SBlock, bare))
    return tirx.PrimFunc(func.params, body, func.ret_type).with_attr("tirx.noalias", True)


def _taken(name: str, dims: Mapping[str, range], imported_at: Callable[[Point], ImportedModel]) -> range:
    """Return the sizes of a dimension at which every window of the model fits.

    onnxruntime pads a pool's input up to one window. Such a pool would run on the host.
    """
    usual = _unusual(imported_at(tuple(sizes[-1] for sizes in dims.values())))

    def takes(size: int) -> bool:
        point = tuple(size if other == name else sizes[-1] for other, sizes in dims.items())
        try:
            return _unusual(imported_at(point)) <= usual
        except ModelError:
            return False

    sizes = dims[name]
    first = 0 if takes(sizes[0]) else bisect.bisect(sizes, False, 1, len(sizes) - 1, key=takes)
    if first:
        logger.warning("the model takes %s from %d on: smaller inputs have no whole window", name, sizes[first])
    return sizes[first:]


def _unusual(imported: ImportedModel) -> set[str]:
    """Return the nodes that run on the host, and the tensors without elements."""
    empty = {name for name, shape in shapes_of(imported.folded.graph).items() if 0 in shape}
    return empty.union(*imported.host_groups)


def _first_points(dims: Mapping[str, range]) -> list[Point]:
    """Return the points that are compared first: of all remainders of four, without 1, above small bounds if needed."""
    most = tuple(sizes[-1] for sizes in dims.values())
    lines = []
    for sizes in dims.values():
        bound, least = sizes[-1], max(sizes[0], 2)
        wanted = [bound - 1, bound - 2, bound - 3, max(bound // 2, least), *range(bound + 1, bound + _LINE)]
        lines.append([size for size in dict.fromkeys(wanted) if size >= least and size != bound][: _LINE - 1])
    points = [most]
    for place, line in enumerate(lines):
        points += [(*most[:place], size, *most[place + 1 :]) for size in line]
    if len(lines) > 1:
        points += [tuple(line[at] for line in lines) for at in (0, _LINE - 2)]
    for pair in itertools.combinations(range(len(lines)), 2) if len(lines) > 2 else ():
        points.append(tuple(line[1] if place in pair else most[place] for place, line in enumerate(lines)))
    return points


def text_of(dims: Iterable[str], point: Point) -> str:
    """Return sizes as text, "batch=2, tokens=64"."""
    return ", ".join(f"{name}={size}" for name, size in zip(dims, point, strict=True))


def shapes_in(func: tirx.PrimFunc) -> list[list[int]]:
    """Return the shapes of a function's tensors."""
    own = [buffer for block in nodes_in(func.body, s_tir.SBlock) for buffer in block.alloc_buffers]
    return [[int(extent) for extent in buffer.shape] for buffer in (*func.params, *own)]


def _calls(fused: tvm.IRModule) -> list[str]:
    """Return the functions that `main` calls, in order."""
    calls = [binding.value for binding in bindings_of(fused["main"]) if isinstance(binding.value, relax.Call)]
    return [
        str(each.name_hint) for call in calls for each in (call.op, *call.args) if isinstance(each, tvm.ir.GlobalVar)
    ]


def _names_at(whole: tvm.IRModule, fused: tvm.IRModule) -> dict[str, str] | None:
    """Return the function at other sizes for each function at the largest ones, in the order of calls.

    Operators may be one where their sizes are equal, so later ones have other numbers. None if they are others.
    """
    mine, others = _calls(whole), _calls(fused)
    names = dict(zip(mine, others, strict=False))
    is_same = [*map(_unnumbered, mine)] == [*map(_unnumbered, others)] and others == [names[name] for name in mine]
    return names if is_same else None


def _unnumbered(name: str) -> str:
    """Return a function's name without its numbers, and without the digest of a long name."""
    return re.sub(r"_[0-9a-f]{8}$|\d+", "", name)


def _host_nodes(fused: tvm.IRModule) -> set[str]:
    """Return the texts of the sub-models that run on the host. They have shapes."""
    values = [binding.value for binding in bindings_of(fused["main"])]
    calls = [value for value in values if op_name(value) == "relax.call_pure_packed"]
    return {str(call.args[1].value) for call in calls if call.args[0].global_symbol == HOST_NODES}


def _unit_extents(fused: tvm.IRModule) -> int:
    """Return the number of axes with one element, of all functions' tensors."""
    functions = [func for _, func in fused.functions_items() if isinstance(func, tirx.PrimFunc)]
    return sum(shape.count(1) for func in functions for shape in shapes_in(func))


def _shape(imported: ImportedModel, name: str) -> tuple[int, ...]:
    """Return the shape of an input or output."""
    if name in imported.inputs:
        return imported.inputs[name][0]
    result = imported.mod["main"].ret_ty
    types = result.fields if hasattr(result, "fields") else [result]
    return tuple(int(extent) for extent in types[imported.outputs.index(name)].shape)


def _axes(axis: int, rule: Rule) -> Iterator[Axis]:
    """Yield the rules of an axis as `RunTimeSizes` has them. NotOneKernelError if it has no such rule."""
    (times, (first, *others)), *sums = rule.products
    is_line = not others and 1 in (times, first.divisor)
    if sums or (rule.more and not is_line):
        raise NotOneKernelError(f"axis {axis} is no product of shares of sizes")
    if rule.more:
        yield axis, first.place, first.factor * times, first.offset * times + rule.more * first.divisor, first.divisor
        return
    if times != 1:
        yield axis, 0, 0, times, 1
    yield from ((axis, term.place, term.factor, term.offset, term.divisor) for term in (first, *others))
