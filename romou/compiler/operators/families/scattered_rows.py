"""Scattered rows: updates at indices of a row, which replace its elements or are added to them, one after the other.

y[i] = x[i];  for k in order: y[indices[k]] += updates[k]

owner         a work-item that computes every `owners`-th element of a row (the owner-computes rule). It copies them,
              then passes over all indices of the row and applies the updates of its own elements
work group    `work_group` owners, of any rows

Nothing is shared between work-items, so updates of one element need no atomics and keep their order. One owner is a
serial loop over a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.analysis.form import Form, loads_of_one
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.row_functions.template import MarkedTemplate
from romou.compiler.operators.kernels.streaming.template import WORK_GROUP
from romou.compiler.scheduling.kernel_builder import KernelBuilder
from romou.compiler.scheduling.statements import unravel
from romou.compiler.tir.expressions import bytes_of, count_of, is_multiple, is_one
from tvm_patches.onnx_converters.sorted_rows import SCATTERED, Rows, put_place, updated

OWNERS = Knob(
    name="owners",
    choices=tuple(1 << bits for bits in range(17)),
    default=1,
    help="work-items that share a scattered row: each passes over all updates and applies those of its elements",
)


class ScatteredRows(MarkedTemplate):
    """Rows with updates."""

    family = "scattered_rows"
    mark = SCATTERED
    knobs = (WORK_GROUP, OWNERS)

    def __init__(self, func: tirx.PrimFunc) -> None:
        super().__init__(func)
        self.updates = Rows(func.params[2].shape, self.axis)

    @property
    def name(self) -> str:
        return f"{super().name}_{self.updates.n}_{self.text}"

    @property
    def flops(self) -> int:
        return int(self.rows.count * self.updates.n)

    def space(self, limits: Limits) -> Space:
        choices: dict[str, Choices] = {
            WORK_GROUP.name: lambda group: group <= limits.max_work_group_size,
            OWNERS.name: lambda owners: owners < 2 * self.rows.n,
        }
        return Space.of(self.knobs, limits, choices)

    def default_config(self, limits: Limits) -> Config:
        """Return a config whose owners pass over about as many updates as they copy elements.

        On GPUs with idle cores, more of them wait for memory: for no longer than they pass over the updates.
        """
        n, updates, costs = self.rows.n, self.updates.n, limits.preset.estimate
        waits = (n + updates) * costs.buffer_latency // (updates * costs.load_issue)
        owners = max(n // updates, min(int(waits), limits.busy_work_items // self.rows.count))
        return self.space(limits).default(owners=owners)

    def form(self, limits: Limits) -> ScatterForm:
        return ScatterForm(self)

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        return self.launched([self._kernel(config[WORK_GROUP.name], config[OWNERS.name])])

    def _kernel(self, group_size: int, owners: int) -> tirx.Stmt:
        (x, indices, updates, y), rows, count = self.func.params, self.rows, self.rows.count * owners
        k = KernelBuilder()
        group = k.axis("blockIdx.x", "group", count_of(count, group_size))
        number = group * group_size + k.axis("threadIdx.x", "item", group_size)
        # In the order of memory: neighbours read neighbouring elements.
        grid = unravel(number, (*rows.before, owners, *rows.after))
        owner, place = grid[self.axis], k.array("place", 1, dtype="int32")

        def at(position: tirx.Expr) -> tuple[tirx.Expr, ...]:
            return (*grid[: self.axis], position, *grid[self.axis + 1 :])

        with k.when(None if is_multiple(count, group_size) else number < count):
            with k.loop("step", count_of(rows.n, owners)) as step:
                mine = at(step * owners + owner)
                with k.when(None if is_multiple(rows.n, owners) else mine[self.axis] < rows.n):
                    k.write(y, mine, k.read(x, *mine))
            with k.loop("number", self.updates.n) as number:
                read = [0 if is_one(n) else i for n, i in zip(indices.shape, at(number), strict=True)]
                put_place(place, k.read(indices, *read), rows.n)
                with k.when(None if owners == 1 else tirx.EQ(place[0] % owners, owner)):
                    to = at(place[0])
                    k.write(y, to, updated(self.text, k.read(y, *to), k.read(updates, *at(number))))
        return k.as_stage()


class ScatterForm(Form):
    """The formulas of a kernel. An iteration passes over one update, with its part of the copied elements."""

    def __init__(self, template: ScatteredRows) -> None:
        self._template = template

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template, size, owners = self._template, columns[WORK_GROUP.name], columns[OWNERS.name]
        (_, indices, _, output), rows, updates = template.func.params, template.rows, template.updates.n
        index_bytes, copied = bytes_of((), str(indices.dtype)), count_of(rows.n, owners) * template.element_bytes
        # Neighbours are owners of one row, or of rows beside each other.
        rows_of_group = np.minimum(size, rows.count) if math.prod(rows.after) > 1 else np.maximum(size // owners, 1)
        return KernelUsage(
            registers=1,
            needed_registers=1,
            buffer_bytes=size * copied / updates + rows_of_group * index_bytes,
            unshared_buffer_bytes=size * (copied / updates + index_bytes),
            access_width=1,
            output_bytes=bytes_of(output.shape, str(output.dtype)),
            iterations=updates,
            multiply_adds=1,
            work_group_size=size,
            work_groups=-(-rows.count * owners // size),
            images=dict.fromkeys(template.names, False),
            padding=count_of(rows.n, owners) * owners / rows.n - 1,
            element_bytes=template.element_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return a work-item's results, and its loads, which a warp reads from one line each."""
        return count_of(self._template.rows.n, columns[OWNERS.name]), loads_of_one(usage), 0, 1, 0


class ScatteredRowsFamily(Family):
    """ScatterElements and ScatterND: updates at indices along an axis."""

    name = "scattered_rows"

    def template_of(self, func: tirx.PrimFunc) -> ScatteredRows | None:
        return ScatteredRows(func) if ScatteredRows.takes(func) else None

    @property
    def cases(self) -> Sequence[Case]:
        places = np.random.default_rng(0).integers(-41, 41, (3, 20, 5))

        def sums(x: np.ndarray) -> np.ndarray:
            y = x.copy()
            np.add.at(y, (np.arange(3)[:, None, None], places, np.arange(5)), x[:, :20])
            return y

        def replaced(x: np.ndarray) -> np.ndarray:
            y = x.copy()
            y[:, [3, 0, 130]] = x[:, :3]
            return y

        return [
            Case(
                name="sums of columns",
                inputs=[(3, 41, 5)],
                build=lambda x: op.scatter_elements(
                    x, relax.const(places), op.strided_slice(x, [1], [0], [20]), axis=1, reduction="add"
                ),
                compute=sums,
            ),
            Case(
                name="three of a row",
                inputs=[(7, 131)],
                build=lambda x: op.scatter_elements(
                    x, relax.const(np.tile([3, 0, -1], (7, 1))), op.strided_slice(x, [1], [0], [3]), axis=1
                ),
                compute=replaced,
            ),
        ]


FAMILY = ScatteredRowsFamily()
