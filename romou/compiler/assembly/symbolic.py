"""A kernel for any sizes, from its kernels for some.

    size 61: for i in range(61): if i < 61: ...   ->   for i in range(size): if i < size: ...
    size 47: for i in range(47): if i < 47: ...

Kernels of one config that differ in integers only are one kernel, if each of these integers follows from the sizes by
a rule: a multiple, a number of tiles, or a product of such. Sizes are variables from before the kernel is lowered, so
all simplifications hold for all sizes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.compiler.assembly.size_rules import NotOneKernelError, SizeRules
from romou.compiler.passes.whole_buffers import with_whole_buffers
from romou.compiler.tir.primitives import LANES, LARGEST_SIZES
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.launch import DIMENSIONS

# An integer at each point
_Values: TypeAlias = "tuple[int, ...]"
# The sizes of all free dimensions
Point: TypeAlias = "tuple[int, ...]"
# Place of a dimension, and factor, offset and divisor of an extent that follows from its size (`extent_of`)
Extent: TypeAlias = "tuple[int, int, int, int]"
# The expression of an integer, of the sizes
_Rule: TypeAlias = "Callable[[Sequence[Any]], Any]"
_LARGEST_TILE = 4096
_POWERS = tuple(1 << power for power in range(1, 13))
# Sizes whose kernels are compared. No factor of a tile divides them.
_SAMPLES = 4
_FACTORS = 2 * 3 * 5 * 7
_OTHER_TILES = [tile for tile in range(3, _LARGEST_TILE) if tile not in _POWERS and _FACTORS**12 % tile == 0]
_LEAST = 192
_LARGEST_OFFSET = 16
_LARGEST_ROW = 64
# Types of nodes that equal values share.
_SHARED = ("None", "int", "bool", "float", "ffi.String", "DataType", "ffi.Array", "ffi.Map")
# Fields of nodes that hold a number, not another node's place.
_PLAIN = frozenset({"kind", "iter_type", "ndim", "data_alignment", "offset_factor", "purity"})
# Fields that follow from others, or say where source text is.
_IGNORED = frozenset({"span", "layout"})
_OF_FUNCTIONS = ("params", "attrs", "body")


@dataclass(kw_only=True)
class Rules:
    """Rules for integers that depend on sizes.

    points: the sizes at which the integers are known.
    most: the largest sizes.
    extents: the likeliest first.
    unseen: sizes at which the integers are not known, because a kernel has other nodes there.
    rows: products of fixed extents, without factors of two. These are likely numbers of elements for a step of a size.
    """

    points: Sequence[Point]
    most: Point
    extents: Iterable[Extent]
    unseen: Sequence[Point] = ()
    rows: Collection[int] = frozenset({1})

    def __post_init__(self) -> None:
        by_place: list[dict[_Values, _Rule]] = [{} for _ in self.most]
        for numbers in self.extents:
            own = partial(extent_of, *numbers)
            by_place[numbers[0]].setdefault(tuple(map(own, self.points)), own)
        self._extents: dict[_Values, _Rule] = {}
        # Those of several dimensions are multiplied where axes are joined.
        for count in range(1, len(self.most) + 1):
            for several in itertools.combinations(by_place, count):
                for factors in itertools.product(*(each.items() for each in several)):
                    values = tuple(math.prod(each) for each in zip(*(values for values, _ in factors), strict=True))
                    rules = [rule for _, rule in factors]
                    self._extents.setdefault(values, rules[0] if count == 1 else partial(_product_of, rules))
        self._found = dict(self._extents)

    def of(self, values: _Values) -> _Rule:
        """Return the rule of an integer, the likeliest first.

        Raise NotOneKernelError if there is none, or if sizes that were not seen would tell two apart.
        """
        if values not in self._found:
            self._check_sure(values)
            extents, counts = self._extents.items(), range(1, _LARGEST_ROW + 1)
            likely = [row for row in counts if _odd(row) in self.rows]
            attempts = (
                *(partial(_moved, values, *each) for each in extents),
                *(partial(_multiple, values, *each) for each in extents),
                *(partial(_last, values, *each) for each in extents),
                *(partial(_tiles, values, *each, _POWERS) for each in extents),
                partial(self._near, values),
                partial(self._product, values),
                partial(self._tiles_of_elements, values, likely, _POWERS),
                *(partial(_linear, values, *each) for each in extents),
                *(partial(_tiles, values, *each, _OTHER_TILES) for each in extents),
                partial(self._multiple_of_product, values),
                partial(self._tiles_of_elements, values, likely, _OTHER_TILES),
                partial(self._tiles_of_elements, values, [row for row in counts if row not in likely], _POWERS),
            )
            rule = next((rule for attempt in attempts if (rule := attempt()) is not None), None)
            if rule is None:
                raise NotOneKernelError(f"an integer is {values} at the sizes {[*self.points]}")
            self._found[values] = rule
        return self._found[values]

    def find(self, several: Collection[_Values]) -> None:
        """Find the rules of integers. Errors as for `of`."""
        # Numbers of tiles follow from numbers of elements.
        for values in sorted(several, reverse=True):
            self.of(values)

    def _check_sure(self, values: _Values) -> None:
        """Raise NotOneKernelError if an integer is an extent and a few, or several times another extent: `n / 2 + 1` is
        `2 * ceil(n / 4)` wherever half of `n` is odd.
        """
        rules = [
            rule
            for follow, each in itertools.product((_moved, _multiple), self._extents.items())
            if (rule := follow(values, *each)) is not None
        ]
        if len({tuple(map(rule, self.unseen)) for rule in rules}) > 1:
            raise NotOneKernelError(f"an integer is {values} at the sizes {[*self.points]}, by several rules")

    def _near(self, values: _Values) -> _Rule | None:
        """Return the rule of an integer that is one with a rule, moved. The nearest is the likeliest."""
        offsets = {extent: values[0] - extent[0] for extent in self._found}
        for extent in sorted(offsets, key=lambda extent: abs(offsets[extent])):
            if (rule := _moved(values, extent, self._found[extent])) is not None:
                return rule
        return None

    def _product(self, values: _Values) -> _Rule | None:
        for factor, rule in [*self._found.items(), *self._counts()]:
            if all(f and v % f == 0 for v, f in zip(values, factor, strict=True)):
                rest = tuple(v // f for v, f in zip(values, factor, strict=True))
                other = self._found.get(rest) or next((r for counts, r in self._counts() if counts == rest), None)
                if other is not None:
                    return partial(_product_of, (rule, other))
        return None

    def _multiple_of_product(self, values: _Values) -> _Rule | None:
        """Return the rule of a multiple of a product of two integers of different dimensions."""
        if len(self.most) == 1:
            return None
        known = [*self._found.items(), *self._counts()]
        shares = {_reduced(factor): (factor, rule) for factor, rule in reversed(known)}
        for factor, rule in known:
            if all(f and v % f == 0 for v, f in zip(values, factor, strict=True)):
                rest = tuple(v // f for v, f in zip(values, factor, strict=True))
                other, other_rule = shares.get(_reduced(rest), (rest, None))
                if other_rule is not None and rest[0] % other[0] == 0:
                    return partial(_times, partial(_product_of, (rule, other_rule)), rest[0] // other[0])
        return None

    def _tiles_of_elements(self, values: _Values, rows: Sequence[int], tiles: Sequence[int]) -> _Rule | None:
        """Return the rule of a number of tiles of elements, which are a multiple of an extent or of a product."""
        common = math.gcd(*values)
        factors = [factor for factor in range(common, 0, -1) if common % factor == 0]
        extents = self._extents.items()
        # Last positions are no numbers of elements, but have as many tiles at most sizes.
        known = [
            found
            for found in self._found.items()
            if found in extents or all(_last(found[0], *each) is None for each in extents)
        ]
        for factor, tile, row in itertools.product(factors, tiles, rows):
            for extent, rule in known:
                if all(factor * -(-row * e // tile) == v for e, v in zip(extent, values, strict=True)):
                    count = partial(_rounded_up, partial(_times, rule, row), tile)
                    return partial(_times, count, factor)
        return None

    def _counts(self) -> Iterator[tuple[_Values, _Rule]]:
        """Yield the numbers of tiles of each extent."""
        for (extent, rule), tile in itertools.product(self._extents.items(), _POWERS):
            yield tuple(-(-e // tile) for e in extent), partial(_rounded_up, rule, tile)


def extent_of(place: int, factor: int, offset: int, divisor: int, sizes: Sequence[Any]) -> Any:
    """Return `Cut.extent` of numbers or expressions, of the dimension at a place."""
    scaled = sizes[place] * factor + offset
    return scaled if divisor == 1 else scaled // divisor


def _odd(number: int) -> int:
    """Return a number without its factors of two."""
    return number // (number & -number)


def _reduced(values: _Values) -> _Values:
    """Return the values divided by their greatest common divisor."""
    common = math.gcd(*values) or 1
    return tuple(value // common for value in values)


def _product_of(rules: Sequence[_Rule], sizes: Sequence[Any]) -> Any:
    return math.prod((rule(sizes) for rule in rules[1:]), start=rules[0](sizes))


def _times(rule: _Rule, factor: int, sizes: Sequence[Any]) -> Any:
    return rule(sizes) * factor


def _rounded_up(rule: _Rule, tile: int, sizes: Sequence[Any]) -> Any:
    """Return the number of tiles."""
    return (rule(sizes) + (tile - 1)) // tile


def _moved(values: _Values, extent: _Values, rule: _Rule) -> _Rule | None:
    (offset, *others) = {v - e for e, v in zip(extent, values, strict=True)}
    return None if others or abs(offset) > _LARGEST_OFFSET else lambda sizes: rule(sizes) + offset


def _multiple(values: _Values, extent: _Values, rule: _Rule) -> _Rule | None:
    is_multiple = all(v * extent[0] == values[0] * e for e, v in zip(extent, values, strict=True))
    return partial(_times, rule, values[0] // extent[0]) if is_multiple and values[0] % extent[0] == 0 else None


def _last(values: _Values, extent: _Values, rule: _Rule) -> _Rule | None:
    """Return the rule of the last position of a multiple of an extent, which reads are clamped to."""
    multiple = _multiple(tuple(value + 1 for value in values), extent, rule)
    return None if multiple is None else lambda sizes: multiple(sizes) - 1


def _linear(values: _Values, extent: _Values, rule: _Rule) -> _Rule | None:
    (first, low), (last, high) = min(zip(extent, values, strict=True)), max(zip(extent, values, strict=True))
    if first == last or (high - low) % (last - first):
        return None
    slope = (high - low) // (last - first)
    offset = low - slope * first
    if any(slope * e + offset != v for e, v in zip(extent, values, strict=True)):
        return None
    return lambda sizes: rule(sizes) * slope + offset


def _tiles(values: _Values, extent: _Values, rule: _Rule, tiles: Sequence[int]) -> _Rule | None:
    """Return `factor` times the number of tiles, which is rounded up."""
    common = math.gcd(*values)
    factors = [each for each in range(1, common + 1) if common % each == 0]
    for tile, factor in itertools.product(tiles, factors):
        if all(factor * -(-e // tile) == v for e, v in zip(extent, values, strict=True)):
            return partial(_times, partial(_rounded_up, rule, tile), factor)
    return None


def generic_points(most: Point, bases: Sequence[Extent], halving: Collection[int]) -> tuple[list[Point], list[Point]]:
    """Return points whose extents of each dimension are generic (`generic_sizes`), and points that a tile may divide.

    One dimension changes while the others stay, so the integers of a dimension are told apart from those of another.
    Then all change.

    bases: the extent of each dimension, with a factor of 1.
    halving: dimensions that strides halve.
    """
    sizes = [_generic_sizes_of(extent_of(*base, most), *base[2:]) for base in bases]
    # Different ones, if dimensions have equal bounds
    first = tuple(generic[place % len(generic)] for place, (generic, _) in enumerate(sizes))
    points = [first]
    for place, (generic, _) in enumerate(sizes):
        points += [(*first[:place], size, *first[place + 1 :]) for size in generic if size != first[place]]
    if len(most) > 1:
        points.append(tuple(generic[place - 1] for place, (generic, _) in enumerate(sizes)))
    odd = tuple(halved[0] for _, halved in sizes)
    # Tiles of a dimension without strides divide its even sizes.
    even = tuple(halved[1] if place in halving else first[place] for place, (_, halved) in enumerate(sizes))
    return points, [odd, even] if halving else [odd]


def _generic_sizes_of(most: int, offset: int, divisor: int) -> tuple[_Values, ...]:
    """Return sizes whose extents, at most `most`, are generic, with several remainders of the divisor."""
    return tuple(
        tuple(divisor * extent - offset + 3 * place % divisor for place, extent in enumerate(extents))
        for extents in generic_sizes(most, is_scaled=divisor > 1)
    )


def generic_sizes(most: int, *, is_scaled: bool = False) -> tuple[_Values, _Values]:
    """Return sizes that no tile divides, nor their numbers of vectors: kernels for them have all bounds checks.

    One is near half of the largest size, so that numbers of tiles differ. Remainders of powers of two differ, so that
    each integer has one rule. Small bounds get sizes above them.

    Also return an odd size with another remainder of eight, whose half is even, and an even one with an odd half, for
    dimensions that strides halve. A tile may divide these.

    is_scaled: sizes are multiples of these, which should be small. A tile may divide their numbers of vectors.
    """
    last, second, *more = _generic(most, 1, is_scaled=is_scaled)
    others = [size for size in more if size != second]
    third = min(others, key=lambda size: (size % 64 in (last % 64, second % 64), abs(size - last // 2)))
    fourth = min((size for size in others if size != third), key=lambda size: abs(size - last * 3 // 4))
    return (last, second, third, fourth), (_generic(most, 3, is_scaled=is_scaled)[0], 2 * third)


def _generic(most: int, remainder: int, *, is_scaled: bool) -> list[int]:
    """Return generic sizes with a remainder of eight, the largest first and one with another remainder of 16 second."""
    sizes = [
        size
        for size in range(16 + remainder, max(most, _LEAST) + 1, 8)
        if math.gcd(size, _FACTORS) == 1 and (is_scaled or math.gcd(-(-size // LANES), _FACTORS) == 1)
    ]
    below, least = [size for size in sizes if size <= most], _SAMPLES + 1 if is_scaled else 2 * _SAMPLES
    first, *more = reversed(below if len(below) >= least else sizes[:least])
    return [first, *sorted(more, key=lambda size: size % 16 == first % 16)]


def one_kernel(kernels: Sequence[tirx.PrimFunc], rules: Rules | SizeRules) -> tirx.PrimFunc:
    """Return the kernel for any sizes, which are int32 behind its other parameters.

    kernels: of one config, or unscheduled, at the points of `rules`.

    Raises
    ------
    NotOneKernelError
        They differ in more than integers, or an integer follows no rule.
    NeedsPointError
        As in `SizeRules.of`.
    """
    if isinstance(rules, Rules):
        rules = replace(rules, rows=_rows_of(kernels))
    # The text of dimensions has sizes.
    graphs = [json.loads(tvm.ir.save_json(each.without_attr(DIMENSIONS))) for each in kernels]
    numbers, graph = differing(graphs), graphs[0]
    nodes = graph["nodes"]
    sizes = [tirx.Var(f"size{place or ''}", "int32") for place, _ in enumerate(rules.most)]
    expressions = []
    whole = {place: _whole(values) for place, values in numbers.items()}
    rules.find(set(whole.values()))
    for place, values in whole.items():
        dtype = nodes[nodes[place]["data"]["ty"]]["data"]["dtype"]
        is_float = nodes[place]["type"] == "ir.FloatImm"
        number = rules.of(values)([size.astype("int32" if is_float else dtype) for size in sizes])
        number = number.astype(dtype) if is_float else number
        expressions.append(tirx.const(1, dtype) / number if values != numbers[place] else number)
    more = json.loads(tvm.ir.save_json([*sizes, *expressions]))
    moved = [_redirected(node, lambda place: place + len(nodes)) for node in more["nodes"]]
    roots = moved[more["root_index"]]["data"]
    places = dict(zip(numbers, roots[len(sizes) :], strict=True))
    nodes = [_redirected(node, lambda place: places.get(place, place)) for node in nodes]
    both = {"type": "ffi.Array", "data": [graph["root_index"], *roots[: len(sizes)]]}
    graph.update(nodes=[*nodes, *moved, both], root_index=len(nodes) + len(moved))
    func, *sizes = tvm.ir.load_json(json.dumps(graph))
    # Before buffers are compacted, which looks at their whole size, and then again
    return with_whole_buffers(_with_new_buffers(func, sizes).with_attr(LARGEST_SIZES, list(rules.most)))


def _rows_of(kernels: Sequence[tirx.PrimFunc]) -> set[int]:
    """Return `Rules.rows`: of the parameters' extents that are the same in all kernels."""
    found = set[int]()
    for shapes in zip(*([parameter.shape for parameter in kernel.params] for kernel in kernels), strict=True):
        rows = {1}
        for extents in zip(*shapes, strict=True):
            fixed, *others = {int(extent) for extent in extents}
            if fixed and not others:
                rows |= {row * _odd(fixed) for row in rows}
        found |= rows
    return found


