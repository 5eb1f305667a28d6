"""Kernels of RNN, GRU and LSTM: one for each nest of the time loop, which the host launches for each step.

    for t: for d, b, j: sums[g] = sum over k of state[k] * weight[k, g, j]; step(sums)    ->    for t (host): kernel(t)

unit          a hidden unit of a direction and a sequence
work-item     `width` neighbours of them, whose weights it loads as vectors
work group    `units` times `threads` work-items: `threads` share a sum, which the first of them adds up in local memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tvm
from tvm import s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.schedules.emit import guarded, loop, substitute
from romou.schedules.splice import nests_of, with_root
from romou.tir.primitives import LANES
from romou.tir.traversal import nodes_in
from romou.tvm_patches.onnx_converters.recurrent_loop import SUMMED, TIME_LOOP

if TYPE_CHECKING:
    from romou.core.limits import Limits

# Work-items of a group; of a nest without sums, and of one with sums where the device has no warps.
_GROUP = 64
# Work-items that share a sum, at most: what they have is added up by one of them.
_MOST_THREADS = 32
# Units that a work-item sums up at least.
_LEAST_SUMMED = 8


def is_time_loop(func: tirx.PrimFunc) -> bool:
    """Whether a function is the time loop of a recurrent operator."""
    return bool(func.attrs and TIME_LOOP in func.attrs)


def schedule_time_loop(func: tirx.PrimFunc, limits: Limits) -> tirx.PrimFunc:
    """Return the function with a kernel for each nest of units."""
    stages = []
    for stage in nests_of(func):
        inner = _below_time(stage)
        if inner is None:
            stages.append(_kernel(stage, limits))
        else:
            kernels = [_kernel(nest, limits) for nest in inner]
            stages.append(tirx.For(stage.loop_var, stage.min, stage.extent, tirx.ForKind.SERIAL, _sequence(kernels)))
    kept = [buffer for buffer in func.body.block.alloc_buffers if str(buffer.scope()) == "global"]
    return with_root(func, _sequence(stages), kept).with_attr("tirx.is_scheduled", True)


def _below_time(stage: tirx.For) -> list[tirx.For] | None:
    """The nests of the time loop; None for a nest of units."""
    if TIME_LOOP not in stage.annotations:
        return None
    return list(stage.body.seq) if isinstance(stage.body, tirx.SeqStmt) else [stage.body]


@dataclass(frozen=True, kw_only=True)
class _Nest:
    """The three loops of a nest, and the statements for a unit."""

    axes: list[tirx.Var]
    extents: list[int]
    steps: list[tirx.Stmt]


def _nest(stage: tirx.For) -> _Nest:
    axes, extents, body = [], [], stage
    for _ in range(3):
        axes.append(body.loop_var)
        extents.append(int(body.extent))
        body = body.body
    return _Nest(axes=axes, extents=extents, steps=list(body.seq) if isinstance(body, tirx.SeqStmt) else [body])


@dataclass(kw_only=True)
class _Items:
    """Work-items of a kernel.  width, units, threads: see above.   blocks: groups of a sequence."""

    nest: _Nest
    width: int
    units: int
    threads: int
    group: tirx.Var = field(default_factory=lambda: tirx.Var("group", "int32"))
    unit: tirx.Var = field(default_factory=lambda: tirx.Var("unit", "int32"))
    thread: tirx.Var = field(default_factory=lambda: tirx.Var("thread", "int32"))

    @property
    def vectors(self) -> int:
        """Return how many vectors a sequence's units are."""
        return self.nest.extents[2] // self.width

    @property
    def blocks(self) -> int:
        return -(-self.vectors // self.units)

    @property
    def groups(self) -> int:
        return self.blocks * self.nest.extents[0] * self.nest.extents[1]

    @property
    def vector(self) -> tirx.Expr:
        """Place of a work-item's units among those of the sequence, in vectors."""
        return self.group % self.blocks * self.units + self.unit

    @property
    def inside(self) -> tirx.Expr | None:
        return self.vector < self.vectors if self.vectors % self.units else None

    def place(self, vector: tirx.Expr, lane: tirx.Expr | int) -> dict[tirx.Var, tirx.Expr]:
        """What stands for the loops of the nest."""
        d, b, j = self.nest.axes
        sequence, batch = self.group // self.blocks, self.nest.extents[1]
        return {d: sequence // batch, b: sequence % batch, j: vector * self.width + lane}


def _items(nest: _Nest, limits: Limits, summed: int) -> _Items:
    """Vectors where the units allow, and `threads` for a sum that keep the device busy.

    summed: numbers that a unit adds up; 0: none.
    """
    directions, batch, hidden = nest.extents
    most = min(_GROUP, limits.max_work_group_size)
    if not summed:
        return _Items(nest=nest, width=1, units=min(most, hidden), threads=1)
    width = LANES if hidden % LANES == 0 else 1
    vectors, threads = hidden // width, 1
    # Without warps (CPUs) work-items wait for each other one by one.
    while (
        limits.warp_size > 1
        and threads < _MOST_THREADS
        and vectors * batch * directions * threads < limits.busy_work_items
        and summed // threads > _LEAST_SUMMED
    ):
        threads *= 2
    threads = min(threads, most)
    return _Items(nest=nest, width=width, units=max(1, min(most // threads, vectors)), threads=threads)


def _kernel(stage: tirx.For, limits: Limits) -> tirx.Stmt:
    """A nest of units as a kernel."""
    nest = _nest(stage)
    product = next((step for step in nest.steps if isinstance(step, tirx.For) and SUMMED in step.annotations), None)
    items = _items(nest, limits, 0 if product is None else int(product.extent))
    own = {buffer: _register(str(buffer.name), int(buffer.shape[0]) * items.width) for buffer in _registers(nest)}
    steps, body, buffers = nest.steps, list[tirx.Stmt](), [*own.values()]
    if product is not None:
        steps = steps[steps.index(product) + 1 :]
        body, more = _sums(items, product, own)
        buffers += more
    finish = []
    for lane in range(items.width):
        finish += [substitute(_in_lane(step, own, items.width, lane), items.place(items.vector, lane)) for step in steps]
    stored = guarded(items.inside, _sequence(finish))
    body.append(guarded(items.thread < 1 if items.threads > 1 else None, stored))
    return _launched(items, body, buffers)


def _registers(nest: _Nest) -> list[tirx.Buffer]:
    """Numbers of one unit that are kept while it is computed."""
    stores = [store for step in nest.steps for store in nodes_in(step, tirx.BufferStore)]
    return list(dict.fromkeys(store.buffer for store in stores if str(store.buffer.scope()) == "local"))


def _register(name: str, extent: int) -> tirx.Buffer:
    return tirx.decl_buffer([extent], "float32", name, scope="local")


def _in_lane(step: tirx.Stmt, own: dict[tirx.Buffer, tirx.Buffer], width: int, lane: int) -> tirx.Stmt:
    """A statement for one of a work-item's units, whose numbers are every `width`-th."""

    def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(own[access.source], [access.indices[0] * width + lane]) if access.source in own else access

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        return tirx.BufferStore(own[access.buffer], access.value, [access.indices[0] * width + lane]) if access.buffer in own else access

    return structural_map(step, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])


def _sums(items: _Items, product: tirx.For, own: dict[tirx.Buffer, tirx.Buffer]) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
    """Statements that leave the sums of a work-item's units in registers, and what they need besides."""
    gates, store = int(product.body.extent), product.body.body
    sums, (read, weight) = own[store.buffer], (store.value.b.a, store.value.b.b)
    factor, width, lane, i = _register("factor", 1), items.width, tirx.Var("lane", "int32"), tirx.Var("i", "int32")
    k, summed = i * items.threads + items.thread if items.threads > 1 else i, int(product.extent)
    vector = tirx.min(items.vector, tirx.const(items.vectors - 1, "int32")) if items.inside is not None else items.vector

    def of_gates(value: Callable[[int], tirx.Expr]) -> list[tirx.Stmt]:
        return [loop(lane, width, tirx.BufferStore(sums, value(g), [g * width + lane]), "vectorized") for g in range(gates)]

    def added(g: int) -> tirx.Expr:
        number = substitute(weight, {product.loop_var: k, product.body.loop_var: tirx.const(g, "int32"), **items.place(vector, lane)})
        return tirx.BufferLoad(sums, [g * width + lane]) + tirx.BufferLoad(factor, [0]) * number

    loaded = tirx.BufferStore(factor, substitute(read, {product.loop_var: k, **items.place(vector, 0)}), [0])
    step = guarded(k < summed if summed % items.threads else None, _sequence([loaded, *of_gates(added)]))
    steps = [*of_gates(lambda g: tirx.const(0.0, "float32")), loop(i, -(-summed // items.threads), step)]
    if items.threads == 1:
        return steps, [factor]
    count, other = gates * width, tirx.Var("other", "int32")
    partial = tirx.decl_buffer([items.threads * items.units * count], "float32", "partial_sums", scope="shared")

    def place(thread: tirx.Expr, g: int) -> tirx.Expr:
        return (thread * items.units + items.unit) * count + g * width + lane

    for g in range(gates):
        steps.append(
            loop(
                lane,
                width,
                tirx.BufferStore(partial, tirx.BufferLoad(sums, [g * width + lane]), [place(items.thread, g)]),
                "vectorized",
            )
        )
    total = of_gates(lambda g: tirx.BufferLoad(sums, [g * width + lane]) + tirx.BufferLoad(partial, [place(other + 1, g)]))
    steps.append(guarded(items.thread < 1, loop(other, items.threads - 1, _sequence(total))))
    return steps, [factor, partial]


def _launched(items: _Items, body: list[tirx.Stmt], buffers: list[tirx.Buffer]) -> tirx.Stmt:
    """A kernel's statements below its launch."""
    stmt: tirx.Stmt = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "units", _sequence(body), alloc_buffers=buffers))
    for tag, var, extent in (
        ("threadIdx.y", items.thread, items.threads),
        ("threadIdx.x", items.unit, items.units),
        ("blockIdx.x", items.group, items.groups),
    ):
        if tag == "threadIdx.y" and extent == 1:
            continue
        kind, (low, high) = tirx.ForKind.THREAD_BINDING, (tirx.const(value, "int32") for value in (0, extent))
        stmt = tirx.For(var, low, high, kind, stmt, thread_binding=tirx.IterVar(None, tirx.Var(tag, "int32"), 1, tag))
    return stmt


def _sequence(steps: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return steps[0] if len(steps) == 1 else tirx.SeqStmt(list(steps))
