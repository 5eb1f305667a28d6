"""Pooling: a maximum or an average over a moving window, packed (NCHW4c) or plain, with padding, dilation and epilogue.

out[n, c, y, x, lane] = f(max over (ky, kx) of data[n, c, y * s + ky, x * s + kx, lane])

work-item     `tile` neighbours along x, each a vector of `vector_width` lanes if channels are packed
              windows are reduced in registers
              where windows have indices that are loaded (GridSample), `tile` channels that share these
work group    `work_group` work-items in row-major order, x fastest
unroll        the window is unrolled, or there is one loop for each of its axes
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from tvm import s_tir, tirx
from tvm.relax import op
from tvm_ffi.structural import structural_map

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.analysis.form import tabulate
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.streaming.template import WORK_GROUP, Points, SplitTemplate
from romou.compiler.operators.kernels.streaming.windows import kept_inside, without_branches
from romou.compiler.scheduling.blocks import (
    Reduction,
    axes_of,
    is_elementwise_of,
    is_regular,
    loads_of,
    reduction_of,
    reductions_of,
    replace_loads,
)
from romou.compiler.scheduling.kernel_builder import KernelBuilder
from romou.compiler.scheduling.loops import VECTOR_WIDTH
from romou.compiler.scheduling.splits import Split
from romou.compiler.scheduling.statements import loop, register_type
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.evaluate import evaluate
from romou.compiler.tir.expressions import count_of, extents_of, is_free, is_multiple
from romou.compiler.tir.primitives import LANES, ignore_nan
from romou.compiler.tir.traversal import has_var, nodes_in, substitute

KNOBS = (
    VECTOR_WIDTH,
    WORK_GROUP,
    Knob(
        name="tile",
        choices=(1, 2, 3, 4, 7, 8),
        default=1,
        help="neighbours of a row, or channels with the same indices, that a work-item computes",
        scales_outputs=True,
    ),
    Knob(
        name="is_unrolled",
        choices=(True, False),
        default=True,
        help="write the window out instead of a loop for each of its axes",
    ),
)
# Most elements that the unrolled windows of a work-item load.
_MOST_UNROLLED = 64
# Most taps of all windows of a work group.
_MOST_OF_GROUP = 1 << 16


class Pool(SplitTemplate):
    """A pooling kernel with windows in registers."""

    family = "pool"
    knobs = KNOBS
    knobs_of_traffic = ("vector_width", "work_group", "tile", "is_unrolled")

    @property
    def is_mine(self) -> bool:
        """True if some index adds an output axis and a window axis, and the epilogue is element-wise."""
        window, *epilogue = self.blocks
        reduction = reduction_of(window)
        return (
            reduction is not None
            and len(self.shape) > 1
            and len(epilogue) <= 1
            and all(is_elementwise_of(block, reduction.buffer) for block in epilogue)
            and any(_adds_up(index, reduction) for load in loads_of(reduction.term) for index in load.indices)
            and reduction.is_of_one_tensor
        )

    def space(self, limits: Limits) -> Space:
        first, *larger = self._groups(limits)
        taps = math.prod(self._window)
        choices: dict[str, Choices] = {
            "vector_width": self._widths(LANES if self._is_packed else 1),
            # A work-item with a large window has enough to do.
            "work_group": [first, *(g for g in larger if g * taps <= _MOST_OF_GROUP)],
            "tile": lambda tile: tile == 1 or (tile <= self._row and taps <= _MOST_UNROLLED),
            "is_unrolled": lambda is_unrolled: not is_unrolled or taps <= _MOST_UNROLLED,
        }
        space = Space.of(self.knobs, limits, choices)
        smallest = space.knobs["work_group"][0]

        def conditions(config: Columns) -> dict[str, Any]:
            elements = config["work_group"] * config["tile"] * config["vector_width"]
            # Not `not`: a column of many configs is an array.
            is_looped = config["is_unrolled"] == False  # noqa: E712
            is_filled = (config["work_group"] == smallest) | (elements < 2 * self.elements)
            return {
                "a group less than twice as large as the output": is_filled,
                "short unrolled windows": is_looped | (tabulate(self._loads, config["tile"]) <= _MOST_UNROLLED),
            }

        space.add_constraint(conditions)
        return space

    def default_config(self, limits: Limits) -> Config:
        """Return a config with a tile of outputs that share indices, or whose windows load the fewest elements.

        The latter is at most as large as the preset says.
        """
        config, space = super().default_config(limits), self.space(limits)
        tiles, width = sorted(map(int, space.knobs["tile"]), reverse=True), int(config["vector_width"])
        if self._tiled != self._row_axis:
            # The fewest work-items, then the least padding
            best = min(tiles, key=lambda tile: (count_of(self._row, tile), tile))
            tiles = [tile for tile in tiles if tile <= best]
        else:
            most = max(limits.preset.streaming.pool_elements // width, 1)
            tiles.sort(key=lambda tile: (tile > most, self._loads(tile) * count_of(self._row, tile)))
        return next((wide for each in tiles if space.is_valid(wide := config.replace(tile=each))), config)

    @property
    def _reduction(self) -> Reduction:
        reduction = reduction_of(self.blocks[0])
        assert reduction is not None, "`is_mine` found it"
        return reduction

    @cached_property
    def values(self) -> list[tirx.Expr]:
        return [without_branches(self._reduction), *(multiplied(block.body.value) for block in self.blocks[1:])]

    @property
    def _window(self) -> list[Any]:
        return extents_of(axis.dom.extent for axis in self._reduction.reduced)

    @property
    def _is_packed(self) -> bool:
        return len(self.shape) > 2 and self.shape[-1] == LANES

    @property
    def _row_axis(self) -> int:
        return len(self.shape) - (2 if self._is_packed else 1)

    @cached_property
    def _tiled(self) -> int:
        """Axis along which tiles are cut: the row, or one that no loaded index depends on, so that a tile shares them.

        sum over t of x[c, at[y, x, t]]      ->      c
        """
        term = self._reduction.term
        loaded = [inner for load in loads_of(term) for index in load.indices for inner in loads_of(index)]
        spatial = self._spatial(self.blocks[0])
        is_read = [any(has_var(inner, var) for inner in loaded) for var in spatial]
        shared = [
            axis
            for axis, extent in enumerate(self.shape[: self._row_axis])
            if isinstance(extent, int) and extent > 1 and not is_read[axis]
        ]
        return shared[-1] if loaded and is_read[self._row_axis] and shared else self._row_axis

    def _loads(self, tile: int) -> Any:
        """Return the elements that the windows of a tile load, an element of several windows once."""
        taps, row = math.prod(self._window), self._spatial(self.blocks[0])[self._tiled]
        for index in (index for load in loads_of(self._reduction.term) for index in load.indices):
            inside = [axis for axis in self._reduction.reduced if has_var(index, axis.var)]
            extents = extents_of(axis.dom.extent for axis in inside)
            known = {row, *(axis.var for axis in inside)}
            if inside and has_var(index, row) and all(var in known for var in nodes_in(index, tirx.Var)):
                at = dict(
                    zip((row, *(axis.var for axis in inside)), np.ix_(*map(np.arange, (tile, *extents))), strict=True)
                )
                return taps // math.prod(extents) * len(np.unique(evaluate(index, at)))
        return tile * taps

    @property
    def _row(self) -> Any:
        """Outputs along the axis from which tiles are cut."""
        return self.shape[self._tiled]

    knobs_of_pieces = ("vector_width", "tile")

    def splits(self, knobs: Mapping[str, Any]) -> list[Split]:
        """Return the splits of the axes into single elements, tiles and vectors."""
        splits = [Split(extent) for extent in self.shape]
        splits[self._tiled] = Split(self._row, knobs["tile"])
        return [*splits[:-1], Split(LANES, knobs["vector_width"])] if self._is_packed else splits

    def _spatial(self, block: s_tir.SBlock) -> list[tirx.Var]:
        """Return the spatial axes of a block."""
        return [axis.var for axis in block.iter_vars][: len(self.shape)]

    def points_of_group(self, knobs: Mapping[str, int]) -> Points:
        """Return every tap of the windows of the first work group."""
        return self._points(knobs["work_group"], knobs, is_whole=True)

    def points_of_work_item(self, knobs: Mapping[str, int]) -> Points:
        """Return every tap of the first tile, or the first one if loops repeat it."""
        return self._points(1, knobs, is_whole=bool(knobs["is_unrolled"]))

    def group_key(self, knobs: Mapping[str, int]) -> Hashable:
        """Group configs by the windows of a work group, unrolled or not."""
        return knobs["vector_width"], knobs["work_group"], knobs["tile"]

    def work_item_key(self, knobs: Mapping[str, int]) -> Hashable:
        """Group configs by the windows of a work-item."""
        return knobs["vector_width"], knobs["tile"], knobs["is_unrolled"]

    def repeats(self, block: s_tir.SBlock, knobs: Mapping[str, int]) -> int:
        return 1 if knobs["is_unrolled"] or len(block.iter_vars) == len(self.shape) else math.prod(self._window)

    def _points(self, work_items: int, knobs: Mapping[str, int], *, is_whole: bool) -> Points:
        elements, tiled = self.elements_of(work_items, knobs), self._tiled

        def points(block: s_tir.SBlock) -> list[np.ndarray]:
            window = self._window if len(block.iter_vars) > len(self.shape) else []
            indices = [at.reshape(*at.shape, *[1] * len(window)) for at in elements]
            if not window:
                # An epilogue computes no element beyond the row.
                indices[tiled] = np.minimum(indices[tiled], self._row - 1)
            return [*indices, *np.ix_(*(np.arange(extent if is_whole else 1) for extent in window))]

        return points

    def vectors(self, width: int) -> list[tuple[Vectors, tirx.Expr]]:
        return [
            (Vectors(axes_of(block), self._spatial(block)[-1], width), value)
            for block, value in zip(self.blocks, self.values, strict=True)
        ]

    def _window_vectors(self, width: int, tile: int) -> tuple[Vectors, tirx.Expr]:
        """Return the reduced term, also for elements of the last tile beyond the row.

        The windows of all tiles then read addresses of the same form.
        """
        block = self.blocks[0]
        spatial = self._spatial(block)
        axes = axes_of(block)
        axes[next(var for var in axes if var.same_as(spatial[self._tiled]))] = count_of(self._row, tile) * tile
        term = self.values[0] if is_multiple(self._row, tile) else kept_inside(self.values[0], axes)
        return Vectors(axes, spatial[-1], width), term

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        width, tile = config["vector_width"], config["tile"]
        reduction, (window, *_), last = self._reduction, self.blocks, self.blocks[-1]
        windows, term = self._window_vectors(width, tile)
        vectors, value = self.vectors(width)[-1]

        def nest(body: tirx.Stmt) -> tirx.Stmt:
            kind = "unrolled" if config["is_unrolled"] and not any(map(is_free, self._window)) else "serial"
            for axis, extent in reversed([*zip(reduction.reduced, self._window, strict=True)]):
                body = loop(axis.var, extent, body, kind)
            return ignore_nan(body) if reduction.operation in (tirx.Max, tirx.Min) else body

        def write(k: KernelBuilder, indices: Sequence[tirx.Expr]) -> None:
            of_sums = register_type(str(reduction.buffer.dtype))
            sums = k.array("sums", tile, width, dtype=of_sums)

            def place(stmt: tirx.Stmt, step: tirx.Expr, block: s_tir.SBlock, along: Vectors) -> tirx.Stmt:
                """Return a statement over a block's axes for an element of the tile."""
                elements = list(indices)
                elements[self._tiled] = indices[self._tiled] * tile + step
                # Without packed channels, the last axis is also the axis of vectors of one element.
                values = {**dict(zip(self._spatial(block), elements, strict=True)), along.vector: elements[-1]}
                return substitute(stmt, values)

            with k.loop("step", tile, "unrolled") as step, k.lanes(width) as lane:
                sums[step, lane] = reduction.start.astype(of_sums)
            with k.inside(nest), k.loop("step", tile, "unrolled") as step:
                # The accumulator is the second operand. If one operand of `max` is NaN, most compilers return the
                # second one, so NaN in the data is dropped, mostly as in onnxruntime.
                total = reduction.combine(reduction.unbounded(term).astype(of_sums), sums[step, windows.lane])
                with k.inside(lambda stmt: place(stmt, step, window, windows)):
                    k.emit_with(windows.store(sums.buffer, [step * width + windows.lane], total))
            with k.loop("step", tile, "unrolled") as step:
                result = sums[step, vectors.lane].astype(str(reduction.buffer.dtype))
                output = result if last.same_as(window) else replace_loads(value, reduction.buffer, lambda _: result)
                is_inside = indices[self._tiled] * tile + step < self._row
                with (
                    k.when(None if is_multiple(self._row, tile) else is_inside),
                    k.inside(lambda stmt: place(stmt, step, last, vectors)),
                ):
                    k.emit_with(vectors.store(last.body.buffer, [*self._spatial(last)[:-1], vectors.index], output))

        return tvm.IRModule({"main": self.launched(self.grid(config), config, write)})