def _with_new_buffers(func: tirx.PrimFunc, sizes: Sequence[tirx.Var]) -> tirx.PrimFunc:
    """Return the function with `sizes` as last parameters, and buffers without the layout that they had at a point."""
    own = [buffer for block in nodes_in(func.body, s_tir.SBlock) for buffer in block.alloc_buffers]
    renewed = {
        buffer: tirx.decl_buffer(buffer.shape, buffer.dtype, buffer.name, scope=str(buffer.scope()))
        for buffer in (*func.params, *own)
    }
    body = structural_map(func.body, [(tirx.Var, lambda var: renewed.get(var, var)), (tirx.For, _written_once)])
    return tirx.PrimFunc([*(renewed[p] for p in func.params), *sizes], body, func.ret_type, func.attrs)


def _written_once(loop: tirx.For) -> tirx.For:
    """Return a loop that is not unrolled if its number of steps follows from a size."""
    if loop.kind != tirx.ForKind.UNROLLED or isinstance(loop.extent, tirx.IntImm):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _redirected(node: Mapping[str, Any], place_of: Callable[[int], int]) -> Mapping[str, Any]:
    """Return a node that refers to other places."""
    data = node.get("data")
    if isinstance(data, list):
        return {**node, "data": [place_of(place) for place in data]}
    if isinstance(data, dict):
        return {**node, "data": {name: place_of(v) if _is_place(name, v) else v for name, v in data.items()}}
    return node


