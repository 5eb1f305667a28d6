"""A contraction as stages over a domain that is padded to whole work groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tvm import te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.form import Contraction, Expr, round_up
from romou.compiler.operators.contraction.knobs import FP16, FP32, MIXED, rows_of_items, steps_of_sum
from romou.compiler.scheduling.loops import ALONG_MEMORY, APART, IN_PAIRS
from romou.compiler.tir.primitives import LANES


class Stage(str, Enum):
    """The stages of a contraction. The value is the name of the TIR block, which kernels show.

        data -> patch -> texels ─┐
                                 ├─> [block ->] acc -> tile -> crop             one work-item sums a whole reduction
        weight -> kernel -> right┘
                                 └─> [block ->] part -> acc -> crop             `split_k` work-items share one

    patch: the data in local memory, or in registers if nothing is staged.
    texels: the staged data in registers.
    kernel: the weight in local memory.
    right: the weight in registers, several reduction steps at a time.
    block: sums of a few products in fp16, which acc or part adds up in fp32.
    """

    PATCH = "patch"
    TEXELS = "texels"
    KERNEL = "kernel"
    RIGHT = "right"
    BLOCK = "block"
    PART = "part"
    ACC = "acc"
    TILE = "tile"
    CROP = "crop"

    # Messages, records and kernels show the value.
    __str__, __repr__ = str.__str__, str.__repr__


# Name of the loop over the sums that `MIXED` adds up in fp32.
BLOCKS = "blocks"
# The value of an operand, at a work-item's own element and a step of the reduction.
_Operand: TypeAlias = Callable[..., tirx.Expr]


def build_stages(c: Contraction, config: Config) -> tirx.PrimFunc:
    """Return the contraction as a function of its inputs, made of the stages of `contract`."""
    return te.create_prim_func([*c.inputs, contract(c, config)])


def contract(c: Contraction, config: Config, *, name: str = Stage.CROP, dtype: str = "float32") -> te.Tensor:
    """Return the contraction as stages over a domain that is padded to whole work groups.

    The last stage is called `name`. It leaves the padding out, and its numbers are of type `dtype`.
    Elements that a work-item has for itself are indexed by the work-item first, so that its register tile is dense
    under any arrangement.
    """
    domain = _Domain.of(c, config)
    left, right = _left_operand(domain), _right_operand(domain)
    number = FP32 if config["accumulate"] == FP32 else FP16

    def product(item_o: Expr, item_w: Expr, o: Expr, h: Expr, w: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        return left(item_o, item_w, o, h, w, lane, *r).astype(number) * right(item_o, o, h, lane, *r).astype(number)

    total = _total(domain, _sum_of_piece(domain, product))
    return te.compute(c.output_shape, lambda *i: total[c.output(*i)].astype(dtype), name=name)


def texel_of(c: Contraction, config: Config, item_o: Expr, own_o: Expr) -> Expr:
    """Return the texel of output channels that a work-item has at an index of its own."""
    return _Domain.of(c, config).o.join(item_o, own_o)


@dataclass(frozen=True)
class _Axis:
    """An axis that is dealt out to the `items` work-items of each group, `tile` elements each.

    An element has two indices: its work-item in the group, and its index among the elements of that work-item in all
    groups.
    """

    tile: int
    items: int
    is_striped: bool

    def join(self, item: Expr, own: Expr) -> Expr:
        if self.is_striped:
            return own * self.items + item
        return (own // self.tile * self.items + item) * self.tile + own % self.tile

    def split(self, index: Expr) -> tuple[Expr, Expr]:
        if self.is_striped:
            return index % self.items, index // self.items
        return index // self.tile % self.items, index // (self.items * self.tile) * self.tile + index % self.tile


@dataclass(frozen=True)
class _Domain:
    """The padded domain of a contraction, and which work-item computes which element.

    padded: (o, h, w), rounded up to whole work groups.
    o, h, w: output channels, rows, and pixels of a row, dealt out to work-items. Work-items of the pixels have one
        index, row by row.
    """

    c: Contraction
    config: Config
    padded: tuple[int, int, int]
    o: _Axis
    h: _Axis
    w: _Axis

    @classmethod
    def of(cls, c: Contraction, config: Config) -> _Domain:
        o, h, w = c.extents
        group_o, group_w = config["wg_o"] * config["tile_o"], config["wg_w"] * config["tile_w"]
        rows = _Axis(config["tile_h"], rows_of_items(config), False)
        padded = round_up(o, group_o), round_up(h, rows.items * rows.tile), round_up(w, group_w)
        if tensor_core.is_mma(config):
            # An instruction takes neighbouring pixels of a warp.
            return cls(c, config, padded, _Axis(1, 1, False), rows, _Axis(tensor_core.PAIR, tensor_core.WARP_W, False))
        is_striped = config["arrangement"] == "striped"
        channels, pixels = (_Axis(config[f"tile_{axis}"], config[f"wg_{axis}"], is_striped) for axis in "ow")
        return cls(c, config, padded, channels, rows, pixels)

    @property
    def owned(self) -> tuple[int, int, int, int, int]:
        """Extents of (work-item along o, work-item of the pixels, own o, own h, own w)."""
        o, h, w = self.padded
        items = self.o.items, self.h.items * self.w.items
        return *items, o // self.o.items, h // self.h.items, w // self.w.items

    @property
    def reduced(self) -> list[int]:
        """Extents of the reduction axes. The last one is the lane of an input texel."""
        return list(self.c.reduce.values())

    @property
    def batch(self) -> list[int]:
        """Extent of the axis of the right operand that batches have, or nothing."""
        return [self.padded[1]] * self.c.is_batched

    def batch_index(self, h: Expr) -> list[Expr]:
        return [h] * self.c.is_batched

    def owner(self, o: Expr, h: Expr, w: Expr, lane: Expr) -> tuple[Expr, ...]:
        """Return the indices of an element by its work-item."""
        (item_o, own_o), (item_w, own_w) = self.o.split(o), self.w.split(w)
        if self.h.items == 1:
            return item_o, item_w, own_o, h, own_w, lane
        item_h, own_h = self.h.split(h)
        return item_o, item_h * self.w.items + item_w, own_o, own_h, own_w, lane

    def load_left(self, o: Expr, h: Expr, w: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        """Return an element of the left operand in memory."""
        # Reads outside of an image are safe, and their results are not stored.
        if not (self.c.is_image and self.c.is_padded):
            is_row_tiled = self.config["arrangement"] != "striped" and not tensor_core.is_mma(self.config)
            pair = tensor_core.pair_of_pixels(self.config, self.c)
            tiles = (1, self.config["tile_h"], self.config["tile_w"] if is_row_tiled else pair)
            o, h, w = map(_clamped, (o, h, w), self.c.extents, self.padded, tiles)
        return self.c.lhs(o, h, w, lane, *r)

    def load_own_left(self, item_o: Expr, item: Expr, o: Expr, h: Expr, w: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        """Return an element of the left operand in memory, indexed by its work-item."""
        if self.h.items > 1:
            item_h, item = item // self.w.items, item % self.w.items
            h = self.h.join(item_h, h)
        return self.load_left(self.o.join(item_o, o), h, self.w.join(item, w), lane, *r)

    def load_right(self, o: Expr, h: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        """Return an element of the right operand in memory."""
        # Weights are clamped in images, too: such reads need no sampler.
        extent, padded = self.c.extents[0], self.padded[0]
        pair = tensor_core.pair_of_weights(self.config, extent)
        inside = _clamped(o // pair, extent // pair, padded // pair, 1) * pair + o % pair
        return self.c.rhs(inside, lane, *r, *self.batch_index(h))


def _clamped(index: Expr, extent: int, padded: int, tile: int) -> Expr:
    """Return an index of a padded axis, clamped to the last valid one."""
    if padded == extent:
        return index
    if tile > 1 and extent % tile == 0:
        # A tile is inside or outside as a whole, so one comparison is enough.
        return te.min(index // tile, extent // tile - 1) * tile + index % tile
    return te.min(index, extent - 1)


def _left_operand(domain: _Domain) -> _Operand:
    """Return the left operand at (item_o, item_w, o, h, w, lane, *r), as the stages `patch` and `texels`."""
    c = domain.c
    *steps, lanes = domain.reduced
    texel, apart = c.texel or lanes, {} if c.lhs_vector else {APART: 1}
    if c.lhs_varies == "by lane":
        return domain.load_own_left
    if c.lhs_varies == "by texel":
        patch = te.compute(
            (*steps, *domain.owned, texel),
            lambda *i: domain.load_own_left(*i[-6:-1], 0, *i[:-6], i[-1]),
            name=Stage.PATCH,
            attrs=apart or None,
        )
        return lambda *i: patch[(*i[6:-1], *i[:5], i[-1])]
    shape = (*steps, domain.owned[1], *domain.owned[3:], texel)
    if domain.config["local"]:
        staged = _staged_left(domain, texel, apart)
        texels = te.compute(
            shape, lambda *i: staged[(*i[:-4], i[-3], domain.w.join(i[-4], i[-2]), i[-1])], name=Stage.TEXELS
        )
    else:
        texels = te.compute(
            shape,
            lambda *i: domain.load_own_left(0, i[-4], 0, i[-3], i[-2], 0, *i[:-4], i[-1]),
            name=Stage.PATCH,
            attrs=apart or None,
        )
    return lambda _item_o, item_w, _o, h, w, _lane, *r: texels[(*r[:-1], item_w, h, w, r[-1])]


def _staged_left(domain: _Domain, texel: int, apart: dict[str, int]) -> te.Tensor:
    """Return the left operand in local memory, as the stage `patch`."""
    *steps, _ = domain.reduced
    along = {ALONG_MEMORY: [*range(len(steps))]} if domain.c.lhs_neighbours == "reduction" else {}
    pairs = {IN_PAIRS: 1} if tensor_core.pair_of_pixels(domain.config, domain.c) > 1 else {}
    return te.compute(
        (*steps, *domain.padded[1:], texel),
        lambda *i: domain.load_left(0, *i[-3:-1], 0, *i[:-3], i[-1]),
        name=Stage.PATCH,
        attrs=along | apart | pairs or None,
    )


def _right_operand(domain: _Domain) -> _Operand:
    """Return the right operand at (item_o, o, h, lane, *r), as the stages `kernel` and `right`."""
    load = _staged_right(domain) if domain.config["local"] else domain.load_right
    if domain.c.rhs_vector != "reduction":
        return lambda item_o, o, h, lane, *r: load(domain.o.join(item_o, o), h, lane, *r)
    *steps, lanes = domain.reduced
    batch = domain.batch
    right = te.compute(
        (*batch, *steps, domain.o.items, domain.owned[2], LANES, lanes),
        lambda *i: load(domain.o.join(i[-4], i[-3]), i[0], i[-2], *i[len(batch) : -4], i[-1]),
        name=Stage.RIGHT,
    )
    return lambda item_o, o, h, lane, *r: right[(*domain.batch_index(h), *r[:-1], item_o, o, lane, r[-1])]


def _staged_right(domain: _Domain) -> _Operand:
    """Return the right operand in local memory at (o, h, lane, *r), as the stage `kernel`."""
    *steps, lanes = domain.reduced
    batch, o = domain.batch, domain.padded[0]
    if domain.c.rhs_vector == "reduction":
        kernel = te.compute(
            (*batch, *steps, o, LANES, lanes),
            lambda *i: domain.load_right(i[-3], i[0], i[-2], *i[len(batch) : -3], i[-1]),
            name=Stage.KERNEL,
            attrs={ALONG_MEMORY: [len(batch)]},
        )
        return lambda o, h, lane, *r: kernel[(*domain.batch_index(h), *r[:-1], o, lane, r[-1])]
    kernel = te.compute(
        (*batch, *steps, lanes, o, LANES),
        lambda *i: domain.load_right(i[-2], i[0], i[-1], *i[len(batch) : -2]),
        name=Stage.KERNEL,
        attrs={IN_PAIRS: 1} if tensor_core.pair_of_weights(domain.config, domain.c.extents[0]) > 1 else None,
    )
    return lambda o, h, lane, *r: kernel[(*domain.batch_index(h), *r, o, lane)]


def _sum_of_piece(domain: _Domain, product: _Operand) -> _Operand:
    """Return the sum of a piece of the reduction at (piece, item_o, item_w, o, h, w, lane).

    Mixed sums pass through the stage `block`.
    """
    first, *others = domain.reduced
    name, *names = domain.c.reduce
    pieces = domain.config["split_k"]
    share = first // pieces
    axes = [te.reduce_axis((0, extent), axis) for axis, extent in zip(names, others, strict=True)]
    if domain.config["accumulate"] != MIXED:
        step = te.reduce_axis((0, share), name)
        return lambda k, *i: te.sum(product(*i, k * share + step if pieces > 1 else step, *axes), axis=[step, *axes])
    size = math.gcd(steps_of_sum(domain.c), share)
    step = te.reduce_axis((0, size), name)
    block = te.compute(
        (first // size, *domain.owned, LANES),
        lambda b, *i: te.sum(product(*i, b * size + step, *axes), axis=[step, *axes]),
        name=Stage.BLOCK,
    )
    blocks = te.reduce_axis((0, share // size), BLOCKS)
    return lambda k, *i: te.sum(block[(k * (share // size) + blocks, *i)].astype(FP32), axis=blocks)


def _total(domain: _Domain, sum_of_piece: _Operand) -> te.Tensor:
    """Return the whole sum over the padded domain, as the stages `part` and `acc`, or `acc` and `tile`."""
    pieces, shape = domain.config["split_k"], (*domain.padded, LANES)
    if pieces == 1:
        acc = te.compute((*domain.owned, LANES), lambda *i: sum_of_piece(0, *i), name=Stage.ACC)
        return te.compute(shape, lambda *i: acc[domain.owner(*i)], name=Stage.TILE)
    part = te.compute((pieces, *domain.owned, LANES), lambda k, *i: sum_of_piece(k, *i), name=Stage.PART)
    piece = te.reduce_axis((0, pieces), "piece")
    return te.compute(shape, lambda *i: te.sum(part[(piece, *domain.owner(*i))], axis=piece), name=Stage.ACC)
