"""An unscheduled function for any sizes, from those for some.

    size 61: for i in range(61): if i < 61: ...   ->   for i in range(size): if i < size: ...
    size 47: for i in range(47): if i < 47: ...

Functions that differ in integers only are one function, if each of these integers follows one rule of the sizes
(`SizeRules`). Sizes are variables from before a kernel is scheduled, so all simplifications hold for all sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.compiler.assembly.size_rules import NotOneKernelError, SizeRules, Values
from romou.compiler.passes.whole_buffers import with_whole_buffers
from romou.compiler.tir.primitives import LARGEST_SIZES
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.launch import DIMENSIONS

# Types of nodes that equal values share.
_SHARED = ("None", "int", "bool", "float", "ffi.String", "DataType", "ffi.Array", "ffi.Map")
# Fields of nodes that hold a number, not another node's place.
_PLAIN = frozenset({"kind", "iter_type", "ndim", "data_alignment", "offset_factor", "purity"})
# Fields that follow from others, or say where source text is.
_IGNORED = frozenset({"span", "layout"})
_OF_FUNCTIONS = ("params", "attrs", "body")


def one_kernel(kernels: Sequence[tirx.PrimFunc], rules: SizeRules) -> tirx.PrimFunc | None:
    """Return the kernel for any sizes, which are int32 after its other parameters. None if no integer depends on them.

    kernels: unscheduled, at the points of `rules`.

    Raises
    ------
    NotOneKernelError
        They differ in more than integers, or an integer follows no rule.
    NeedsPointError
        As in `SizeRules.of`.
    """
    # The text of dimensions has sizes.
    graphs = [json.loads(tvm.ir.save_json(each.without_attr(DIMENSIONS))) for each in kernels]
    numbers, graph = differing(graphs), graphs[0]
    if not numbers:
        return None
    nodes = graph["nodes"]
    sizes = [tirx.Var(f"size{place or ''}", "int32") for place, _ in enumerate(rules.most)]
    expressions = []
    whole = {place: _whole(values) for place, values in numbers.items()}
    for values in sorted(set(whole.values())):  # products follow from their factors
        rules.of(values)
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


def _whole(values: Sequence[float]) -> Values:
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
