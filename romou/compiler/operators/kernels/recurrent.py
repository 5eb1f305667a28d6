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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.compiler.operators.kernels.recurrent_groups import GroupsKernel, States, groups_of
from romou.compiler.operators.kernels.recurrent_nests import Nest, below_time, nest_of, product_of
from romou.compiler.scheduling.blocks import nests_of
from romou.compiler.scheduling.kernel_builder import Array, Index, KernelBuilder
from romou.compiler.scheduling.rewrites import with_root
from romou.compiler.scheduling.statements import barrier
from romou.compiler.tir.expressions import bounds_of, count_of, is_multiple, largest
from romou.compiler.tir.primitives import LANES, WAITING_GROUPS
from romou.compiler.tir.traversal import nodes_in, sequence_of, substitute
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
    first, time = nests_of(func)
    nests = [nest_of(first), *(nest_of(nest) for nest in below_time(time) or [])]
    products = [product for nest in nests if (product := product_of(nest)) is not None]
    tiles = _tiles_of_all_units(nests[1], limits, products, bounds)
    if tiles is None:
        return None
    kernel = _UnitsKernel(tiles)
    for state in (product.body.body.value.b.a.source for product in products):
        shape = (2 if len(state.shape) == 4 else 1, tiles.rows, int(state.shape[-1]))
        kernel.shared[state] = kernel.array(f"{state.name}_of_group", *shape, scope="shared")
    kernel.write_nest(nests[0])
    with kernel.inside(lambda body: tirx.For(time.loop_var, time.min, time.extent, tirx.ForKind.SERIAL, body)):
        for nest in nests[1:]:
            kernel.write_nest(nest)
    return kernel.as_stage()


