"""Sorted rows: the positions of the first k elements of each row in ascending or descending order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, tirx

from romou.base.limits import Limits
from romou.base.space import Config
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.row_functions.sort import RowSort, power_above
from romou.compiler.operators.kernels.row_functions.template import RowFunctionTemplate
from romou.compiler.tir.expressions import bytes_of
from tvm_patches.onnx_converters.sorted_rows import SORTED, key_type, sorted_positions

# Elements that a work group sorts at most, and elements of a row that a work-item of a CPU keeps in order at most.
_MOST, _MOST_INSERTED = 4096, 64


class SortedRows(RowFunctionTemplate):
    """Rows that one work group sorts, or several work groups run by run."""

    family = "sorted_rows"
    mark = SORTED

    @property
    def k(self) -> int:
        """Positions that are wanted of each row."""
        return int(self.func.params[1].shape[self.axis])

    @property
    def name(self) -> str:
        return f"{super().name}_{self.k}_{self.text}"

    @property
    def flops(self) -> int:
        """Comparisons of a sort."""
        return int(self.rows.count * self.rows.n) * max(1, math.ceil(math.log2(self.rows.n)))

    @staticmethod
    def _most_elements(dtype: str, limits: Limits) -> int:
        """Return the elements of a group: a power of two, whose keys and positions fit its local memory."""
        fitting = limits.local_memory_bytes // (2 * bytes_of((), key_type(dtype)))
        return min(_MOST, 1 << (fitting.bit_length() - 1))

    def work(self, limits: Limits) -> RowSort:
        """Return the sort, with runs that fit the device's local memory."""
        run = min(self._most_elements(self.dtype, limits), max(2, power_above(self.rows.n)))
        inserts = limits.is_cpu and self.k <= _MOST_INSERTED
        return RowSort(
            rows=self.rows, k=self.k, dtype=self.dtype, is_largest=self.text == "largest", run=run, inserts=inserts
        )

    def most_work_items(self, limits: Limits) -> tuple[int, int]:
        work = self.work(limits)
        return work.run // 2, 1 if work.runs > 1 else self._most_elements(self.dtype, limits) // work.run

    def default_threads(self, limits: Limits) -> int:
        # On a CPU, a work group's steps are loops over its work-items, and barriers end them.
        return 1 if limits.is_cpu else self.work(limits).run // 2

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        x, y = self.func.params
        return self.launched(*self.work(limits).kernels(x, y, config["threads"], config["rows"]))


class SortedRowsFamily(Family):
    """TopK: the first elements of rows in order, by sorts in local memory."""

    name = "sorted_rows"

    def template_of(self, func: tirx.PrimFunc) -> SortedRows | None:
        return SortedRows(func) if SortedRows.takes(func) else None

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="the largest of rows",
                inputs=[(5, 70)],
                build=lambda x: sorted_positions(relax.BlockBuilder.current(), x, 1, 9, is_largest=True),
                compute=lambda x: np.argsort(-x, 1, kind="stable")[:, :9],
            ),
            Case(
                name="columns in order",
                inputs=[(2, 33, 3)],
                build=lambda x: sorted_positions(relax.BlockBuilder.current(), x, 1, 33, is_largest=False),
                compute=lambda x: np.argsort(x, 1, kind="stable"),
            ),
        ]


FAMILY = SortedRowsFamily()
