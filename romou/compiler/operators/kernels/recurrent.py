"""Kernels of RNN, GRU and LSTM: one for all steps, or one for each nest of the time loop, which the host launches.

    for t:                                                                ->    for t (host): kernel(t)
        for d, b, j:
            sums[g] = sum over k of state[k] * weight[k, g, j]
            step(sums)

Where a work group takes no longer for a step of its sequences than a launch, it runs all steps. It has their states in
local memory. Where work groups may wait for each other, several do (`recurrent_groups.py`).

unit          a hidden unit of a direction and a sequence
work-item     `width` neighbouring units in `rows` sequences, which share one vector load of each weight
work group    `units` times `threads` work-items. `threads` of them share a sum, and the first adds the shares up
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.compiler.operators.kernels.recurrent_groups import GroupsKernel, States, groups_of
from romou.compiler.operators.kernels.recurrent_nests import Nest, below_time, nest_of, product_of
from romou.compiler.scheduling.blocks import nests_of, substitute
from romou.compiler.scheduling.rewrites import with_root
from romou.compiler.scheduling.statements import barrier, guarded, loop, stage_of
from romou.compiler.tir.expressions import bounds_of, count_of, is_multiple, largest
from romou.compiler.tir.primitives import LANES, WAITING_GROUPS
from romou.compiler.tir.traversal import nodes_in, sequence_of
from tvm_patches.onnx_converters.recurrent_loop import TIME_LOOP

if TYPE_CHECKING:
    from romou.base.limits import Limits

# Work-items of a group for a nest without sums.
_GROUP = 64
_FLOAT_BYTES = 4


def is_time_loop(func: tirx.PrimFunc) -> bool:
    """Return whether a function is the time loop of a recurrent operator."""
    return bool(func.attrs and TIME_LOOP in func.attrs)


def schedule_time_loop(func: tirx.PrimFunc, limits: Limits) -> tirx.PrimFunc:
    """Return the function with one kernel, or one for each nest of units."""
    stages, bounds = list[tirx.Stmt](), bounds_of(func)
    kept = [buffer for buffer in func.body.block.alloc_buffers if str(buffer.scope()) == "global"]
    if (found := _of_waiting_groups(func, limits, kept)) is not None:
        stages, kept = found
        func = func.with_attr(WAITING_GROUPS, True)
    elif (kernel := _kernel_of_all_steps(func, limits, bounds)) is not None:
        stages = [kernel]
    else:
        for stage in nests_of(func):
            inner = below_time(stage)
            kernels = [_kernel(nest, limits, bounds) for nest in inner or [stage]]
            body = sequence_of(kernels)
            if inner is not None:
                body = tirx.For(stage.loop_var, stage.min, stage.extent, tirx.ForKind.SERIAL, body)
            stages.append(body)
    return with_root(func, sequence_of(stages), kept).with_attr("tirx.is_scheduled", True)


def _of_waiting_groups(
    func: tirx.PrimFunc, limits: Limits, kept: Sequence[tirx.Buffer]
) -> tuple[list[tirx.Stmt], list[tirx.Buffer]] | None:
    """Return a kernel of the first states, one of all steps, and their workspaces. None if groups cannot wait.

    kept: what the steps keep.
    """
    first, time = nests_of(func)
    nest, *others = map(nest_of, below_time(time) or [])
    product = product_of(nest)
    if others or product is None or (shape := groups_of(nest, product, limits)) is None:
        return None
    states = States(product.body.body.value.b.a.source)
    own = [buffer for buffer in kept if buffer != states.state]
    kernel = GroupsKernel(nest, product, states, *shape)
    stages = [states.with_first(_kernel(first, limits, {})), kernel.run(time, own, func.params)]
    return stages, [*own, states.memory]


def _kernel_of_all_steps(func: tirx.PrimFunc, limits: Limits, bounds: Mapping[tirx.Var, int]) -> tirx.Stmt | None:
    """Return all steps as one kernel, or None if several work groups have to share a sequence."""
    first, stage = nests_of(func)
    nests = [nest_of(first), *(nest_of(nest) for nest in below_time(stage) or [])]
    products = [product for nest in nests if (product := product_of(nest)) is not None]
    items = _items_of_all_units(nests[1], limits, products, bounds)
    if items is None:
        return None
    # What all work-items read. Their own units they read from the workspace, since a barrier may be in no condition.
    shared = {}
    for state in (product.body.body.value.b.a.source for product in products):
        length = (2 if len(state.shape) == 4 else 1) * items.rows * int(state.shape[-1])
        shared[state] = tirx.decl_buffer([length], "float32", f"{state.name}_of_group", scope="shared")

    def place(indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        *parity, _, b, j = indices
        return [((parity[0] if parity else 0) * items.rows + b - items.row(0)) * items.nest.extents[2] + j]

    def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(shared[access.source], place(access.indices)) if access.source in shared else access

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        if access.buffer not in shared:
            return access
        return tirx.SeqStmt([access, tirx.BufferStore(shared[access.buffer], access.value, place(access.indices))])

    stages, buffers = list[tirx.Stmt](), list(shared.values())
    for nest in nests:
        steps = [structural_map(s, [(tvm.ir.TensorLoad, load)]) if s in products else s for s in nest.steps]
        body, own = _body(dataclasses.replace(items, nest=dataclasses.replace(nest, steps=steps)))
        stages.append(structural_map(sequence_of([*body, barrier()]), [(tirx.BufferStore, store)]))
        buffers += own
    every = tirx.For(stage.loop_var, stage.min, stage.extent, tirx.ForKind.SERIAL, sequence_of(stages[1:]))
    return _launched(items, [stages[0], every], buffers)


def _items_of_all_units(
    nest: Nest, limits: Limits, products: Sequence[tirx.For], bounds: Mapping[tirx.Var, int]
) -> _Items | None:
    """Return the work-items of a group that has all units of its sequences, or None if a group cannot have them."""
    preset, hidden = limits.preset.recurrent, int(nest.extents[2])
    gates = sum(int(product.body.extent) for product in products)
    items = _items(nest, limits, products[0], bounds)
    if items.rows * gates * hidden * hidden > preset.max_products:
        return None
    vectors = hidden // items.width

    def fits(rows: int, threads: int) -> bool:
        partial = threads * vectors * gates * rows * items.width if threads > 1 else 0
        states = (2 * len(products)) * rows * hidden
        return (
            vectors * threads <= limits.max_work_group_size
            and _FLOAT_BYTES * (states + partial) <= limits.local_memory_bytes
        )

    rows = next((rows for rows in range(items.rows, 0, -1) if fits(rows, 1)), None)
    if rows is None:
        return None
    threads = 1
    while preset.is_sum_shared and fits(rows, 2 * threads) and hidden // threads > preset.min_summed:
        threads *= 2
    return dataclasses.replace(items, rows=rows, units=vectors, threads=threads)


@dataclass(kw_only=True)
class _Items:
    """The work-items of a kernel.

    width, rows, units, threads: see above.
    blocks: work groups that share a sequence.
    row_blocks: steps of `rows` in the batch.
    """

    nest: Nest
    width: int = 1
    rows: int = 1
    units: int
    threads: int = 1
    group: tirx.Var = field(default_factory=lambda: tirx.Var("group", "int32"))
    unit: tirx.Var = field(default_factory=lambda: tirx.Var("unit", "int32"))
    thread: tirx.Var = field(default_factory=lambda: tirx.Var("thread", "int32"))

    @property
    def vectors(self) -> int:
        """Vectors of a sequence's units."""
        return int(self.nest.extents[2]) // self.width

    @property
    def blocks(self) -> int:
        return -(-self.vectors // self.units)

    @property
    def row_blocks(self) -> Any:
        return count_of(self.nest.extents[1], self.rows)

    @property
    def groups(self) -> Any:
        return self.blocks * self.row_blocks * self.nest.extents[0]

    @property
    def cells(self) -> int:
        """Units of a work-item."""
        return self.rows * self.width

    @property
    def vector(self) -> tirx.Expr:
        """Index of the work-item's vector in the sequence."""
        return self.group % self.blocks * self.units + self.unit

    def row(self, at: int) -> tirx.Expr:
        """Return the index of one of the work-item's sequences."""
        return self.group // self.blocks % self.row_blocks * self.rows + at

    def inside(self, row: int) -> tirx.Expr | None:
        """Return the condition that the work-item has units in a sequence, or None if it always has."""
        conditions = [self.vector < self.vectors] if self.vectors % self.units else []
        batch = self.nest.extents[1]
        conditions += [self.row(row) < batch] if row and not is_multiple(batch, self.rows) else []
        return tirx.all(*conditions) if conditions else None

    def values(self, row: tirx.Expr, vector: tirx.Expr, lane: tirx.Expr | int) -> dict[tirx.Var, tirx.Expr]:
        """Return the values of the nest's loop variables."""
        d, b, j = self.nest.axes
        return {d: self.group // (self.blocks * self.row_blocks), b: row, j: vector * self.width + lane}

    def clamped_values(self, row: int, lane: tirx.Expr | int) -> dict[tirx.Var, tirx.Expr]:
        """Return `values`, clamped to the last units for work-items beyond them."""
        if self.inside(row) is None:
            return self.values(self.row(row), self.vector, lane)
        last_row, last_vector = self.nest.extents[1] - 1, tirx.const(self.vectors - 1, "int32")
        return self.values(tirx.min(self.row(row), last_row), tirx.min(self.vector, last_vector), lane)


def _items(nest: Nest, limits: Limits, product: tirx.For | None, bounds: Mapping[tirx.Var, int]) -> _Items:
    """Choose vectors if the units allow, rows that share the weights, and threads of a sum that fill the device."""
    directions, batch, hidden = (largest(extent, bounds) for extent in nest.extents)
    preset, most = limits.preset.recurrent, min(_GROUP, limits.max_work_group_size)
    if product is None:
        return _Items(nest=nest, units=min(most, hidden))
    gates, summed = int(product.body.extent), int(product.extent)
    width, rows = LANES if hidden % LANES == 0 else 1, min(preset.max_rows, batch)
    while LANES <= width < limits.vector_lanes and 2 * width * rows <= preset.cells and hidden % (2 * width) == 0:
        width *= 2
    # All partial sums of a group are in local memory.
    room = limits.local_memory_bytes // (_FLOAT_BYTES * most * gates * width)
    # Sums may fill half of the registers.
    registers = (limits.registers or preset.registers) // 2 // (gates * width)
    rows = max(1, min(rows, room, registers))
    vectors, threads = hidden // width, 1
    while (
        preset.is_sum_shared
        and threads < min(preset.max_sum_threads, most)
        and vectors * -(-batch // rows) * directions * threads < limits.busy_work_items
        and summed // threads > preset.min_summed
    ):
        threads *= 2
    units = (most if preset.is_sum_shared else preset.group) // threads
    return _Items(nest=nest, width=width, rows=rows, units=max(1, min(units, vectors)), threads=threads)


def _kernel(stage: tirx.For, limits: Limits, bounds: Mapping[tirx.Var, int]) -> tirx.Stmt:
    """Return a nest of units as a kernel."""
    nest = nest_of(stage)
    items = _items(nest, limits, product_of(nest), bounds)
    return _launched(items, *_body(items))


def _body(items: _Items) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
    """Return the statements of a nest's kernel, and the buffers they need."""
    nest, product = items.nest, product_of(items.nest)
    unit_registers = {
        buffer: _register(str(buffer.name), int(buffer.shape[0]) * items.cells) for buffer in _registers(nest)
    }
    steps, body, buffers = nest.steps, list[tirx.Stmt](), [*unit_registers.values()]
    if product is not None:
        steps = steps[steps.index(product) + 1 :]
        body, sum_buffers = _sums(items, product, unit_registers)
        buffers += sum_buffers
    finish = []
    for row in range(items.rows):
        stores = []
        for lane in range(items.width):
            values = items.values(items.row(row), items.vector, lane)
            cell = row * items.width + lane
            stores += [substitute(_in_cell(step, unit_registers, items.cells, cell), values) for step in steps]
        finish.append(guarded(items.inside(row), sequence_of(stores)))
    body.append(guarded(items.thread < 1 if items.threads > 1 else None, sequence_of(finish)))
    return body, buffers


def _registers(nest: Nest) -> list[tirx.Buffer]:
    """Return the register buffers of one unit."""
    stores = [store for step in nest.steps for store in nodes_in(step, tirx.BufferStore)]
    return list(dict.fromkeys(store.buffer for store in stores if str(store.buffer.scope()) == "local"))


def _register(name: str, extent: int) -> tirx.Buffer:
    return tirx.decl_buffer([extent], "float32", name, scope="local")


def _in_cell(step: tirx.Stmt, unit_registers: dict[tirx.Buffer, tirx.Buffer], cells: int, cell: int) -> tirx.Stmt:
    """Return a statement for one of a work-item's units, with registers `cells` apart."""

    def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
        registers = unit_registers.get(access.source)
        return access if registers is None else tirx.BufferLoad(registers, [access.indices[0] * cells + cell])

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        registers = unit_registers.get(access.buffer)
        if registers is None:
            return access
        return tirx.BufferStore(registers, access.value, [access.indices[0] * cells + cell])

    return structural_map(step, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])


def _sums(
    items: _Items, product: tirx.For, unit_registers: dict[tirx.Buffer, tirx.Buffer]
) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
    """Return statements that sum up a work-item's units in registers, and the buffers they need."""
    gates, summed, store = int(product.body.extent), int(product.extent), product.body.body
    sums, (read, weight) = unit_registers[store.buffer], (store.value.b.a, store.value.b.b)
    factors, numbers = _register("factors", items.rows), _register("numbers", items.width)
    lane, i = tirx.Var("lane", "int32"), tirx.Var("i", "int32")
    k = i * items.threads + items.thread if items.threads > 1 else i

    def in_lanes(buffer: tirx.Buffer, value: tirx.Expr, at: tirx.Expr | int = 0) -> tirx.Stmt:
        return loop(lane, items.width, tirx.BufferStore(buffer, value, [at + lane]), "vectorized")

    cells = itertools.product(range(gates), range(items.rows))
    vectors = [(gate, row, (gate * items.rows + row) * items.width) for gate, row in cells]
    added: list[tirx.Stmt] = []
    for row in range(items.rows):
        values = {product.loop_var: k, **items.clamped_values(row, 0)}
        added.append(tirx.BufferStore(factors, substitute(read, values), [row]))
    for gate, row, at in vectors:
        if row == 0:
            values = {product.loop_var: k, product.body.loop_var: tirx.const(gate, "int32")}
            added.append(in_lanes(numbers, substitute(weight, {**values, **items.clamped_values(0, lane)})))
        more = tirx.BufferLoad(factors, [row]) * tirx.BufferLoad(numbers, [lane])
        added.append(in_lanes(sums, tirx.BufferLoad(sums, [at + lane]) + more, at))
    step = guarded(k < summed if summed % items.threads else None, sequence_of(added))
    steps = [in_lanes(sums, tirx.const(0.0, "float32"), at) for _, _, at in vectors]
    steps.append(loop(i, -(-summed // items.threads), step))
    if items.threads == 1:
        return steps, [factors, numbers]
    count, part = gates * items.cells, tirx.Var("other", "int32")
    partial = tirx.decl_buffer([items.threads * items.units * count], "float32", "partial_sums", scope="shared")

    def share(thread: tirx.Expr, at: int) -> tirx.Expr:
        return (thread * items.units + items.unit) * count + at

    steps += [in_lanes(partial, tirx.BufferLoad(sums, [at + lane]), share(items.thread, at)) for _, _, at in vectors]
    total = []
    for _, _, at in vectors:
        part_sum = tirx.BufferLoad(partial, [share(part + 1, at) + lane])
        total.append(in_lanes(sums, tirx.BufferLoad(sums, [at + lane]) + part_sum, at))
    steps.append(guarded(items.thread < 1, loop(part, items.threads - 1, sequence_of(total))))
    return steps, [factors, numbers, partial]


def _launched(items: _Items, body: list[tirx.Stmt], buffers: list[tirx.Buffer]) -> tirx.Stmt:
    """Return a kernel's statements inside its thread bindings."""
    threads = {"blockIdx.x": (items.group, items.groups), "threadIdx.x": (items.unit, items.units)}
    if items.threads > 1:
        threads["threadIdx.y"] = (items.thread, items.threads)
    return stage_of(threads, sequence_of(body), buffers)