def _tiles_of_all_units(
    nest: Nest, limits: Limits, products: Sequence[tirx.For], bounds: Mapping[tirx.Var, int]
) -> _Tiles | None:
    """Return the tiles of a group that has all units of its sequences, or None if a group cannot have them."""
    preset, hidden = limits.preset.recurrent, int(nest.extents[2])
    gates = sum(int(product.body.extent) for product in products)
    tiles = _tiles(nest, limits, products[0], bounds)
    if tiles.rows * gates * hidden * hidden > preset.max_products:
        return None

    def fits(rows: int, threads: int) -> bool:
        partial = threads * tiles.vectors * gates * rows * tiles.width if threads > 1 else 0
        states = (2 * len(products)) * rows * hidden
        return (
            tiles.vectors * threads <= limits.max_work_group_size
            and _FLOAT_BYTES * (states + partial) <= limits.local_memory_bytes
        )

    rows = next((rows for rows in range(tiles.rows, 0, -1) if fits(rows, 1)), None)
    if rows is None:
        return None
    threads = 1
    while preset.is_sum_shared and fits(rows, 2 * threads) and hidden // threads > preset.min_summed:
        threads *= 2
    return dataclasses.replace(tiles, rows=rows, units=tiles.vectors, threads=threads)


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    """The tiles of a kernel over (directions, sequences, units).

    width, rows, units, threads: see above.
    """

    extents: Sequence[Any]
    width: int = 1
    rows: int = 1
    units: int
    threads: int = 1

    @property
    def vectors(self) -> int:
        """Vectors of a sequence's units."""
        return int(self.extents[2]) // self.width

    @property
    def blocks(self) -> int:
        """Work groups that share a sequence."""
        return -(-self.vectors // self.units)

    @property
    def row_blocks(self) -> Any:
        """Steps of `rows` in the batch."""
        return count_of(self.extents[1], self.rows)


def _tiles(nest: Nest, limits: Limits, product: tirx.For | None, bounds: Mapping[tirx.Var, int]) -> _Tiles:
    """Choose vectors if the units allow, rows that share the weights, and threads of a sum that fill the device."""
    directions, batch, hidden = (largest(extent, bounds) for extent in nest.extents)
    preset, most = limits.preset.recurrent, min(_GROUP, limits.max_work_group_size)
    if product is None:
        return _Tiles(extents=nest.extents, units=min(most, hidden))
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
    return _Tiles(extents=nest.extents, width=width, rows=rows, units=max(1, min(units, vectors)), threads=threads)


def _kernel(stage: tirx.For, limits: Limits, bounds: Mapping[tirx.Var, int]) -> tirx.Stmt:
    """Return a nest of units as a kernel."""
    nest = nest_of(stage)
    kernel = _UnitsKernel(_tiles(nest, limits, product_of(nest), bounds))
    kernel.write_nest(nest)
    return kernel.as_stage()


class _UnitsKernel(KernelBuilder):
    """The kernel of one nest, or of several with barriers between them.

    shared: states that all work-items of a group read -> their copies in local memory, (parity, row, unit). Their own
        units they read from the workspace, since a barrier may be in no condition. Empty for one nest.
    """

    def __init__(self, tiles: _Tiles) -> None:
        super().__init__()
        self.tiles, self.shared = tiles, dict[tirx.Buffer, Array]()
        sequences = tiles.blocks * tiles.row_blocks
        group = self.axis("blockIdx.x", "group", sequences * tiles.extents[0])
        self.unit = self.axis("threadIdx.x", "unit", tiles.units)
        self.thread = self.axis("threadIdx.y", "thread", tiles.threads)
        self.direction, self.vector = group // sequences, group % tiles.blocks * tiles.units + self.unit
        self.first = group // tiles.blocks % tiles.row_blocks * tiles.rows

    def write_nest(self, nest: Nest) -> None:
        """Write the statements of a nest for the work-item's units."""
        product, tiles, steps = product_of(nest), self.tiles, nest.steps
        stores = [store for step in steps for store in nodes_in(step, tirx.BufferStore)]
        registers = {
            buffer: self.array(str(buffer.name), int(buffer.shape[0]), tiles.rows, tiles.width)
            for buffer in dict.fromkeys(store.buffer for store in stores if str(store.buffer.scope()) == "local")
        }
        with self.inside(self._with_copies):
            if product is not None:
                steps = steps[steps.index(product) + 1 :]
                self._sum(nest, product, registers[product.body.body.buffer])
            with self.when(self.thread < 1 if tiles.threads > 1 else None):
                for row in range(tiles.rows):
                    with self.when(*self._checks(nest, row)):
                        for lane, step in itertools.product(range(tiles.width), steps):
                            values = self._values(nest, self.first + row, self.vector, lane)
                            self.emit(substitute(_in_registers(step, registers, row, lane), values))
            if self.shared:
                self.emit(barrier())

    def _sum(self, nest: Nest, product: tirx.For, sums: Array) -> None:
        """Sum up the products of the work-item's units in registers."""

        def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
            copy = self.shared.get(access.source)
            return access if copy is None else copy[self._in_group(access.indices)]

        (gates, rows, width), threads, summed = sums.shape, self.tiles.threads, int(product.extent)
        state, weight = product.body.body.value.b.a, product.body.body.value.b.b
        state = structural_map(state, (tvm.ir.TensorLoad, load))
        factors, numbers = self.array("factors", rows), self.array("numbers", width)
        sums.fill(0.0)
        with self.loop("i", -(-summed // threads)) as i:
            k = i * threads + self.thread
            with self.when(k < summed if summed % threads else None):
                for row in range(rows):
                    factors[row] = substitute(state, {product.loop_var: k, **self._clamped(nest, row, 0)})
                for gate, row in itertools.product(range(gates), range(rows)):
                    places = {product.loop_var: k, product.body.loop_var: self.constant(gate)}
                    if row == 0:
                        with self.lanes(width) as lane:
                            numbers[lane] = substitute(weight, {**places, **self._clamped(nest, 0, lane)})
                    with self.lanes(width) as lane:
                        sums[gate, row, lane] += factors[row] * numbers[lane]
        if threads > 1:
            partial = self.array("partial_sums", threads, self.tiles.units, *sums.shape, scope="shared")
            for at in self.lanes_of(sums):
                partial[(self.thread, self.unit, *at)] = sums[at]
            with self.when(self.thread < 1), self.loop("other", threads - 1) as other:
                for at in self.lanes_of(sums):
                    sums[at] += partial[(other + 1, self.unit, *at)]

    def _with_copies(self, body: tirx.Stmt) -> tirx.Stmt:
        """Store states in their copies, too."""

        def store(access: tirx.BufferStore) -> tirx.Stmt:
            if (copy := self.shared.get(access.buffer)) is None:
                return access
            place, _ = copy.place(*self._in_group(access.indices))
            return tirx.SeqStmt([access, tirx.BufferStore(copy.buffer, access.value, [place])])

        return structural_map(body, (tirx.BufferStore, store)) if self.shared else body

    def _in_group(self, indices: Sequence[tirx.Expr]) -> tuple[Index, tirx.Expr, tirx.Expr]:
        """Return the place of a state in its copy."""
        *parity, _, b, j = indices
        return parity[0] if parity else 0, b - self.first, j

    def _checks(self, nest: Nest, row: int) -> list[tirx.Expr]:
        """Return the conditions that the work-item has units in a sequence."""
        batch, tiles = nest.extents[1], self.tiles
        checks = [self.vector < tiles.vectors] if tiles.vectors % tiles.units else []
        return [*checks, self.first + row < batch] if row and not is_multiple(batch, tiles.rows) else checks

    def _values(self, nest: Nest, row: tirx.Expr, vector: tirx.Expr, lane: Index) -> dict[tirx.Var, tirx.Expr]:
        """Return the values of the nest's loop variables."""
        return dict(zip(nest.axes, (self.direction, row, vector * self.tiles.width + lane), strict=True))

    def _clamped(self, nest: Nest, row: int, lane: Index) -> dict[tirx.Var, tirx.Expr]:
        """Return `_values`, clamped to the last units for work-items beyond them."""
        at, vector = self.first + row, self.vector
        if self._checks(nest, row):
            at, vector = tirx.min(at, nest.extents[1] - 1), tirx.min(vector, self.constant(self.tiles.vectors - 1))
        return self._values(nest, at, vector, lane)


def _in_registers(step: tirx.Stmt, registers: Mapping[tirx.Buffer, Array], row: int, lane: int) -> tirx.Stmt:
    """Return a statement for one of a work-item's units."""

    def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
        own = registers.get(access.source)
        return access if own is None else own[access.indices[0], row, lane]

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        if (own := registers.get(access.buffer)) is None:
            return access
        place, _ = own.place(access.indices[0], row, lane)
        return tirx.BufferStore(own.buffer, access.value, [place])

    return structural_map(step, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
