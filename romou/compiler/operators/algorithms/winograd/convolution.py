"""Winograd's convolution F(m x m, r x r) for windows of 2x2 to 5x5.

    output tile (m x m) = A^T ((G g G^T) * (B^T d B)) A
    d: input tile of m + r - 1 pixels a side
    g: window of r x r

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", section 4.

Three kernels with two workspaces between them. In a model, the workspaces are tensors of its memory plan
(`romou/compiler/graph/memory/workspaces.py`).

    data         ->  transformed (positions, input texels * tiles, 4)  B^T d B of each tile and texel
    transformed  ->  products (positions, output texels, tiles, 4)     a contraction for each of (m + r - 1)^2 positions
    products     ->  output (n, output texels, oh, ow, 4)              A^T m A of each tile and texel, and the epilogue

- A tile of at most four pixels a side is transformed by one work-item in registers. A larger tile does not fit. A row
  of work-items transforms it in two steps, columns and then rows, through local memory.
- A convolution with a stride is one of stride 1 over the phases of its data: 11x11 at stride 4 is 3x3 with 16 times the
  channels. The data transform reads each phase in place. The weight transform cuts the window into phases and pads them
  with zeros.
- G g G^T is computed ahead, so a config stores its weight in another shape (`TransformedWeight`). If weights change at
  run time, a fourth kernel computes it in each call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from tvm import s_tir, te, tirx

from romou.base.limits import Limits
from romou.base.space import Config
from romou.compiler.operators.algorithms.winograd.loops import GROUP, bind_items, padded_items, place_rows, share_rows
from romou.compiler.operators.algorithms.winograd.matrices import TransformMatrices, row_of, transform_matrices
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction.schedule import schedule_stages
from romou.compiler.operators.contraction.stages import Stage, contract
from romou.compiler.operators.workload import Conv2d, Expr
from romou.compiler.scheduling.loops import Block, Loop, bind_threads, load_texels, loops_below, unroll_tile
from romou.compiler.scheduling.rewrites import GuardedIndex, as_module, renest
from romou.compiler.tir.expressions import zero_unless
from romou.compiler.tir.primitives import LANES

# Value of the knob `algorithm` -> side of an output tile.
TILES = {"winograd2": 2, "winograd4": 4, "winograd6": 6}
# Window size -> output tile sizes with acceptable rounding error, which grows with the number of points.
SIDES = {2: (2, 4, 6), 3: (2, 4, 6), 4: (2, 4), 5: (2, 4)}
# The workspace that the contraction reads, and all stages with a schedule. Other stages are inlined.
TRANSFORMED = "transformed"
STAGES = frozenset(
    {
        "data_tile",
        "data_rows",
        TRANSFORMED,
        "weight_rows",
        "stored_weight",
        "products",
        "output_column",
        "output_rows",
        "output_tile",
    }
)
# Fewest tiles of a work group that shares them. Neighbouring work-items read neighbouring tiles.
SHARED_TILES = 16
# Side of the largest tile that fits into registers.
_LARGEST_OWN = 4
_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class TransformedWeight:
    """The transformed weight that a config's kernel takes.

    Call it with the packed weight, (ic, kh, kw, lanes, oc, 4) in texels, to get the array of `shape`.

    name: of the parameter.
    shape: (phases * ic, (m + r - 1)^2, lanes, oc, 4) in texels.
    tile: m, the side of an output tile.
    stride: phases of the window, down and across.
    """

    name: str
    shape: tuple[int, ...]
    tile: int
    stride: tuple[int, int]

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """Compute G g G^T of each window in double precision, rounded to the type of `packed`."""
        texels, height, width, _, outputs, _ = packed.shape
        (sh, sw), lanes, window = self.stride, self.shape[2], -(-height // self.stride[0])
        full = np.zeros((texels, window * sh, window * sw, lanes, outputs, LANES))
        full[:, :height, :width] = packed[:, :, :, :lanes]
        windows = full.reshape(texels, window, sh, window, sw, -1).transpose(2, 4, 0, 1, 3, 5)
        g = np.asarray(transform_matrices(self.tile, window).weight, dtype=np.float64)
        # As one product, (G x G) (i j), which einsum takes apart into two with copies between them.
        transformed = np.kron(g, g) @ windows.reshape(-1, window * window, windows.shape[-1])
        return transformed.reshape(self.shape).astype(packed.dtype)


def algorithms(w: Conv2d) -> list[str]:
    """Return the algorithms that compute a convolution with fewer products than the direct one.

    A larger tile is listed only if it needs fewer products than all smaller ones. Transforms round, so sums of integers
    have none.
    """
    windows = {-(-taps // stride) for taps, stride in zip(w.kernel, w.stride, strict=True)}
    side = windows.pop() if len(windows) == 1 else 0
    has_texels = min(w.in_channels * math.prod(w.stride), w.out_channels) >= LANES
    is_plain = w.dilation == (1, 1) and w.groups == 1 and has_texels and not w.has_integers
    forms = {
        name: Winograd(w, tile)
        for name, tile in TILES.items()
        if is_plain and tile in SIDES.get(side, ()) and min(w.out_hw) >= tile
    }
    products: dict[str, int] = {"direct": w.batch * math.prod((*w.out_hw, *w.kernel))}
    for name, form in forms.items():
        # A tile of seven pixels a side loses too much accuracy with fp16 workspaces.
        if (w.dtype == "float32" or form.side < 7) and form.products < min(products.values()):
            products[name] = form.products
    return list(products)[1:]


@dataclass(frozen=True)
class Winograd:
    """A convolution in tiles of `tile` x `tile` outputs.

    stored_width: elements that a work-item stores at once in the workspace that the contraction reads.
    """

    work: Conv2d
    tile: int
    stored_width: ClassVar[int] = LANES

    @property
    def window(self) -> int:
        """Side of the window in one phase of the data, in taps."""
        return -(-self.work.kernel[0] // self.work.stride[0])

    @property
    def side(self) -> int:
        """Side of an input tile, in pixels of its phase."""
        return self.tile + self.window - 1

    @property
    def phases(self) -> int:
        """Phases of the data. Neighbouring pixels of a phase are one stride apart in the data."""
        return math.prod(self.work.stride)

    @property
    def products(self) -> int:
        """Products for each pair of input and output channels."""
        return self.phases * self.side**2 * self.tiles

    @property
    def data_texels(self) -> int:
        """Texels of input channels."""
        return -(-self.work.in_channels // LANES)

    @property
    def in_texels(self) -> int:
        """Texels of input channels of all phases."""
        return self.phases * self.data_texels

    @property
    def in_lanes(self) -> int:
        """Lanes of an input texel that hold channels."""
        return min(self.work.in_channels, LANES)

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
    def tile_slots(self) -> int:
        """Slots for tiles in the workspace, for each texel of input channels."""
        return self.tiles

    def transformed_at(self, *at: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        """Return the position, (texel, tile) and lane that an index of the workspace holds."""
        position, f, lane = at
        return position, f, lane

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the transformed weight."""
        return (self.in_texels, self.side**2, self.in_lanes, self.work.out_texels, LANES)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the operator's packed output."""
        return self.work.output_shape

    @property
    def transform_elements(self) -> int:
        """Elements that the two transforms read and write. Overlaps of input tiles count once."""
        w, tiles = self.work, self.side**2 * self.tiles
        data, output = w.batch * self.data_texels * math.prod(w.in_hw), math.prod(self.output_shape) // LANES
        return LANES * (data + tiles * (self.in_texels + w.out_texels) + output)

    @property
    def is_shared(self) -> bool:
        """True if work-items share a tile, with its half-transformed rows in local memory."""
        return self.side > _LARGEST_OWN

    @property
    def is_over_tiles(self) -> bool:
        """True if the output nest loops over tiles, not over output pixels."""
        return self.is_shared

    def source_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the texel and pixel of the convolution `work` for the output's (o, y, x)."""
        return o, y, x

    def output_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        """Invert `source_of`."""
        return o, y, x

    def is_output(self, y: Expr, x: Expr) -> list[tirx.Expr]:
        """Return the conditions that the output has the pixel (y, x)."""
        return [v < extent for v, extent in zip((y, x), self.output_shape[2:4], strict=True)]

    def fits(self, limits: Limits) -> bool:
        """Return whether the transforms' work groups fit the device."""
        items = SHARED_TILES * self.side if self.is_shared else GROUP
        local_bytes = items * self.side * LANES * _FLOAT_BYTES * self.is_shared
        return items <= limits.max_work_group_size and local_bytes <= limits.local_memory_bytes

    @property
    def transform_registers(self) -> int:
        """Registers of a work-item of the data transform, which holds a tile or one column of it."""
        return LANES * (self.side if self.is_shared else self.side**2)

    def contraction(self, transformed: te.Tensor, weight: te.Tensor) -> Contraction:
        """Return the products of all positions. o: output texels, h: positions, w: tiles."""
        return Contraction(
            inputs=[transformed, weight],
            extents=(self.work.out_texels, self.side**2, self.tiles),
            reduce={"ic": self.in_texels, "ilane": self.in_lanes},
            lhs=lambda _o, p, t, _lane, ic, ilane: transformed[p, ic * self.tiles + t, ilane],
            rhs=lambda o, lane, ic, ilane, p: weight[ic, p, ilane, o, lane],
            output=lambda p, o, t, lane: (o, p, t, lane),
            output_shape=(self.side**2, self.work.out_texels, self.tiles, LANES),
            texel=LANES,
            is_batched=True,
        )

    def build(self, data: te.Tensor, weight: te.Tensor, config: Config, *, is_zero_outside: bool) -> tirx.PrimFunc:
        """Return all stages, from data and weight, transformed or packed, to the fp32 output."""
        is_packed = len(weight.shape) != len(self.weight_shape)
        right = self._transformed_weight(weight) if is_packed else weight
        products = contract(
            self.contraction(self.transformed_data(data, is_zero_outside), right),
            config,
            name="products",
            dtype=self.work.dtype,
        )
        return te.create_prim_func([data, weight, self._output(products)])

    def _transformed_weight(self, packed: te.Tensor) -> te.Tensor:
        """Compute G g G^T of each window, as `TransformedWeight` does ahead of time."""
        side, matrix, (kh, kw), (sh, sw) = self.side, self._matrices.weight, self.work.kernel, self.work.stride

        def column(a: tirx.Expr, j: tirx.Expr, c: tirx.Expr, *at: tirx.Expr) -> tirx.Expr:
            texel, top, left = self.phase_of(c)

            def tap(i: int) -> tirx.Expr:
                y, x = i * sh + top, j * sw + left
                checks = [y < kh if (i + 1) * sh > kh else True, x < kw if self.window * sw > kw else True]
                return zero_unless(self.work.dtype, packed[(texel, y, x, *at)], *checks).astype("float32")

            return row_of(matrix, a, tap)

        rows = te.compute(
            (side, self.window, self.in_texels, self.in_lanes, self.work.out_texels, LANES), column, name="weight_rows"
        )
        return te.compute(
            self.weight_shape,
            lambda c, p, *at: row_of(matrix, p % side, lambda j: rows[(p // side, j, c, *at)]).astype(self.work.dtype),
            name="stored_weight",
        )

    def phase_of(self, c: Expr) -> tuple[Expr, Expr, Expr]:
        """Split texel `c` of all phases into the data's texel and the row and column of the phase."""
        if self.phases == 1:
            return c, 0, 0
        phase, across = c // self.data_texels, self.work.stride[1]
        return c % self.data_texels, phase // across, phase % across

    @property
    def _matrices(self) -> TransformMatrices:
        return transform_matrices(self.tile, self.window)

    def transformed_data(self, data: te.Tensor, is_zero_outside: bool) -> te.Tensor:
        side, (down, across), slots = self.side, self.grid, self.tile_slots
        count = self.in_texels * slots
        padded = padded_items(count)
        (sh, sw), (before, first, _, _) = self.work.stride, self.work.padding
        # The padding covers tiles beyond the edge, and taps that a phase lacks.
        reach = self.window - 1
        sides = zip(self.grid, self.work.stride, (before, first), self.work.in_hw, strict=True)
        after, last = ((cells * self.tile + reach) * stride - pad - extent for cells, stride, pad, extent in sides)
        work = replace(self.work, padding=(before, first, max(0, after), max(0, last)))

        def load(f: tirx.Expr, i: tirx.Expr, j: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == count else te.min(f, count - 1)
            (texel, top, left), t = self.phase_of(f // slots), f % slots
            n, y, x = t // (down * across), t // across % down, t % across
            pixel = work.under_window(
                (y * self.tile, x * self.tile),
                (i * sh + top, j * sw + left),
                lambda iy, ix: data[n, texel, iy, ix, lane],
                is_zero_outside=is_zero_outside,
            )
            return zero_unless(work.dtype, pixel, t < self.tiles if slots > self.tiles else True).astype("float32")

        tile = te.compute((padded, side, side, LANES), load, name="data_tile")
        matrix = self._matrices.data
        rows = te.compute(
            (side, side, padded, LANES),
            lambda a, j, f, lane: row_of(matrix, a, lambda i: tile[f, i, j, lane]),
            name="data_rows",
        )

        def store(*at: tirx.Expr) -> tirx.Expr:
            p, f, lane = self.transformed_at(*at)
            return row_of(matrix, p % side, lambda j: rows[p // side, j, f, lane]).astype(self.work.dtype)

        return te.compute(self.transformed_shape, store, name=TRANSFORMED)

    def _output(self, products: te.Tensor) -> te.Tensor:
        side, tile, (down, across), count = self.side, self.tile, self.grid, self.work.out_texels * self.tiles
        padded, matrix, batch = padded_items(count), self._matrices.output, self.work.batch

        def load(a: tirx.Expr, b: tirx.Expr, f: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == count else te.min(f, count - 1)
            return products[a * side + b, f // self.tiles, f % self.tiles, lane].astype("float32")

        column = (
            te.compute((side, side, padded, LANES), load, name="output_column").__getitem__
            if self.is_shared
            else lambda i: load(*i)
        )
        rows = te.compute(
            (tile, side, padded, LANES),
            lambda y, b, f, lane: row_of(matrix, y, lambda a: column((a, b, f, lane))),
            name="output_rows",
        )
        tiles = te.compute(
            (padded, tile, tile, LANES),
            lambda f, y, x, lane: row_of(matrix, x, lambda b: rows[y, b, f, lane]),
            name="output_tile",
        )

        def crop(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            o, y, x = self.source_of(o, y, x)
            return tiles[((o * batch + n) * down + y // tile) * across + x // tile, y % tile, x % tile, lane]

        return te.compute(self.output_shape, crop, name=Stage.CROP)

    def schedule(self, sch: s_tir.Schedule, output: Block, config: Config) -> s_tir.Schedule:
        """Schedule the three nests. `output` is the block that ends the epilogue."""
        if self.is_over_tiles:
            sch, output = self._over_tiles(sch, output)
        self.schedule_data(sch)
        self._schedule_weight(sch)
        p, o, t, lane = sch.get_loops(sch.get_sblock("products"))
        sch.reorder(o, p, t, lane)
        schedule_stages(sch, [o, p, t, lane], ["ic", "ilane"], config)
        self._schedule_output(sch, output)
        return sch

    def _over_tiles(self, sch: s_tir.Schedule, output: Block) -> tuple[s_tir.Schedule, Block]:
        """Loop the output nest over (tile and texel, y, x, lane).

        TVM then sees which tiles a group shares without division.
        """
        down, across = self.grid

        def output_index(f: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> GuardedIndex:
            o, n = f // self.tiles, f % self.tiles // (down * across)
            o, y, x = self.output_of(o, f // across % down * self.tile + y, f % across * self.tile + x)
            return [n, o, y, x, lane], self.is_output(y, x)

        name, extents = str(sch.get(output).name_hint), (self.work.out_texels * self.tiles, self.tile, self.tile, LANES)
        sch = s_tir.Schedule(as_module(renest(sch.mod["main"], name, "output_tile", extents, output_index)))
        return sch, sch.get_sblock(name)

    def transformed_loops(self, sch: s_tir.Schedule, transformed: Block) -> list[Loop]:
        """Return the workspace's loops over positions, texels and tiles, and lanes."""
        return list(sch.get_loops(transformed))

    def schedule_data(self, sch: s_tir.Schedule) -> None:
        transformed, tile = sch.get_sblock(TRANSFORMED), sch.get_sblock("data_tile")
        p, f, lane = self.transformed_loops(sch, transformed)
        a, b = sch.split(p, [self.side, self.side])
        if self.is_shared:
            group, item = sch.split(f, [None, SHARED_TILES])
            sch.reorder(group, a, item, b, lane)
            sch.bind(group, "blockIdx.x")
            bind_threads(sch, a, item)
            column = share_rows(sch, "data_rows", group, self.side)
            load_texels(sch, sch.cache_read(transformed, 0, "local"), item)
            load_texels(sch, tile, column)
            unroll_tile(sch, [b, lane], self.stored_width)
            return
        item = bind_items(sch, f, [a, b, lane])
        # Column by column, so that registers hold one column of the tile at a time.
        load_texels(sch, tile, place_rows(sch, "data_rows", item))
        unroll_tile(sch, [a, b, lane], self.stored_width)

    def _schedule_weight(self, sch: s_tir.Schedule) -> None:
        stages = {str(sch.get(block).name_hint): block for block in sch.get_child_blocks(sch.get_sblock("root"))}
        if "stored_weight" not in stages:
            return
        ic, p, ilane, o, lane = sch.get_loops(stages["stored_weight"])
        a, b = sch.split(p, [self.side, self.side])
        sch.reorder(ic, ilane, o, a, b, lane)
        item = bind_items(sch, sch.fuse(ic, ilane, o), [a, b, lane])
        sch.set_scope(stages["weight_rows"], 0, "local")
        sch.compute_at(stages["weight_rows"], item, preserve_unit_loops=True)
        unroll_tile(sch, loops_below(sch, stages["weight_rows"], item))
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
            column = share_rows(sch, "output_rows", group, self.tile)
            load_texels(sch, sch.cache_read(tile, 0, "local"), item)
            load_texels(sch, sch.get_sblock("output_column"), column)
            unroll_tile(sch, [x, lane])
            return
        if self.is_over_tiles:
            items, *inner = sch.get_loops(output)
        else:
            n, o, y, x, lane = sch.get_loops(output)
            (down, inner_y), (across, inner_x) = (sch.split(loop, [None, self.tile]) for loop in (y, x))
            inner = [inner_y, inner_x, lane]
            sch.reorder(o, n, down, across, *inner)
            items = sch.fuse(o, n, down, across)
        item = bind_items(sch, items, inner)
        load_texels(sch, tile, inner[0])
        place_rows(sch, "output_rows", item)
        unroll_tile(sch, inner)
