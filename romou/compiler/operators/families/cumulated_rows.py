"""Cumulated rows: running sums and products along an axis, in two passes over each row.

    share of a work-item -> its sum -> local memory -> the sum of all shares before it -> running sums of the share

A share is a contiguous part of a row. With about as many work-items as elements in a share, a row of n elements takes
about 3 * sqrt(n) steps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import tvm
from tvm import relax, tirx

from romou.base.limits import Limits
from romou.base.space import Config
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.row_functions.sort import power_above
from romou.compiler.operators.kernels.row_functions.template import RowFunctionTemplate
from romou.compiler.scheduling.kernel_builder import KernelBuilder
from romou.compiler.scheduling.statements import barrier
from romou.compiler.tir.expressions import count_of, is_multiple, is_one
from tvm_patches.onnx_converters.sorted_rows import CUMULATED, combined, cumulated, neutral, sum_type


class CumulatedRows(RowFunctionTemplate):
    """Rows of running sums or products."""

    family = "cumulated_rows"
    mark = CUMULATED

    @property
    def name(self) -> str:
        return f"{super().name}_{self.text.replace(' ', '_')}"

    @property
    def flops(self) -> int:
        return int(self.rows.count * self.rows.n)

    def most_work_items(self, limits: Limits) -> tuple[int, int]:
        return self.rows.n, limits.max_work_group_size

    def default_threads(self, limits: Limits) -> int:
        """Return about the square root of a row's elements. On CPUs, work-items run one after the other."""
        return 1 if limits.warp_size == 1 else power_above(math.isqrt(self.rows.n))

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        return self.launched([self._kernel(config["threads"], config["rows"])])

    def _kernel(self, threads: int, rows: int) -> tirx.Stmt:
        """Return the kernel. threads: work-items of a row. rows: rows of a group."""
        (x, y), kind, words, count = self.func.params, sum_type(self.dtype), self.text.split(), self.rows.count
        k, share = KernelBuilder(), count_of(self.rows.n, threads)
        group = k.axis("blockIdx.x", "group", count_of(count, rows))
        item = k.axis("threadIdx.x", "item", threads * rows)
        # Neighbouring work-items read neighbouring elements, where rows lie side by side.
        is_across = not is_one(math.prod(self.rows.after))
        inner, thread = (item % rows, item // rows) if is_across else (item // threads, item % threads)
        row = group * rows + inner
        so_far = k.array("so_far", 1, dtype=kind)
        so_far[0] = neutral(words, kind)

        def element(step: tirx.Expr) -> tuple[tirx.Expr, ...]:
            at = thread * share + step
            return self.rows.index(row, self.rows.n - 1 - at if "reverse" in words else at)

        @contextlib.contextmanager
        def steps() -> Iterator[tirx.Expr]:
            is_whole = is_multiple(self.rows.n, threads), is_multiple(count, rows)
            with k.loop("step", share) as step:
                checks = thread * share + step < self.rows.n, row < count
                with k.when(*(check for check, whole in zip(checks, is_whole, strict=True) if not whole)):
                    yield step

        def add(step: tirx.Expr) -> None:
            so_far[0] = combined(words, so_far[0], k.read(x, *element(step)).astype(kind))

        if threads > 1:
            shares = k.array("shares", rows, threads, dtype=kind, scope="shared")
            with steps() as step:
                add(step)
            shares[inner, thread] = so_far[0]
            k.emit(barrier())
            so_far[0] = neutral(words, kind)
            with k.loop("before", thread) as before:
                so_far[0] = combined(words, so_far[0], shares[inner, before])
        with steps() as step:
            if "exclusive" not in words:
                add(step)
            k.write(y, element(step), so_far[0].astype(str(y.dtype)))
            if "exclusive" in words:
                add(step)
        return k.as_stage()


class CumulatedRowsFamily(Family):
    """CumSum and CumProd: running sums and products of rows."""

    name = "cumulated_rows"

    def template_of(self, func: tirx.PrimFunc) -> CumulatedRows | None:
        return CumulatedRows(func) if CumulatedRows.takes(func) else None

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="sums of columns",
                inputs=[(3, 41, 5)],
                build=lambda x: cumulated(relax.BlockBuilder.current(), x, 1, ["sum"]),
                compute=lambda x: x.cumsum(1),
            ),
            Case(
                name="exclusive sums from the end",
                inputs=[(7, 130)],
                build=lambda x: cumulated(relax.BlockBuilder.current(), x, 1, ["sum", "exclusive", "reverse"]),
                compute=lambda x: x[:, ::-1].cumsum(1)[:, ::-1] - x,
            ),
        ]


FAMILY = CumulatedRowsFamily()
