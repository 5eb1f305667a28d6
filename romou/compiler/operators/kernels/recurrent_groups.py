"""All steps of an RNN, GRU or LSTM in one launch of work groups that wait for each other's states (CUDA).

    weights of the work-item -> registers
    for t:
        wait for the states of number t of all units -> local memory
        sums[g] = sum over the unit's work-items of state[k] * weights[k, g]
        step(sums), publish the unit's state with number t + 1

A unit is a sub-group's, whose work-items share its sums. A state and its number are one word of 64 bits, so a state
that has its number is the right one, and no fence is needed.

Source: Diamos et al., Persistent RNNs: Stashing Recurrent Weights On-Chip, 2016, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_equal, structural_map

from romou.compiler.operators.kernels.recurrent_nests import Nest
from romou.compiler.scheduling.kernel_builder import Array, KernelBuilder
from romou.compiler.tir.traversal import nodes_in, substitute
from romou.devices.backends.dialect import call_on_device, sub_group_shuffle_xor

if TYPE_CHECKING:
    from romou.base.limits import Limits

# The number of a state that no step waits for.
_NEVER = -1


class States:
    """The numbered states of all units, as all groups see them.

    state: the buffer whose place they take: (parity of the step, directions, sequences, units).
    memory: pairs of a state and the bits of its number.
    """

    def __init__(self, state: tirx.Buffer) -> None:
        self.state, self._shape = state, [int(extent) for extent in state.shape]
        self.memory = tirx.decl_buffer([2 * math.prod(self._shape)], "float32", "states")

    def _place(self, indices: Sequence[Any]) -> tirx.Expr:
        flat: Any = 0
        for at, extent in zip(indices, self._shape, strict=True):
            flat = flat * extent + at
        return flat

    def published(self, indices: Sequence[Any], value: tirx.Expr, number: Any) -> tirx.Stmt:
        """Return the statement that lets all groups see a state."""
        return call_on_device("publish_state", self._place(indices), self.memory.data, value, number)

    def awaited(self, indices: Sequence[Any], number: tirx.Expr) -> tirx.Expr:
        """Return the state that has a number, as soon as it is published."""
        return tirx.call_extern("float32", "wait_for_state", self._place(indices), self.memory.data, number)

    def with_first(self, kernel: tirx.Stmt) -> tirx.Stmt:
        """Return the kernel that stores the states before the first step as one that publishes them."""

        def publish(store: tirx.BufferStore) -> tirx.Stmt:
            if store.buffer != self.state:
                return store
            after = [1, *store.indices[1:]]
            never = self.published(after, tirx.const(0.0, "float32"), _NEVER)
            return tirx.SeqStmt([self.published(store.indices, store.value, 0), never])

        return structural_map(kernel, (tirx.BufferStore, publish))


def groups_of(nest: Nest, product: tirx.For, limits: Limits) -> tuple[int, int, int] | None:
    """Return a group's units and sequences and the work-items of a unit, or None if groups cannot wait for each other.

    All groups have to run at once, one on a core.
    """
    preset, sub_groups = limits.preset.recurrent, limits.sub_groups
    directions, batch, hidden = nest.extents
    if not limits.has_waiting_groups or sub_groups is None or not isinstance(batch, int):
        return None
    lanes, gates = sub_groups.size, int(product.body.extent)
    units = preset.waiting_group // lanes
    weights = -(-hidden // lanes) * gates
    for rows in range(1, min(batch, preset.max_rows) + 1):
        groups = directions * -(-batch // rows) * -(-hidden // units)
        if weights <= preset.max_weights and groups <= limits.cores:
            return units, rows, lanes
    return None


class GroupsKernel(KernelBuilder):
    """The kernel of all steps."""

    def __init__(self, nest: Nest, product: tirx.For, states: States, units: int, rows: int, lanes: int) -> None:
        super().__init__()
        self.nest, self.product, self.states = nest, product, states
        self.units, self.rows, self.size = units, rows, lanes
        directions, self.batch, self.hidden = nest.extents
        blocks, row_blocks = -(-self.hidden // units), -(-self.batch // rows)
        group = self.axis("blockIdx.x", "group", directions * row_blocks * blocks)
        self.own, self.lane = self.axis("threadIdx.y", "unit", units), self.axis("threadIdx.x", "lane", lanes)
        self.direction, self.first = group // (row_blocks * blocks), group // blocks % row_blocks * rows
        self.unit = group % blocks * units + self.own
        self.gates = int(product.body.extent)

    def run(self, time: tirx.For, kept: Sequence[tirx.Buffer], parameters: Sequence[tirx.Buffer]) -> tirx.Stmt:
        """Return the kernel as a stage of its function.

        kept: what only a unit itself reads between steps.
        parameters: of the function. Steps read all but the last one, the output.
        """
        weights = self._weights()
        values = {buffer: self.array(f"own_{buffer.name}", self.rows) for buffer in kept}
        for buffer, own in values.items():
            for row in range(self.rows):
                own[row] = self.read(buffer, *self._place(row))
        staged = self.array("staged_states", self.rows, self.hidden, scope="shared")
        sums = self.array("sums", self.gates, self.rows)
        with self.inside(lambda body: tirx.For(time.loop_var, time.min, time.extent, tirx.ForKind.SERIAL, body)):
            # What no step writes is read while the states are on their way.
            early = self._early(parameters)
            self._stage(staged, time.loop_var)
            self._sum(weights, staged, sums)
            for row in range(self.rows):
                self._finish(row, staged, sums, values, early, time.loop_var)
        return self.as_stage()

    def _row(self, row: int) -> tirx.Expr:
        at = self.first + row
        return tirx.min(at, self.batch - 1) if row and self.batch % self.rows else at

    def _place(self, row: int) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        """Return the indices of the unit in one of its sequences, clamped to the last ones."""
        unit = tirx.min(self.unit, self.hidden - 1) if self.hidden % self.units else self.unit
        return self.direction, self._row(row), unit

    def _at(self, expr: tirx.Expr, row: int, more: Mapping[tirx.Var, tirx.Expr] | None = None) -> tirx.Expr:
        return substitute(expr, {**dict(zip(self.nest.axes, self._place(row), strict=True)), **(more or {})})

    def _summed(self, part: int) -> tuple[tirx.Expr, tirx.Expr | None]:
        """Return the state that the work-item multiplies, clamped to the last one, and the condition that it exists."""
        k = self.lane + part * self.size
        if (part + 1) * self.size <= self.hidden:
            return k, None
        return tirx.min(k, self.hidden - 1), k < self.hidden

    def _weights(self) -> Array:
        """Load the work-item's weights."""
        weight, parts = self.product.body.body.value.b.b, -(-self.hidden // self.size)
        weights = self.array("weights", parts, self.gates)
        for part in range(parts):
            k, is_inside = self._summed(part)
            for gate in range(self.gates):
                places = {self.product.loop_var: k, self.product.body.loop_var: self.constant(gate)}
                value = self._at(weight, 0, places)
                weights[part, gate] = (
                    value if is_inside is None else tirx.Select(is_inside, value, tirx.const(0.0, "float32"))
                )
        return weights

    def _early(self, parameters: Sequence[tirx.Buffer]) -> list[tuple[tvm.ir.TensorLoad, Array]]:
        """Load what a step reads of the parameters."""
        found: list[tuple[tvm.ir.TensorLoad, Array]] = []
        for step in self._steps:
            for load in nodes_in(step, tvm.ir.TensorLoad):
                source = load.source
                is_new = not any(structural_equal(load, known) for known, _ in found)
                if source in parameters and is_new:
                    dtype = "float32" if str(source.dtype) == "float16" else str(source.dtype)
                    register = self.array(f"early_{source.name}", self.rows, dtype=dtype)
                    for row in range(self.rows):
                        register[row] = self._at(load.astype(dtype), row)
                    found.append((load, register))
        return found

    def _stage(self, staged: Array, t: tirx.Var) -> None:
        """Wait for the states of all units of the group's sequences."""
        flat, item = staged.flat(), self.own * self.size + self.lane
        with self.spread(self.rows * self.hidden, item, self.units * self.size, kind="unrolled") as at:
            row = tirx.min(self.first + at // self.hidden, self.batch - 1)
            flat[at] = self.states.awaited([t % 2, self.direction, row, at % self.hidden], t)

    def _sum(self, weights: Array, staged: Array, sums: Array) -> None:
        for index in self.lanes_of(sums, "unrolled"):
            sums[index] = 0.0
        for part in range(weights.shape[0]):
            k, _ = self._summed(part)
            for row in range(self.rows):
                for gate in range(self.gates):
                    sums[gate, row] += staged[row, k] * weights[part, gate]
        distances = [1 << power for power in reversed(range(self.size.bit_length() - 1))]
        places = range(self.gates * self.rows)
        self.exchange(
            sums.flat(), places, distances, lambda a, b: a + b, lambda x, d: sub_group_shuffle_xor(x, d, self.size)
        )

    @property
    def _steps(self) -> list[tirx.BufferStore]:
        """Return the statements after a unit's products."""
        return self.nest.steps[self.nest.steps.index(self.product) + 1 :]

    def _finish(
        self,
        row: int,
        staged: Array,
        sums: Array,
        kept: Mapping[tirx.Buffer, Array],
        early: Sequence[tuple[tvm.ir.TensorLoad, Array]],
        t: tirx.Var,
    ) -> None:
        """Do the step of the unit in one of its sequences. All of its work-items do, and the first one stores."""
        product_sums, registers = self.product.body.body.buffer, dict[tirx.Buffer, Array]()

        def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
            for known, register in early:
                if structural_equal(access, known):
                    return register[row]
            if access.source == product_sums:
                return sums[access.indices[0], row]
            if access.source == self.states.state:
                return staged[row, self._place(row)[2]]
            if access.source in kept:
                return kept[access.source][row]
            return registers[access.source][access.indices[0]] if access.source in registers else access

        is_last = self.unit < self.hidden if self.hidden % self.units else None
        is_row = self.first + row < self.batch if row and self.batch % self.rows else None
        for step in self._steps:
            value, buffer = self._at(structural_map(step.value, (tvm.ir.TensorLoad, load)), row), step.buffer
            if str(buffer.scope()) == "local":
                if buffer not in registers:
                    registers[buffer] = self.array(str(buffer.name), int(buffer.shape[0]))
                registers[buffer][step.indices[0]] = value
            elif buffer in kept:
                kept[buffer][row] = value
            else:
                indices = [self._at(index, row) for index in step.indices]
                with self.when(self.lane < 1, is_last, is_row):
                    is_state = buffer == self.states.state
                    stored = tirx.BufferStore(buffer, value, indices)
                    self.emit(self.states.published(indices, value, t + 1) if is_state else stored)
