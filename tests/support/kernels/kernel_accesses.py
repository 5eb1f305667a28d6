"""Elements that the first work group of a kernel loads and stores. Every address is evaluated for all its work-items,
in an iteration in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.operators.algorithms.closed_form import SERVED, bank_conflict_rounds
from romou.compiler.operators.analysis.expressions import dtype_of
from romou.compiler.tir.calls import is_async_copy, is_conditional, is_texel_load, op_name
from romou.compiler.tir.evaluate import evaluate
from romou.compiler.tir.expressions import lanes_of
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.traversal import nodes_in
from support.kernels.kernel_structure import (
    KernelStructure,
    local_bytes_in,
    local_bytes_of,
    parameter_name,
    pointer_lanes,
    stores_in,
)


@dataclass(frozen=True)
class Load:
    """One load of data or weight in an iteration of the main loop.

    times: how often loops inside the iteration repeat it
    places: element numbers in a buffer, or three coordinates of texels, by all work-items that reach it and in all
    repetitions
    places_of_one: the same for the first work-item, the first time
    is_ahead: whether it is for a later iteration. Each such load counts as written.
    """

    tensor: str
    is_image: bool
    lanes: int
    times: int
    places: tuple[np.ndarray, ...]
    places_of_one: tuple[np.ndarray, ...]
    is_ahead: bool


class GroupAccesses:
    """Loads and stores of the first work group in one iteration, as arrays over (loops inside the iteration, work-items
    of the group).
    """

    def __init__(self, structure: KernelStructure, output: str) -> None:
        self.loads: list[Load] = []
        self.stores: list[tuple[np.ndarray, ...]] = []
        self.is_prefetched = False
        self.local_loads = local_bytes_in(structure.body) if structure.is_staged and not structure.has_main_loop else 0
        self._structure = structure
        self._output = output
        self._env: dict[Any, Any] = {}
        self._iterations: list[int] = []
        self._visit(structure.func.body, in_main=not structure.way_to_main, active=np.True_)

    def distinct_bytes(self, number_bytes: Mapping[str, int], *, is_image: bool) -> int:
        """Return the distinct bytes of all work-items' loads from images or from buffers.

        `number_bytes` maps a tensor to the bytes of one of its numbers.
        """
        mine = [a for a in self.loads if a.is_image == is_image]
        return sum(
            number_bytes[tensor] * _count_distinct([a.places for a in mine if a.tensor == tensor])
            for tensor in {a.tensor for a in mine}
        )

    def numbers_of_one(self) -> dict[tuple[str, bool], int]:
        """Return (tensor, whether it is an image) -> numbers that the first work-item loads, counting each repetition
        by loops inside the iteration.
        """
        found: dict[tuple[str, bool], int] = {}
        together: dict[tuple[str, bool, int, int], list[tuple[np.ndarray, ...]]] = {}
        for number, load in enumerate(self.loads):
            together.setdefault((load.tensor, load.is_image, load.times, number if load.is_ahead else -1), []).append(
                load.places_of_one
            )
        for (tensor, is_image, times, _), places in together.items():
            found[tensor, is_image] = found.get((tensor, is_image), 0) + times * _count_distinct(places)
        return found

    def stored_by_a_group(self) -> int:
        """Return the numbers of the output that the work group writes."""
        return _count_distinct(self.stores) if self.stores else 0

    def _visit(self, stmt: Any, *, in_main: bool, active: Any) -> None:
        structure = self._structure
        match stmt:
            case tirx.SeqStmt():
                for child in stmt.seq:
                    self._visit(child, in_main=in_main, active=active)
            case tirx.AttrStmt():
                if stmt.attr_key == "thread_extent":
                    self._env[stmt.node.var] = self._id(str(stmt.node.thread_tag))
                self._visit(stmt.body, in_main=in_main, active=active)
            case tirx.For() if not in_main:
                # Only the way to the main loop matters. Every loop on it is in its middle, because the first iteration
                # may be all padding.
                if any(map(stmt.same_as, structure.way_to_main)):
                    self._env[stmt.loop_var] = int(stmt.min) + int(stmt.extent) // 2
                    self._visit(stmt.body, in_main=stmt.same_as(structure.way_to_main[-1]), active=active)
            case tirx.For():
                if (
                    structure.has_loads(stmt.body)
                    or stores_in(stmt.body, self._output)
                    or (structure.is_staged and local_bytes_in(stmt.body))
                ):
                    self._iterations.append(int(stmt.extent))
                    self._env[stmt.loop_var] = (int(stmt.min) + np.arange(int(stmt.extent))).reshape(
                        -1, *[1] * len(self._iterations)
                    )
                    self._visit(stmt.body, in_main=True, active=active)
                    self._iterations.pop()
            case tirx.IfThenElse():
                condition = evaluate(stmt.condition, self._env)
                if in_main:
                    self._load_all(stmt.condition, active)
                self._visit(stmt.then_case, in_main=in_main, active=active & condition)
                if stmt.else_case is not None:
                    self._visit(stmt.else_case, in_main=in_main, active=active & ~condition)
            case tirx.Bind():
                if in_main:
                    self._read_staged(stmt.value)
                    self._load_all(stmt.value, active)
                if dtype_of(stmt.value).startswith(("int", "bool")):
                    self._env[stmt.var] = evaluate(stmt.value, self._env)
            case _ if in_main:
                self._read_staged(stmt)
                self._load_all(stmt, active)
                self.stores += [
                    self._of_everyone(self._stored_places(store), active) for store in stores_in(stmt, self._output)
                ]

    def _id(self, tag: str) -> Any:
        """Return the numbers of the work-items along an axis. The work group is the first one."""
        if not tag.startswith("threadIdx"):
            return 0
        extents = self._structure.extents
        before = [extents.get(f"threadIdx.{axis}", 1) for axis in "xyz"[: "xyz".index(tag[-1])]]
        return np.arange(self._structure.group_size) // math.prod(before) % extents[tag]

    def _read_staged(self, node: Any) -> None:
        # The partial sums of a split reduction are added up once, behind all iterations.
        if not (self._structure.is_staged and self._structure.has_main_loop):
            return
        for load in nodes_in(node, tvm.ir.TensorLoad, tvm.ir.Call):
            if size := local_bytes_of(load):
                self.local_loads += (
                    math.prod(self._iterations) * size * (1 if self._structure.on_tensor_cores else self._rounds(load))
                )

    def _rounds(self, load: tvm.ir.TensorLoad) -> int:
        kind = tvm.DataType(str(load.source.dtype))
        places = self._elements(load.indices[0], int(kind.lanes), 1)
        return bank_conflict_rounds(places.reshape(-1, self._structure.group_size)[0, :SERVED] * (int(kind.bits) // 8))

    def _load_all(self, node: Any, active: Any) -> None:
        structure = self._structure
        is_ahead, is_staging = structure.is_ahead(node), structure.is_staging(node)
        guards: list[tuple[list[Any], Any]] = []

        def guard(call: tvm.ir.Call) -> None:
            if is_conditional(call):
                condition, then, otherwise = call.args
                guards.extend(
                    [
                        (list(structure.loads_in(then)), condition),
                        (list(structure.loads_in(otherwise)), tirx.Not(condition)),
                    ]
                )
            elif is_async_copy(call):
                guards.append(([call], call.args[5]))

        structural_walk(node, (tvm.ir.Call, guard))
        for load in structure.loads_in(node):
            self.is_prefetched |= is_ahead
            tensor, lanes, places = self._loaded_places(load)
            is_active = np.broadcast_to(active, self._shape)
            for guarded, condition in guards:
                if any(map(load.same_as, guarded)):
                    is_active = is_active & (evaluate(condition, self._env) != 0)
            # Loads that loops repeat, or that are staged in local memory, count as written in the code: the first time
            # may be all padding.
            is_read = bool(self._iterations) or is_ahead or is_staging or bool(is_active[0])
            first = tuple(
                p.reshape(*p.shape[: p.ndim - len(self._shape)], -1)[..., 0].reshape(-1)[: None if is_read else 0]
                for p in self._whole(places)
            )
            everyone = self._of_everyone(places, is_active)
            self.loads.append(
                Load(tensor, is_texel_load(load), lanes, math.prod(self._iterations), everyone, first, is_ahead)
            )

    def _loaded_places(self, load: tvm.ir.TensorLoad | tvm.ir.Call) -> tuple[str, int, list[Any]]:
        """Return the tensor that a load reads, its lanes and its places, in the form of `Load`."""
        if isinstance(load, tvm.ir.TensorLoad):
            unit = int(tvm.DataType(str(load.source.dtype)).lanes)
            return parameter_name(load.source), lanes_of(load), [self._elements(load.indices[0], unit, lanes_of(load))]
        if lanes := pointer_lanes(load):
            return parameter_name(load.args[2]), lanes, [self._behind_pointer(load.args[1], load.args[2], lanes)]
        return (
            parameter_name(load.args[0]),
            lanes_of(load),
            [evaluate(argument, self._env) for argument in load.args[1:4]],
        )

    def _stored_places(self, store: tirx.BufferStore | tvm.ir.Call) -> list[Any]:
        if isinstance(store, tirx.BufferStore):
            unit = int(tvm.DataType(str(store.buffer.dtype)).lanes)
            return [self._elements(store.indices[0], unit, lanes_of(store.value))]
        if op_name(store) == "tirx.texture2d_store":
            return [evaluate(argument, self._env) for argument in store.args[1:4]]
        return [self._behind_pointer(store.args[2], store.args[3], lanes_of(store.args[1]))]

    def _behind_pointer(self, index: tirx.Expr, pointer: Any, lanes: int) -> np.ndarray:
        start = _start(pointer)
        return self._elements(index, lanes, lanes) + (0 if start is None else evaluate(start, self._env))

    def _elements(self, index: tirx.Expr, unit: int, lanes: int) -> np.ndarray:
        """Return the element numbers of a load, shape (lanes, ...). `index` counts units of `unit` elements, or is a
        ramp of elements.
        """
        first = np.broadcast_to(evaluate(index.base if isinstance(index, tirx.Ramp) else index, self._env), self._shape)
        step = int(index.stride) if isinstance(index, tirx.Ramp) else 1
        return np.asarray(first[None] * unit + step * np.arange(lanes).reshape(-1, *[1] * len(self._shape)))

    @property
    def _shape(self) -> tuple[int, ...]:
        return (*reversed(self._iterations), self._structure.group_size)

    def _whole(self, places: Sequence[Any]) -> list[np.ndarray]:
        """Return places broadcast to all work-items and repetitions."""
        return [
            np.broadcast_to(p, (*np.shape(p)[: max(0, np.ndim(p) - len(self._shape))], *self._shape)) for p in places
        ]

    def _of_everyone(self, places: Sequence[Any], active: Any) -> tuple[np.ndarray, ...]:
        """Return the places of all work-items that reach the load, in all repetitions."""
        is_active = np.broadcast_to(active, self._shape)
        return tuple(p[..., is_active].reshape(-1) for p in self._whole(places))


def _count_distinct(places: Sequence[tuple[np.ndarray, ...]]) -> int:
    """Count the distinct numbers among element numbers, or in the texels at triples of coordinates."""
    columns = [np.concatenate(axis) for axis in zip(*places, strict=True)]
    if len(columns) == 1:
        return len(np.unique(columns[0]))
    # Coordinates may be negative, for which an image returns zero.
    x, y, layer = (c - c.min(initial=0) for c in columns)
    key = (x * (y.max(initial=0) + 1) + y) * (layer.max(initial=0) + 1) + layer
    return len(np.unique(key)) * LANES


def _start(pointer: Any) -> Any:
    """Return the element that a pointer made by address_of points to. None if it points to the first one."""
    if isinstance(pointer, tvm.ir.TensorLoad):
        return pointer.indices[0]
    return _start(pointer.args[-1]) if isinstance(pointer, tvm.ir.Call) and pointer.args else None