def _is_place(name: str, value: object) -> bool:
    return type(value) is int and name not in _PLAIN


def _whole(values: Sequence[float]) -> _Values:
    """Return integers that equal the numbers, or whose reciprocals do. Raise NotOneKernelError if there are none."""
    if all(value == int(value) for value in values):
        return tuple(map(int, values))
    counts = tuple(round(1 / value) if value else 0 for value in values)
    if any(not count or not math.isclose(1 / count, v, rel_tol=1e-7) for count, v in zip(counts, values, strict=True)):
        raise NotOneKernelError(f"a number is {tuple(values)}")
    return counts


def differing(graphs: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, ...]]:
    """Return the numbers that differ: place of the node in the first graph -> value in each graph."""
    nodes = [graph["nodes"] for graph in graphs]
    # What a node of the first graph is in the others.
    partners: dict[int, tuple[int, ...]] = {}
    differing: dict[int, tuple[float, ...]] = {}
    roots = tuple(graph["root_index"] for graph in graphs)
    open_places = [tuple(each["data"][name] for each in map(_node_of, nodes, roots)) for name in _OF_FUNCTIONS]
    while open_places:
        places = open_places.pop()
        each = [mine[place] for mine, place in zip(nodes, places, strict=True)]
        if places[0] in partners and each[0]["type"] not in _SHARED:
            if partners[places[0]] != places:
                raise NotOneKernelError("values are shared differently")
            continue
        partners[places[0]] = places
        (kind, *others), data = [node["type"] for node in each], [node.get("data") for node in each]
        if any(other != kind for other in others):
            raise NotOneKernelError(f"a {kind} is a {next(other for other in others if other != kind)}")
        if kind == "ir.IntImm":
            values = tuple(int(mine[d["value"]]["data"]) for mine, d in zip(nodes, data, strict=True))
            if len(set(values)) > 1:
                differing[places[0]] = values
        elif kind == "ir.FloatImm" and len({d["value"] for d in data}) > 1:
            differing[places[0]] = tuple(float(d["value"]) for d in data)
        elif isinstance(data[0], list):
            if len({len(d) for d in data}) > 1:
                raise NotOneKernelError(f"{kind} has {[len(d) for d in data]} elements")
            open_places += zip(*data, strict=True)
        elif isinstance(data[0], dict):
            for name in data[0]:
                values = tuple(d[name] for d in data)
                if name in _IGNORED:
                    continue
                if _is_place(name, values[0]):
                    open_places.append(values)
                elif len(set(values)) > 1:
                    raise NotOneKernelError(f"{name} of a {kind} is {values}")
        elif any(d != data[0] for d in data):
            raise NotOneKernelError(f"a {kind} is {data}")
    return differing


def _node_of(nodes: Sequence[Any], place: int) -> Any:
    return nodes[place]
