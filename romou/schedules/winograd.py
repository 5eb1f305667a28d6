"""Winograd's way to convolve windows of 3x3 and 5x5, F(m x m, r x r) (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", section 4).

    output tile (m x m) = A^T ((G g G^T) * (B^T d B)) A        d: input tile of m + r - 1 pixels a side, g: window of r x r

Three kernels with two workspaces between them; in a model, they are tensors of its memory plan (`romou/module/workspaces.py`):

    data        -> transformed (positions, input texels * tiles, 4)     B^T d B of each tile and texel
    transformed -> products (positions, output texels, tiles, 4)        a contraction for each of the (m + r - 1)^2 positions, scheduled as any other
    products    -> output (n, output texels, oh, ow, 4)                 A^T m A of each tile and texel, and the epilogue

A work-item transforms a tile of four pixels a side in its registers. A larger one, half transformed, would not fit into them: a row of work-items
shares it through local memory, each first with a column of the tile and then with a row of it.

G g G^T is computed ahead: such a config stores its weight in another shape (`StoredWeight`). Where weights change, a fourth kernel makes it in each call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import s_tir, te, tirx

from romou.core.limits import Limits
from romou.core.space import Config
from romou.schedules.contraction import Contraction
from romou.schedules.contraction.schedule import schedule_stages
from romou.schedules.contraction.stages import Stage, contract
from romou.schedules.loops import Block, Loop, bind_threads, load_texels, loops_below, unroll_tile
from romou.schedules.splice import as_module, renest
from romou.schedules.winograd_matrices import Matrices, matrices, row_of
from romou.schedules.workload import Conv2d, window_index
from romou.tir.primitives import LANES

# Value of the knob `algorithm` -> side of an output tile.
TILES = {"winograd2": 2, "winograd4": 4, "winograd6": 6}
# Sides of windows -> those of the output tiles whose numbers are right: the error grows with the points.
SIDES = {3: (2, 4, 6), 5: (2, 4)}
# The workspace that the contraction reads, and all stages that are scheduled, not inlined.
TRANSFORMED = "transformed"
STAGES = frozenset({"data_tile", "data_rows", TRANSFORMED, "weight_rows", "stored_weight", "products", "output_column", "output_rows", "output_tile"})
# Work-items of a group of the transforms, at least where they share tiles, and the tiles that such a group has at least: neighbours are read together.
GROUP, SHARED_TILES = 64, 16
# Side of the largest tile that fits into registers.
_LARGEST_OWN = 4
_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """The way in which a config's kernel wants its weight: called with the packed one, (ic, r, r, 4, oc, 4) in texels, it gives that of `shape`.

    name: of the parameter.   shape: (ic, (m + r - 1)^2, 4, oc, 4) in texels.   tile: m, the side of an output tile.
    """

    name: str
    shape: tuple[int, ...]
    tile: int

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """G g G^T of each window, in double precision, rounded to the type of `packed`."""
        g = np.asarray(matrices(self.tile, packed.shape[1]).weight, dtype=np.float64)
        found = np.einsum("ai,bj,cijlom->cablom", g, g, packed.astype(np.float64), optimize=True)
        return np.ascontiguousarray(found.reshape(self.shape).astype(packed.dtype))


def algorithms(w: Conv2d) -> list[str]:
    """Algorithms besides the direct one that can compute a convolution; of larger tiles, the ones that save products."""
    side = w.kernel[0] if w.kernel[0] == w.kernel[1] else 0
    is_plain = w.stride == w.dilation == (1, 1) and w.groups == 1 and min(w.in_channels, w.out_channels) >= LANES
    forms = {name: Winograd(w, tile) for name, tile in TILES.items() if is_plain and tile in SIDES.get(side, ()) and min(w.out_hw) >= tile}
    found: list[str] = []
    for name, form in forms.items():
        # Tiles of eight pixels a side lose too much where fp16 lies between the kernels.
        if (w.dtype == "float32" or form.side < 8) and all(form.products < forms[other].products for other in found):
            found.append(name)
    return found


@dataclass(frozen=True)
class Winograd:
    """A convolution in tiles of `tile` x `tile` outputs."""

    work: Conv2d
    tile: int

    @property
    def side(self) -> int:
        """Side of an input tile, in pixels."""
        return self.tile + self.work.kernel[0] - 1

    @property
    def products(self) -> int:
        """Products for one channel of data and one of the weight."""
        return self.side**2 * self.tiles

    @property
    def in_texels(self) -> int:
        """Texels of input channels."""
        return -(-self.work.in_channels // LANES)

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of an image, down and across."""
        height, width = self.work.out_hw
        return -(-height // self.tile), -(-width // self.tile)

    @property
    def tiles(self) -> int:
        """Tiles of the whole batch."""
        return self.work.batch * math.prod(self.grid)

    @property
    def transformed_shape(self) -> tuple[int, ...]:
        """Shape of the workspace that the contraction reads."""
        return (self.side**2, self.in_texels * self.tiles, LANES)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the transformed weight."""
        return (self.in_texels, self.side**2, LANES, self.work.out_texels, LANES)

    @property
    def transform_elements(self) -> int:
        """Numbers that the two transforms read and write; those of input tiles that overlap count once."""
        w, tiles = self.work, self.side**2 * self.tiles
        data, output = w.batch * self.in_texels * math.prod(w.in_hw), math.prod(w.output_shape) // LANES
        return LANES * (data + tiles * (self.in_texels + w.out_texels) + output)

    @property
    def is_shared(self) -> bool:
        """Whether work-items share a tile: half transformed, it lies in local memory."""
        return self.side > _LARGEST_OWN

    def fits(self, limits: Limits) -> bool:
        """Whether a device runs work groups of the transforms."""
        items = SHARED_TILES * self.side if self.is_shared else GROUP
        local_bytes = items * self.side * LANES * _FLOAT_BYTES * self.is_shared
        return items <= limits.max_work_group_size and local_bytes <= limits.local_memory_bytes

    @property
    def transform_registers(self) -> int:
        """Registers of a work-item that transforms data: it holds a tile, or a column or row of one."""
        return LANES * (self.side if self.is_shared else self.side**2)

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
        """All stages, from data and weight, transformed or packed, to the output in single precision."""
        is_packed = len(weight.shape) != len(self.weight_shape)
        right = self._transformed_weight(weight) if is_packed else weight
        products = contract(self.contraction(self.transformed_data(data, is_zero_outside), right), config, name="products", dtype=self.work.dtype)
        return te.create_prim_func([data, weight, self._output(products)])

    def _transformed_weight(self, packed: te.Tensor) -> te.Tensor:
        """G g G^T of each window, as `StoredWeight` makes it ahead."""
        side, matrix = self.side, self._matrices.weight
        texels, window, _, lanes, outputs, _ = (int(extent) for extent in packed.shape)

        def column(a: tirx.Expr, j: tirx.Expr, *at: tirx.Expr) -> tirx.Expr:
            ic, *others = at
            return row_of(matrix, a, lambda i: packed[(ic, i, j, *others)].astype("float32"))

        rows = te.compute((side, window, texels, lanes, outputs, LANES), column, name="weight_rows")
        return te.compute(
            self.weight_shape,
            lambda ic, p, *at: row_of(matrix, p % side, lambda j: rows[(p // side, j, ic, *at)]).astype(self.work.dtype),
            name="stored_weight",
        )

    @property
    def _matrices(self) -> Matrices:
        return matrices(self.tile, self.work.kernel[0])

    def transformed_data(self, data: te.Tensor, is_zero_outside: bool) -> te.Tensor:
        side, (down, across), count = self.side, self.grid, self.in_texels * self.tiles
        padded = padded_items(count)
        top, left, _, _ = self.work.padding
        # Tiles that stick out over the edge are padding too.
        reach = self.work.kernel[0] - 1
        bottom, right = (cells * self.tile + reach - before - extent for cells, before, extent in zip(self.grid, (top, left), self.work.in_hw, strict=True))
        work = replace(self.work, padding=(top, left, max(0, bottom), max(0, right)))

        def load(f: tirx.Expr, i: tirx.Expr, j: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == count else te.min(f, count - 1)
            ic, t = f // self.tiles, f % self.tiles
            n, y, x = t // (down * across), t // across % down, t % across
            value = window_index(work, y * self.tile, x * self.tile, i, j, lambda iy, ix: data[n, ic, iy, ix, lane], is_zero_outside=is_zero_outside)
            return value.astype("float32")

        tile = te.compute((padded, side, side, LANES), load, name="data_tile")
        matrix = self._matrices.data
        rows = te.compute((side, side, padded, LANES), lambda a, j, f, lane: row_of(matrix, a, lambda i: tile[f, i, j, lane]), name="data_rows")
        return te.compute(
            self.transformed_shape,
            lambda p, f, lane: row_of(matrix, p % side, lambda j: rows[p // side, j, f, lane]).astype(self.work.dtype),
            name=TRANSFORMED,
        )

    def _output(self, products: te.Tensor) -> te.Tensor:
        side, tile, (down, across), count = self.side, self.tile, self.grid, self.work.out_texels * self.tiles
        padded, matrix, batch = padded_items(count), self._matrices.output, self.work.batch

        def load(a: tirx.Expr, b: tirx.Expr, f: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == count else te.min(f, count - 1)
            return products[a * side + b, f // self.tiles, f % self.tiles, lane].astype("float32")

        column = te.compute((side, side, padded, LANES), load, name="output_column").__getitem__ if self.is_shared else lambda i: load(*i)
        rows = te.compute((tile, side, padded, LANES), lambda y, b, f, lane: row_of(matrix, y, lambda a: column((a, b, f, lane))), name="output_rows")
        tiles = te.compute((padded, tile, tile, LANES), lambda f, y, x, lane: row_of(matrix, x, lambda b: rows[y, b, f, lane]), name="output_tile")
        return te.compute(
            self.work.output_shape,
            lambda n, o, y, x, lane: tiles[((o * batch + n) * down + y // tile) * across + x // tile, y % tile, x % tile, lane],
            name=Stage.CROP,
        )

    def schedule(self, sch: s_tir.Schedule, output: Block, config: Config) -> s_tir.Schedule:
        """The schedule with the three nests bound; `output` is the block that the epilogue ends in."""
        if self.is_shared:
            sch, output = self._over_tiles(sch, output)
        self.schedule_data(sch)
        self._schedule_weight(sch)
        p, o, t, lane = sch.get_loops(sch.get_sblock("products"))
        sch.reorder(o, p, t, lane)
        schedule_stages(sch, [o, p, t, lane], ["ic", "ilane"], config)
        self._schedule_output(sch, output)
        return sch

    def _over_tiles(self, sch: s_tir.Schedule, output: Block) -> tuple[s_tir.Schedule, Block]:
        """The schedule with the output nest over (tile and texel, y, x, lane): which tiles a group shares is seen without division."""
        down, across = self.grid

        def place(f: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tuple[list[tirx.Expr], list[tirx.Expr]]:
            o, n = f // self.tiles, f % self.tiles // (down * across)
            y, x = f // across % down * self.tile + y, f % across * self.tile + x
            return [n, o, y, x, lane], [v < extent for v, extent in zip((y, x), self.work.out_hw, strict=True)]

        name, extents = str(sch.get(output).name_hint), (self.work.out_texels * self.tiles, self.tile, self.tile, LANES)
        sch = s_tir.Schedule(as_module(renest(sch.mod["main"], name, "output_tile", extents, place)))
        return sch, sch.get_sblock(name)

    def schedule_data(self, sch: s_tir.Schedule) -> None:
        transformed, tile = sch.get_sblock(TRANSFORMED), sch.get_sblock("data_tile")
        p, f, lane = sch.get_loops(transformed)
        a, b = sch.split(p, [self.side, self.side])
        if self.is_shared:
            group, item = sch.split(f, [None, SHARED_TILES])
            sch.reorder(group, a, item, b, lane)
            sch.bind(group, "blockIdx.x")
            bind_threads(sch, a, item)
            column = _share_rows(sch, "data_rows", group, self.side)
            load_texels(sch, sch.cache_read(transformed, 0, "local"), item)
            load_texels(sch, tile, column)
            unroll_tile(sch, [b, lane])
            return
        item = bind_items(sch, f, [a, b, lane])
        # Column by column, so that no more than one of the tile's is in registers.
        load_texels(sch, tile, place_rows(sch, "data_rows", item))
        unroll_tile(sch, [a, b, lane])

    def _schedule_weight(self, sch: s_tir.Schedule) -> None:
        found = {str(sch.get(block).name_hint): block for block in sch.get_child_blocks(sch.get_sblock("root"))}
        if "stored_weight" not in found:
            return
        ic, p, ilane, o, lane = sch.get_loops(found["stored_weight"])
        a, b = sch.split(p, [self.side, self.side])
        sch.reorder(ic, ilane, o, a, b, lane)
        item = bind_items(sch, sch.fuse(ic, ilane, o), [a, b, lane])
        sch.set_scope(found["weight_rows"], 0, "local")
        sch.compute_at(found["weight_rows"], item, preserve_unit_loops=True)
        unroll_tile(sch, loops_below(sch, found["weight_rows"], item))
        unroll_tile(sch, [a, b, lane])

    def _schedule_output(self, sch: s_tir.Schedule, output: Block) -> None:
        tile = sch.get_sblock("output_tile")
        if self.is_shared:
            f, y, x, lane = sch.get_loops(output)
            group, item = sch.split(f, [None, max(SHARED_TILES, GROUP // self.tile)])
            sch.reorder(group, y, item, x, lane)
            sch.bind(group, "blockIdx.x")
            bind_threads(sch, y, item)
            load_texels(sch, tile, item)
            column = _share_rows(sch, "output_rows", group, self.tile)
            load_texels(sch, sch.cache_read(tile, 0, "local"), item)
            load_texels(sch, sch.get_sblock("output_column"), column)
            unroll_tile(sch, [x, lane])
            return
        n, o, y, x, lane = sch.get_loops(output)
        (down, inner_y), (across, inner_x) = (sch.split(loop, [None, self.tile]) for loop in (y, x))
        sch.reorder(o, n, down, across, inner_y, inner_x, lane)
        item = bind_items(sch, sch.fuse(o, n, down, across), [inner_y, inner_x, lane])
        load_texels(sch, tile, inner_y)
        place_rows(sch, "output_rows", item)
        unroll_tile(sch, [inner_y, inner_x, lane])


def padded_items(items: int) -> int:
    return -(-items // GROUP) * GROUP


def bind_items(sch: s_tir.Schedule, items: Loop, inner: Sequence[Loop]) -> Loop:
    """Bind `items`, so that each iteration is a work-item, with the loops `inner` inside."""
    group, item = sch.split(items, [None, GROUP])
    sch.reorder(group, item, *inner)
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    return item


def place_rows(sch: s_tir.Schedule, name: str, item: Loop) -> Loop:
    """The first half of a transform, which makes rows of a tile, in a work-item's registers; returns its loop over columns."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, item, preserve_unit_loops=True)
    row, column, _, lane = loops_below(sch, block, item)
    sch.reorder(column, row, lane)
    unroll_tile(sch, [column, row, lane])
    return column


def _share_rows(sch: s_tir.Schedule, name: str, group: Loop, across: int) -> Loop:
    """Stage the tiles of a group in local memory, a column at a time for each of `across` work-items of a tile; return the loop around a column."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "shared")
    sch.compute_at(block, group, preserve_unit_loops=True)
    row, column, item, lane = loops_below(sch, block, group)
    outer, column = sch.split(column, [None, across])
    sch.reorder(outer, column, item, row, lane)
    bind_threads(sch, column, item)
    unroll_tile(sch, [row, lane])
    return item
