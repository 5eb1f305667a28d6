"""Winograd's way to convolve 3x3 windows, F(2x2, 3x3) and F(4x4, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", section 4).

    output tile (m x m) = A^T ((G g G^T) * (B^T d B)) A        d: input tile of m + 2 pixels a side, g: window

Three kernels with two workspaces between them; in a model, they are tensors of its memory plan (`romou/module/workspaces.py`):

    data        -> transformed (positions, input texels * tiles, 4)     B^T d B of each tile, one work-item a tile and texel
    transformed -> products (positions, output texels, tiles, 4)        a contraction for each of the (m + 2)^2 positions, as contraction.py schedules it
    products    -> output (n, output texels, oh, ow, 4)                 A^T m A and the epilogue, one work-item a tile and texel

G g G^T is computed ahead: such a config stores its weight in another shape (`StoredWeight`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold

import numpy as np
from romou.schedules.contraction import Contraction, contract, schedule_stages
from romou.schedules.loops import Block, Loop, unroll_tile
from romou.schedules.workload import Conv2d, window_index
from tvm import s_tir, te, tirx

from romou.primitives import LANES
from romou.space import Config

# Value of the knob `algorithm` -> side of an output tile.
TILES = {"winograd2": 2, "winograd4": 4}
# Rows of B^T, G and A^T by the side of an output tile: the points 0, 1, -1 (and 2, -2), as in the paper.
_DATA = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
}
_WEIGHT = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
}
_OUTPUT = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}
# The workspace that the contraction reads, and all stages that are scheduled, not inlined.
TRANSFORMED = "transformed"
STAGES = frozenset({"data_tile", "data_rows", TRANSFORMED, "products", "output_rows", "output_tile"})
# Work-items of a group of the transforms.
GROUP = 64


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """How a config's kernel wants its weight: called with the packed one, (ic, 3, 3, 4, oc, 4) in texels, it gives that of `shape`.

    name: of the parameter.   shape: (ic, (m + 2)^2, 4, oc, 4) in texels.   tile: m, the side of an output tile.
    """

    name: str
    shape: tuple[int, ...]
    tile: int

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """G g G^T of each window, in double precision, rounded to the type of `packed`."""
        g = np.asarray(_WEIGHT[self.tile])
        found = np.einsum("ai,bj,cijlom->cablom", g, g, packed.astype(np.float64), optimize=True)
        return np.ascontiguousarray(found.reshape(self.shape).astype(packed.dtype))


def algorithms(w: Conv2d) -> list[str]:
    """Those that can compute a convolution besides the direct one."""
    is_plain = w.kernel == (3, 3) and w.stride == w.dilation == (1, 1) and w.groups == 1
    return [name for name, tile in TILES.items() if is_plain and min(w.out_hw) >= tile and min(w.in_channels, w.out_channels) >= LANES]


@dataclass(frozen=True)
class Winograd:
    """A convolution in tiles of `tile` x `tile` outputs."""

    work: Conv2d
    tile: int

    @property
    def side(self) -> int:
        """Of an input tile, in pixels."""
        return self.tile + 2

    @property
    def in_texels(self) -> int:
        """Texels of input channels."""
        return -(-self.work.in_channels // LANES)

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of an image, down and across."""
        return tuple(-(-extent // self.tile) for extent in self.work.out_hw)  # type: ignore[return-value]

    @property
    def tiles(self) -> int:
        """Of the whole batch."""
        return self.work.batch * math.prod(self.grid)

    @property
    def transformed_shape(self) -> tuple[int, ...]:
        """Of the workspace that the contraction reads."""
        return (self.side**2, self.in_texels * self.tiles, LANES)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the transformed weight."""
        return (self.in_texels, self.side**2, LANES, self.work.out_texels, LANES)

    @property
    def transform_elements(self) -> int:
        """Numbers that the two transforms read and write; those of input tiles that overlap count once."""
        w, tiles = self.work, self.side**2 * self.tiles
        data, output = w.batch * self.in_texels * math.prod(w.in_hw), math.prod(w.output_shape) // LANES
        return LANES * (data + tiles * (self.in_texels + w.out_texels) + output)

    @property
    def transform_registers(self) -> int:
        """Of a work-item that transforms data: half transformed, the whole tile lies in registers."""
        return LANES * self.side**2

    def contraction(self, transformed: te.Tensor, weight: te.Tensor) -> Contraction:
        """The products of all positions: o counts output texels, h positions, w tiles."""
        return Contraction(
            inputs=[transformed, weight],
            extents=(self.work.out_texels, self.side**2, self.tiles),
            reduce={"ic": self.in_texels, "ilane": LANES},
            lhs=lambda _o, p, t, _lane, ic, ilane: transformed[p, ic * self.tiles + t, ilane],
            rhs=lambda o, lane, ic, ilane, p: weight[ic, p, ilane, o, lane],
            output=lambda p, o, t, lane: (o, p, t, lane),
            output_shape=(self.side**2, self.work.out_texels, self.tiles, LANES),
            is_batched=True,
        )

    def build(self, data: te.Tensor, weight: te.Tensor, config: Config, *, is_zero_outside: bool) -> tirx.PrimFunc:
        """All stages, from data and transformed weight to the output in single precision."""
        products = contract(self.contraction(self._transformed(data, is_zero_outside), weight), config, name="products", dtype=self.work.dtype)
        return te.create_prim_func([data, weight, self._output(products)])

    def _transformed(self, data: te.Tensor, is_zero_outside: bool) -> te.Tensor:
        side, (down, across), count = self.side, self.grid, self.in_texels * self.tiles
        padded = _padded(count)
        top, left, _, _ = self.work.padding
        # Tiles that stick out over the edge are padding too.
        bottom, right = (cells * self.tile + 2 - before - extent for cells, before, extent in zip(self.grid, (top, left), self.work.in_hw, strict=True))
        work = replace(self.work, padding=(top, left, max(0, bottom), max(0, right)))

        def load(f: tirx.Expr, i: tirx.Expr, j: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == count else te.min(f, count - 1)
            ic, t = f // self.tiles, f % self.tiles
            n, y, x = t // (down * across), t // across % down, t % across
            value = window_index(work, y * self.tile, x * self.tile, i, j, lambda iy, ix: data[n, ic, iy, ix, lane], is_zero_outside=is_zero_outside)
            return value.astype("float32")

        tile = te.compute((padded, side, side, LANES), load, name="data_tile")
        matrix = _DATA[self.tile]
        rows = te.compute((padded, side, side, LANES), lambda f, a, j, lane: _row_of(matrix, a, lambda i: tile[f, i, j, lane]), name="data_rows")
        return te.compute(
            self.transformed_shape,
            lambda p, f, lane: _row_of(matrix, p % side, lambda j: rows[f, p // side, j, lane]).astype(self.work.dtype),
            name=TRANSFORMED,
        )

    def _output(self, products: te.Tensor) -> te.Tensor:
        side, tile, (down, across), count = self.side, self.tile, self.grid, self.work.out_texels * self.tiles
        padded, matrix, batch = _padded(count), _OUTPUT[self.tile], self.work.batch

        def load(f: tirx.Expr, a: int, b: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == count else te.min(f, count - 1)
            return products[a * side + b, f // self.tiles, f % self.tiles, lane].astype("float32")

        rows = te.compute((padded, tile, side, LANES), lambda f, y, b, lane: _row_of(matrix, y, lambda a: load(f, a, b, lane)), name="output_rows")
        tiles = te.compute((padded, tile, tile, LANES), lambda f, y, x, lane: _row_of(matrix, x, lambda b: rows[f, y, b, lane]), name="output_tile")
        return te.compute(
            self.work.output_shape,
            lambda n, o, y, x, lane: tiles[((o * batch + n) * down + y // tile) * across + x // tile, y % tile, x % tile, lane],
            name="crop",
        )

    def schedule(self, sch: s_tir.Schedule, output: Block, config: Config) -> None:
        """Bind the three nests; `output` is the block that the epilogue ends in."""
        self._schedule_data(sch)
        p, o, t, lane = sch.get_loops(sch.get_sblock("products"))
        sch.reorder(o, p, t, lane)
        schedule_stages(sch, [o, p, t, lane], ["ic", "ilane"], config)
        self._schedule_output(sch, output)

    def _schedule_data(self, sch: s_tir.Schedule) -> None:
        p, f, lane = sch.get_loops(sch.get_sblock(TRANSFORMED))
        a, b = sch.split(p, [self.side, self.side])
        item = _bind(sch, f, [a, b, lane])
        # Column by column, so that no more than one of the tile's is in registers.
        column = _place_rows(sch, "data_rows", item)
        tile = sch.get_sblock("data_tile")
        sch.set_scope(tile, 0, "local")
        sch.compute_at(tile, column, preserve_unit_loops=True)
        unroll_tile(sch, sch.get_loops(tile)[-3:])
        unroll_tile(sch, [a, b, lane])

    def _schedule_output(self, sch: s_tir.Schedule, output: Block) -> None:
        n, o, y, x, lane = sch.get_loops(output)
        (down, inner_y), (across, inner_x) = (sch.split(loop, [None, self.tile]) for loop in (y, x))
        sch.reorder(o, n, down, across, inner_y, inner_x, lane)
        item = _bind(sch, sch.fuse(o, n, down, across), [inner_y, inner_x, lane])
        tile = sch.get_sblock("output_tile")
        sch.set_scope(tile, 0, "local")
        sch.compute_at(tile, inner_y, preserve_unit_loops=True)
        unroll_tile(sch, sch.get_loops(tile)[-3:])
        _place_rows(sch, "output_rows", item)
        unroll_tile(sch, [inner_y, inner_x, lane])


def _padded(items: int) -> int:
    return -(-items // GROUP) * GROUP


def _row_of(matrix: Sequence[Sequence[int]], row: tirx.Expr, value: Callable[[int], tirx.Expr]) -> tirx.Expr:
    """Row `row` of a constant matrix times a vector: a choice among sums without zeros, which unrolling makes."""
    sums = []
    for factors in matrix:
        terms = [(factor, value(place)) for place, factor in enumerate(factors) if factor]
        # What is added stands before what is subtracted: no sum begins with a minus.
        sums.append(fold(_add, sorted(terms, key=lambda term: term[0] < 0), None))
    *others, chosen = enumerate(sums)
    found = chosen[1]
    for place, total in reversed(others):
        found = te.if_then_else(row == place, total, found)
    return found


def _add(total: tirx.Expr | None, term: tuple[int, tirx.Expr]) -> tirx.Expr:
    factor, value = term
    size = value if abs(factor) == 1 else value * tirx.const(abs(factor), "float32")
    return size if total is None else total + size if factor > 0 else total - size


def _bind(sch: s_tir.Schedule, items: Loop, inner: Sequence[Loop]) -> Loop:
    """One work-item for each turn of `items`, with the loops `inner` inside."""
    group, item = sch.split(items, [None, GROUP])
    sch.reorder(group, item, *inner)
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    return item


def _place_rows(sch: s_tir.Schedule, name: str, item: Loop) -> Loop:
    """The first half of a transform, which makes rows of a tile, in a work-item's registers; returns its loop over columns."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, item, preserve_unit_loops=True)
    row, column, lane = sch.get_loops(block)[-3:]
    sch.reorder(column, row, lane)
    unroll_tile(sch, [column, row, lane])
    return column
