"""Reductions of whole rows: softmax, layer and group norm, means and sums over trailing or spatial axes, L2 norms.

m[i] = max over k of x[i, k]
s[i] = sum over k of exp(x[i, k] - m[i])
out[i, k] = exp(x[i, k] - m[i]) / s[i]

row           the elements of one reduction. Each of `threads` work-items takes every `threads`-th vector of it, and
              they combine their results in local memory (Romou paper, Section 5.3, for few outputs and long reductions)
work group    `rows` rows
vector        `vector_width` contiguous elements: of one row, with a partial result in each lane, or of one row a lane.
              On phones, if a row is read once, its last vector ends with it and counts only the elements left over
sub_group     work-items that first combine results by sub-group functions. A row may be part of one, or have several
combine       "serial": each work-item adds up all partial results. "tree": a few add up some each, then each the rest
keep          storage of a row between passes: "memory" reads it again, "registers" and "local" read it once
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.relax import op

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.streaming.blocks import Rows, rows_of
from romou.compiler.operators.kernels.streaming.row_kernel import (
    LEAST_OF_TREE,
    MOST_UNROLLED,
    SERIAL,
    SUB_GROUP_OPERATIONS,
    TREE,
    RowKernel,
    parts_left,
    second_partials,
    sums_of,
)
from romou.compiler.operators.kernels.streaming.template import Points, StreamingTemplate
from romou.compiler.operators.native_functions import FUNCTIONS, function_choices, with_functions
from romou.compiler.scheduling.blocks import is_regular, reduction_of, reductions_of
from romou.compiler.scheduling.loops import GROUP_ROWS, SUB_GROUP, THREADS, VECTOR_WIDTH
from romou.compiler.scheduling.rewrites import split_tuples
from romou.compiler.scheduling.statements import register_type
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.primitives import LANES

KNOBS = (
    VECTOR_WIDTH,
    THREADS,
    GROUP_ROWS,
    Knob(
        name="combine",
        choices=(SERIAL, TREE),
        default=SERIAL,
        help="how work-items that share a row add up their parts: each of them all parts, or in two steps",
        devices="GPUs",
        exists_on=lambda limits: limits.warp_size > 1,
    ),
    SUB_GROUP,
    Knob(
        name="keep",
        choices=("registers", "local", "memory"),
        default="registers",
        help="where a row stays between the passes over it",
    ),
    FUNCTIONS,
)
# Registers keep a work-item's share of at most this many elements.
_MOST_KEPT = 32
# Most elements that a group of several rows reads. A single row may be longer.
_MOST_OF_GROUP = 1 << 16


def _bytes(dtype: str) -> int:
    return int(tvm.DataType(dtype).itemsize)


class RowReduction(StreamingTemplate):
    """Rows that work-items share."""

    family = "row_reduction"
    knobs = KNOBS
    knobs_of_traffic = ("vector_width", "threads", "rows")

    @cached_property
    def rows(self) -> Rows | None:
        """The rows that the function is made of, or None if it has another form."""
        return rows_of(self.blocks, self.names["data"])

    @property
    def _rows(self) -> Rows:
        assert self.rows is not None, "`template_of` found it"
        return self.rows

    def space(self, limits: Limits) -> Space:
        (rows, elements), most = self._rows.count(1), limits.max_work_group_size
        choices: dict[str, Choices] = {
            "vector_width": self._widths(self._rows.contiguous, may_overlap=limits.is_mobile and self._rows.is_joined),
            "threads": lambda threads: threads <= most and threads < 2 * elements,
            "rows": lambda r: r == 1 or (r <= most and r < 2 * rows and r * elements <= _MOST_OF_GROUP),
            "sub_group": self._sub_groups(limits),
            FUNCTIONS.name: function_choices(self.func),
            "keep": lambda keep: keep == "memory" or self._rows.shared_load is not None,
        }
        space = Space.of(self.knobs, limits, choices)
        # On phones, a tree of partial results takes more instructions than the single numbers of an odd row.
        singles = _MOST_KEPT if limits.is_mobile else MOST_UNROLLED

        def conditions(config: Columns) -> dict[str, Any]:
            width = config["vector_width"]
            rows, elements = self._rows.count(width)
            share = -(-elements // config["threads"])
            return {
                "work-items of a group, device's limit": config["threads"] * config["rows"] <= most,
                "a group less than twice as large as the rows": (config["rows"] == 1) | (config["rows"] < 2 * rows),
                "work-items less than twice the elements": (config["threads"] == 1)
                | (config["threads"] < 2 * elements),
                # Registers have no addresses, so the loop over kept elements is unrolled.
                "few elements kept in registers": (config["keep"] != "registers")
                | ((share * width <= _MOST_KEPT) & (share <= np.where(width == 1, singles, MOST_UNROLLED))),
                "a tree of enough work-items": (config.get("combine", SERIAL) != TREE)
                | (config["threads"] >= LEAST_OF_TREE),
                "whole sub-groups": self._fits_sub_groups(config, limits),
                "local memory, device's limit": self.local_memory_bytes(config) <= limits.local_memory_bytes,
            }

        space.add_constraint(conditions)
        return space

    def _sub_groups(self, limits: Limits) -> list[int]:
        """Return the allowed sub-group sizes. Reductions of sub-groups take single fp32 values."""
        reductions = [p.reduction for p in self._rows.passes if p.reduction is not None]
        is_fit = all(r.operation in SUB_GROUP_OPERATIONS for r in reductions) and set(self._rows.kinds) == {"float32"}
        return [1, limits.sub_groups.size] if is_fit and limits.sub_groups is not None else [1]

    @staticmethod
    def _fits_sub_groups(config: Columns, limits: Limits) -> Any:
        """Return whether a group has whole sub-groups, and rows can exchange values inside them."""
        size, threads = config.get("sub_group", 1), config["threads"]
        is_alone = threads % size == 0
        is_whole = (threads > 1) & (threads * config["rows"] % size == 0) & ((limits.shuffled > 1) | is_alone)
        # Few parts are left, so one step combines them.
        return (size == 1) | (is_whole & (config.get("combine", SERIAL) == SERIAL))

    def default_config(self, limits: Limits) -> Config:
        """Return a config near the preset's group size and vectors of a row for each work-item.

        Work-items of several sub-groups first combine their results by functions of sub-groups, or in a tree.
        The row is kept in registers if it fits. Without warps (CPUs) work-items run one by one, so none shares a row.
        """
        space, preset = self.space(limits), limits.preset.streaming
        width = space.knobs["vector_width"][0]
        _, elements = self._rows.count(width)
        is_read_once = self._rows.shared_load is None
        of_vectors = preset.row_texels if is_read_once else preset.row_vectors
        share = preset.row_numbers if width == 1 else of_vectors
        most = elements if share is None else share
        groups = itertools.product(space.knobs["keep"], space.knobs["threads"], space.knobs["rows"])
        least = LEAST_OF_TREE if preset.has_reduction_trees else limits.max_work_group_size + 1
        size = int(space.knobs.get("sub_group", (1,))[-1])
        configs = []
        for keep, threads, rows in groups:
            config = space.default(vector_width=width, threads=threads, rows=rows, keep=keep, combine=SERIAL)
            if preset.has_sub_group_sums and 1 < size <= int(threads) // 2:
                config = config.replace(sub_group=size)
            elif int(threads) >= least:
                config = config.replace(combine=TREE)
            configs.append(config)

        def cost(config: Config) -> tuple[float, ...]:
            share = -(-elements // config["threads"])
            is_shared = config["threads"] if limits.warp_size == 1 else 0
            group = config["threads"] * config["rows"]
            return (
                is_shared,
                space.knobs["keep"].index(config["keep"]),
                max(0, share - most),
                abs(math.log2(group / preset.row_group)),
                config["threads"],
            )

        return min((c for c in configs if space.is_valid(c)), key=cost)

    def local_memory_bytes(self, columns: Columns) -> Any:
        """Return the bytes of partial results, of each type once, and of rows kept in local memory."""
        rows, width = columns["rows"], columns["vector_width"]
        _, elements = self._rows.count(1)
        of_partials = sum(map(_bytes, dict.fromkeys(self._rows.kinds)))
        partial = of_partials * (self._partials(columns) + self._second_partials(columns)) * rows
        kept = self._kept_bytes * (columns["keep"] == "local") * rows * elements
        return (partial + kept) * (width if self._rows.is_across else 1)

    @property
    def _kept_bytes(self) -> int:
        """Bytes of an element that is kept between passes."""
        load = self._rows.shared_load
        return 0 if load is None else _bytes(register_type(str(load.source.dtype)))

    @staticmethod
    def _partials(columns: Columns) -> Any:
        left = parts_left(columns["threads"], columns.get("sub_group", 1))
        return (left > 1) * left

    @staticmethod
    def _second_partials(columns: Columns) -> Any:
        return (columns.get("combine", SERIAL) == TREE) * second_partials(columns["threads"])

    def is_staged(self, columns: Columns) -> Any:
        return columns["keep"] == "local"

    def local_loads(self, columns: Columns) -> Any:
        """Return the bytes of a work-item's share in each pass, and of the partial results that it combines.

        With two steps, these are the parts that the first work-items combine.
        """
        width, threads = columns["vector_width"], columns["threads"]
        share = -(-self._rows.count(width)[1] // threads) * width
        of_partials = sum(map(_bytes, self._rows.kinds))
        second = self._second_partials(columns)
        count = np.where(second, second + threads // np.maximum(second, 1), self._partials(columns))
        partial = count * (width if self._rows.is_across else 1)
        # Values that replace the row's elements are stored there, and read again.
        reads = len(self._rows.passes) + (self._rows.kept_pass is not None)
        return (columns["keep"] == "local") * (self._kept_bytes * reads * share + of_partials * partial)

    def work_group_size(self, columns: Columns) -> Any:
        return columns["threads"] * columns["rows"]

    def work_groups(self, columns: Columns) -> Any:
        return -(-self._rows.count(columns["vector_width"])[0] // columns["rows"])

    def vectors(self, width: int) -> list[tuple[Vectors, tirx.Expr]]:
        return [(self._rows.vectors(width), p.value) for p in self._rows.passes]

    @property
    def works_in_texels(self) -> bool:
        """True if the output may be an image: vectors run across rows, along the last axis."""
        return super().works_in_texels and self._rows.is_across and self._rows.axes[self._rows.axis] == LANES

    @property
    def works_in_rows(self) -> bool:
        rows = self._rows
        return (
            rows.is_normal
            and not rows.is_across
            and len(self.shape) > 1
            and self.shape[-1] == rows.axes[rows.axis]
            and self.shape[-1] % LANES == 0
        )

    # Traffic

    def points_of_group(self, knobs: Mapping[str, int]) -> Points:
        """Return every element of the first group's rows."""
        width = knobs["vector_width"] if self._rows.is_across else 1
        rows, elements = self._rows.count(width)
        return self._points(np.minimum(np.arange(knobs["rows"]), rows - 1), np.arange(elements), width)

    def points_of_work_item(self, knobs: Mapping[str, int]) -> Points:
        """Return every `threads`-th vector of the first row, or the first one if a loop repeats it."""
        _, elements = self._rows.count(knobs["vector_width"])
        share = np.arange(0, elements + self._reads_tail(knobs), knobs["threads"])
        is_looped = elements > MOST_UNROLLED * knobs["threads"]
        return self._points(np.arange(1), share[:1] if is_looped else share, knobs["vector_width"])

    def _reads_tail(self, knobs: Mapping[str, int]) -> bool:
        """Return whether the first work-item is the last one, which reads the elements after the whole vectors."""
        return knobs["threads"] == 1 and self._rows.contiguous % knobs["vector_width"] > 0

    def group_key(self, knobs: Mapping[str, int]) -> Hashable:
        """Group configs by the rows of a work group."""
        return knobs["rows"] * (knobs["vector_width"] if self._rows.is_across else 1)

    def work_item_key(self, knobs: Mapping[str, int]) -> Hashable:
        """Group configs by a work-item's share of a row."""
        return knobs["vector_width"], knobs["threads"]

    def repeats(self, block: s_tir.SBlock, knobs: Mapping[str, int]) -> int:
        """Return the iterations of the loop over a work-item's share. Values of a whole row are outside of it."""
        share = -(-self._rows.count(knobs["vector_width"])[1] // knobs["threads"])
        reduction = reduction_of(block)
        if share <= MOST_UNROLLED or (reduction is None and not self._rows.is_normal):
            return 1
        times = math.prod(sums_of(share)) if reduction is not None and reduction.operation is tirx.Add else share
        return times + self._reads_tail(knobs)

    def _points(self, rows: np.ndarray, elements: np.ndarray, width: int) -> Points:
        outer, inner = (list(axes.values()) for axes in (self._rows.outer, self._rows.inner))
        across = self._rows.is_across
        of_rows, of_elements = (width, 1) if across else (1, width)
        row = np.unravel_index(rows[:, None, None] * of_rows + np.arange(of_rows), outer)
        elements = np.minimum(elements[None, :, None] * of_elements + np.arange(of_elements), math.prod(inner) - 1)
        element = np.unravel_index(elements, inner)
        values = dict(zip(self._rows.axes, [*row, *element], strict=True))

        def points(block: s_tir.SBlock) -> list[np.ndarray]:
            (row_pass,) = (p for p in self._rows.passes if p.block.same_as(block))
            if row_pass.reduction is None:
                return [
                    values.get(index, np.asarray(0)) if isinstance(index, tirx.Var) else np.asarray(0)
                    for index in row_pass.indices
                ]
            reduced = [axis.var for axis in row_pass.reduction.reduced]
            spatial = iter([*row])
            inside = iter([*element])
            return [next(inside if any(axis.var.same_as(r) for r in reduced) else spatial) for axis in block.iter_vars]

        return points

    def stored_by_a_group(self, knobs: Mapping[str, int]) -> int:
        """Return the elements that a work group stores: its rows, or one for each row."""
        width = knobs["vector_width"]
        rows, elements = self._rows.count(width)
        return int(min(knobs["rows"], rows)) * (
            (width * elements) if self._rows.is_normal else width if self._rows.is_across else 1
        )

    # The kernel

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        has_reductions = limits.sub_groups is None or limits.sub_groups.has_reductions
        kernel = RowKernel(self.simplified, self._rows, config, has_reductions=has_reductions)
        return tvm.IRModule({"main": with_functions(kernel.function(), config)})


class RowReductionFamily(Family):
    """Softmax, layer and group norm, means, sums and norms of rows: reductions without a moving window."""

    name = "row_reduction"
    precedence = 11

    def template_of(self, func: tirx.PrimFunc) -> RowReduction | None:
        split = split_tuples(func)
        if not is_regular(split) or not reductions_of(split):
            return None
        template = RowReduction(func)
        return template if template.rows is not None else None

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(name="softmax", inputs=[(2, 5, 37)], build=lambda x: op.nn.softmax(x, axis=-1), compute=_softmax),
            Case(
                name="layer norm",
                inputs=[(3, 7, 48), (48,), (48,)],
                build=lambda x, scale, shift: op.nn.layer_norm(x, scale, shift, axes=[-1]),
                compute=lambda x, scale, shift: (
                    (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift
                ),
            ),
            Case(
                name="mean of columns",
                inputs=[(31, 60)],
                build=lambda x: op.mean(x, axis=[0]),
                compute=lambda x: x.mean(0),
            ),
        ]


def _softmax(x: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(x - x.max(-1, keepdims=True))
    softmax: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return softmax


FAMILY = RowReductionFamily()
