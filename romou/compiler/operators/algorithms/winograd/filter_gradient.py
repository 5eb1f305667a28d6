"""Winograd's algorithm for the gradient of a filter, the adjoint of the convolution's, for windows of 2x2 to 5x5.

    output tile   Y = A^T ((G g G^T) * (B^T d B)) A
    gradient      by g = G^T (sum over all tiles of (A dY A^T) * (B^T d B)) G        dY: tile of the output's gradient

Source: Lavin and Gray, section 4, transposed. Four kernels with three workspaces between them:

    data      ->  transformed (positions, tiles / 4, input channels, 4)     B^T d B, four tiles in a texel
    gradient  ->  stored_gradient (positions, output texels * tiles, 4)     A dY A^T of each tile and texel
    both      ->  products (positions, output texels, input channels, 4)    for each position a contraction over tiles
    products  ->  output (oc, ic, kh, kw)                                   G^T m G of each texel and channel

With a stride, the input channels are the channels of all phases of the data. A tile of the last kernel is then the taps
of one phase.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.algorithms.winograd.convolution import Winograd
from romou.compiler.operators.algorithms.winograd.loops import bind_items, padded_items, place_rows
from romou.compiler.operators.algorithms.winograd.matrices import row_of
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction.form import round_up
from romou.compiler.operators.contraction.schedule import schedule_stages
from romou.compiler.operators.contraction.stages import Stage, contract
from romou.compiler.scheduling.loops import Block, Loop, load_texels, unroll_tile
from romou.compiler.scheduling.rewrites import GuardedIndex, as_module, renest
from romou.compiler.tir.expressions import zero_unless
from romou.compiler.tir.primitives import LANES

STAGES = frozenset({"gradient_tile", "gradient_rows", "stored_gradient", "filter_rows", "filter_tile"})
# The number of steps of four tiles is a multiple of this, so that steps can be staged together.
_STEPS = 4


@dataclass(frozen=True)
class WinogradFilter(Winograd):
    """The gradient of a convolution by its filter, in tiles of `tile` x `tile` outputs.

    The second factor is the gradient of the output.
    """

    stored_width = 1

    @property
    def tile_slots(self) -> int:
        return int(round_up(self.tiles, _STEPS * LANES))

    @property
    def transformed_shape(self) -> tuple[int, ...]:
        return (self.side**2, self.tile_slots // LANES, self.in_texels * LANES, LANES)

    def transformed_at(self, *at: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        position, k, c, step = at
        return position, c // LANES * self.tile_slots + k * LANES + step, c % LANES

    def transformed_loops(self, sch: s_tir.Schedule, transformed: Block) -> list[Loop]:
        p, k, c, step = sch.get_loops(transformed)
        texel, lane = sch.split(c, [None, LANES])
        sch.reorder(p, texel, k, step, lane)
        return [p, sch.fuse(texel, k, step), lane]

    @property
    def inputs(self) -> int:
        """Input channels of all phases."""
        return self.phases * self.work.in_channels

    @property
    def columns(self) -> int:
        """Pairs of an output texel and an input channel."""
        return self.work.out_texels * self.inputs

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the transformed gradient."""
        return (self.side**2, self.work.out_texels * self.tiles, LANES)

    @property
    def transform_elements(self) -> int:
        w, oh, ow = self.work, *self.work.out_hw
        pixels = w.batch * (self.data_texels * w.in_hw[0] * w.in_hw[1] + w.out_texels * oh * ow)
        taps = w.out_texels * w.in_channels * w.kernel[0] * w.kernel[1]
        return LANES * (
            pixels + self.side**2 * (self.tiles * (self.in_texels + w.out_texels) + 2 * self.columns) + taps
        )

    def contraction(self, transformed: te.Tensor, weight: te.Tensor) -> Contraction:
        """Return the sums of all positions. o: output texels, h: positions, w: input channels.

        A step of the sum is four tiles.
        """
        w, tiles = self.work, self.tiles

        def lhs(
            _o: tirx.Expr, p: tirx.Expr, c: tirx.Expr, _lane: tirx.Expr, k: tirx.Expr, step: tirx.Expr
        ) -> tirx.Expr:
            if self.phases > 1:
                c = c // w.in_channels * self.data_texels * LANES + c % w.in_channels
            return transformed[p, k, c, step]

        def rhs(o: tirx.Expr, lane: tirx.Expr, k: tirx.Expr, step: tirx.Expr, p: tirx.Expr) -> tirx.Expr:
            t = k * LANES + step
            # Slots behind the last tile are zero in the left factor.
            return weight[p, o * tiles + (te.min(t, tiles - 1) if self.tile_slots > tiles else t), lane]

        return Contraction(
            inputs=[transformed, weight],
            extents=(w.out_texels, self.side**2, self.inputs),
            reduce={"tile": self.tile_slots // LANES, "step": LANES},
            lhs=lhs,
            rhs=rhs,
            output=lambda p, o, c, lane: (o, p, c, lane),
            output_shape=(self.side**2, w.out_texels, self.inputs, LANES),
            is_batched=True,
        )

    def build(self, data: te.Tensor, weight: te.Tensor, config: Config, *, is_zero_outside: bool) -> tirx.PrimFunc:
        """Return all stages, from data and the output's gradient to the filter's gradient in fp32."""
        form = self.contraction(self.transformed_data(data, is_zero_outside), self._transformed_gradient(weight))
        return te.create_prim_func([data, weight, self._filter(contract(form, config, name="products"))])

    def _transformed_gradient(self, gradient: te.Tensor) -> te.Tensor:
        side, tile, (down, across), count = self.side, self.tile, self.grid, self.work.out_texels * self.tiles
        padded, matrix, (oh, ow) = padded_items(count), list(zip(*self._matrices.output, strict=True)), self.work.out_hw

        def load(f: tirx.Expr, i: tirx.Expr, j: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == count else te.min(f, count - 1)
            o, t = f // self.tiles, f % self.tiles
            n, y, x = t // (down * across), t // across % down * tile + i, t % across * tile + j
            # Tiles at the edge extend beyond the output.
            is_inside = [y < oh if down * tile > oh else True, x < ow if across * tile > ow else True]
            return zero_unless(self.work.dtype, gradient[n, o, y, x, lane], *is_inside).astype("float32")

        tiles = te.compute((padded, tile, tile, LANES), load, name="gradient_tile")
        rows = te.compute(
            (side, tile, padded, LANES),
            lambda a, j, f, lane: row_of(matrix, a, lambda i: tiles[f, i, j, lane]),
            name="gradient_rows",
        )
        return te.compute(
            self.weight_shape,
            lambda p, f, lane: row_of(matrix, p % side, lambda j: rows[p // side, j, f, lane]).astype(self.work.dtype),
            name="stored_gradient",
        )

    def _filter(self, products: te.Tensor) -> te.Tensor:
        side, window, inputs = self.side, self.window, self.inputs
        (kh, kw), (sh, sw), channels = self.work.kernel, self.work.stride, self.work.in_channels
        padded, matrix = padded_items(self.columns), list(zip(*self._matrices.weight, strict=True))

        def load(a: int, b: tirx.Expr, f: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
            f = f if padded == self.columns else te.min(f, self.columns - 1)
            return products[a * side + b, f // inputs, f % inputs, lane]

        rows = te.compute(
            (window, side, padded, LANES),
            lambda i, b, f, lane: row_of(matrix, i, lambda a: load(a, b, f, lane)),
            name="filter_rows",
        )
        tiles = te.compute(
            (padded, window, window, LANES),
            lambda f, i, j, lane: row_of(matrix, j, lambda b: rows[i, b, f, lane]),
            name="filter_tile",
        )
        return te.compute(
            (self.work.out_channels, channels, kh, kw),
            lambda o, c, i, j: tiles[
                o // LANES * inputs + (i % sh * sw + j % sw) * channels + c, i // sh, j // sw, o % LANES
            ],
            name=Stage.CROP,
        )

    def schedule(self, sch: s_tir.Schedule, output: Block, config: Config) -> s_tir.Schedule:
        """Schedule the four nests. `output` is the block that ends the epilogue."""
        window, inputs, channels, (kh, kw), (sh, sw) = (
            self.window,
            self.inputs,
            self.work.in_channels,
            self.work.kernel,
            self.work.stride,
        )

        def output_index(f: tirx.Expr, i: tirx.Expr, j: tirx.Expr, lane: tirx.Expr) -> GuardedIndex:
            channel, phase = f // inputs * LANES + lane, f % inputs // channels
            y, x = i * sh + phase // sw, j * sw + phase % sw
            return [channel, f % channels, y, x], [channel < self.work.out_channels, y < kh, x < kw]

        name = str(sch.get(output).name_hint)
        sch = s_tir.Schedule(
            as_module(renest(sch.mod["main"], name, "filter_tile", (self.columns, window, window, LANES), output_index))
        )
        self.schedule_data(sch)
        p, f, lane = sch.get_loops(sch.get_sblock("stored_gradient"))
        a, b = sch.split(p, [self.side, self.side])
        item = bind_items(sch, f, [a, b, lane])
        load_texels(sch, sch.get_sblock("gradient_tile"), place_rows(sch, "gradient_rows", item))
        unroll_tile(sch, [a, b, lane])

        p, o, c, lane = sch.get_loops(sch.get_sblock("products"))
        sch.reorder(o, p, c, lane)
        schedule_stages(sch, [o, p, c, lane], ["tile", "step"], config)

        f, i, j, lane = sch.get_loops(sch.get_sblock(name))
        item = bind_items(sch, f, [i, j, lane])
        load_texels(sch, sch.get_sblock("filter_tile"), i)
        place_rows(sch, "filter_rows", item)
        unroll_tile(sch, [i, j, lane], 1)
        return sch