def multiplied(value: tirx.Expr) -> tirx.Expr:
    """Replace a division by a number of pixels with a product by its reciprocal, which all lanes share.

    sum[v] / float(count(y, x))      ->      sum[v] * (1 / float(count(y, x)))
    """

    def divided(expr: tirx.Div) -> tirx.Expr:
        is_count = isinstance(expr.b, tirx.Cast) and "int" in str(expr.b.value.ty) and "float" in str(expr.ty)
        return expr.a * (tirx.const(1, str(expr.ty)) / expr.b) if is_count else expr

    return structural_map(value, (tirx.Div, divided))


def _adds_up(index: tirx.Expr, reduction: Reduction) -> bool:
    """Return whether an index contains both an output axis and a reduced axis."""
    is_reduced = [any(var.same_as(axis.var) for axis in reduction.reduced) for var in nodes_in(index, tirx.Var)]
    return any(is_reduced) and not all(is_reduced)


class PoolFamily(Family):
    """Max and average pooling, with or without packed channels."""

    name = "pool"
    precedence = 10

    def template_of(self, func: tirx.PrimFunc) -> Pool | None:
        if not is_regular(func) or len(reductions_of(func)) != 1:
            return None
        template = Pool(func)
        return template if template.is_mine else None

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="max pool",
                inputs=[(1, 5, 13, 11)],
                build=lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2)),
                compute=lambda x: sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2)),
            ),
            Case(
                name="average pool of texels",
                inputs=[(1, 3, 9, 10, 4)],
                build=lambda x: op.nn.avg_pool2d(x, (2, 3), (1, 1), layout="NCHW4c"),
                compute=lambda x: np.mean(sliding_window_view(x, (2, 3), (2, 3)), (-1, -2)),
            ),
        ]


FAMILY = PoolFamily()
