"""A contraction as stages over a domain that is padded to whole work groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tvm import te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.form import Contraction, Expr, round_up
from romou.compiler.operators.contraction.knobs import FP16, FP32, MIXED, steps_of_sum
from romou.compiler.scheduling.loops import ALONG_MEMORY, APART
from romou.compiler.tir.primitives import LANES


class Stage(str, Enum):
    """A stage; its value is the name of its TIR block, which kernels show.

        data -> patch -> texels ─┐
                                 ├─> [block ->] acc -> tile -> crop             one work-item sums a whole reduction
        weight -> kernel -> right┘
                                 └─> [block ->] part -> acc -> crop             `split_k` work-items share one

    patch: the data that is staged in local memory, or loaded into registers where nothing is staged.
    texels: what of it is in registers.
    kernel: the weight that is staged in local memory.
    right: what of it is loaded into registers several reduction steps at a time.
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

    # Messages, records and kernels show the word alone.
    __str__, __repr__ = str.__str__, str.__repr__


@dataclass(frozen=True)
class _Axis:
    """An axis of which every group has `tile` elements for each of its `items` work-items: an element is known by its
    work-item in the group and by its place among those that the work-items with that number hold.
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


def _axes(config: Config) -> tuple[_Axis, _Axis]:
    """Output channels and pixels of a row."""
    if tensor_core.is_mma(config):
        # What an instruction takes of a warp's pixels lies side by side.
        return _Axis(1, 1, False), _Axis(tensor_core.PAIR, tensor_core.WARP_W, False)
    is_striped = config["arrangement"] == "striped"
    return _Axis(config["tile_o"], config["wg_o"], is_striped), _Axis(config["tile_w"], config["wg_w"], is_striped)


def build_stages(c: Contraction, config: Config) -> tirx.PrimFunc:
    """The contraction as a function of its inputs, over which the stages of `contract` stand."""
    return te.create_prim_func([*c.inputs, contract(c, config)])


def contract(c: Contraction, config: Config, *, name: str = Stage.CROP, dtype: str = "float32") -> te.Tensor:
    """Stages over a domain padded to whole work groups: [patch, texels, kernel, right,] acc, tile | part, acc; and last
    `name`, without the padding, in `dtype`.

    What a work-item has for itself is indexed by the work-item first, so that its register tile is dense whatever the
    arrangement.
    """
    o, h, w = c.extents
    domain = (
        round_up(o, config["wg_o"] * config["tile_o"]),
        round_up(h, config["tile_h"]),
        round_up(w, config["wg_w"] * config["tile_w"]),
    )

    def clamp(index: Expr, extent: int, padded: int, tile: int = 1) -> Expr:
        if padded == extent:
            return index
        # A tile is inside or outside as a whole where its size divides the extent: then one comparison is enough.
        return (
            te.min(index // tile, extent // tile - 1) * tile + index % tile
            if tile > 1 and extent % tile == 0
            else te.min(index, extent - 1)
        )

    # Neighbours of a tile that lie side by side.
    tile_w = 1 if config["arrangement"] == "striped" or tensor_core.is_mma(config) else config["tile_w"]

    def lhs(oo: Expr, hh: Expr, ww: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        # What is read outside of an image is nobody's memory, and what is computed from it is not stored.
        if not (c.is_image and c.is_padded):
            tiles = (1, config["tile_h"], tile_w)
            oo, hh, ww = (clamp(*of_axis) for of_axis in zip((oo, hh, ww), c.extents, domain, tiles, strict=True))
        return c.lhs(oo, hh, ww, lane, *r)

    def rhs(oo: Expr, hh: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        pair = tensor_core.pair_of_weights(config, o)
        # Weights are read inside even where they lie in an image: without a sampler.
        inside = clamp(oo // pair, o // pair, domain[0] // pair) * pair + oo % pair
        return c.rhs(inside, lane, *r, *([hh] if c.is_batched else []))

    names, extents = list(c.reduce), list(c.reduce.values())
    axis_o, axis_w = _axes(config)
    owned = (axis_o.items, axis_w.items, domain[0] // axis_o.items, domain[1], domain[2] // axis_w.items)

    def left(item_o: Expr, item_w: Expr, o: Expr, h: Expr, w: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        return lhs(axis_o.join(item_o, o), h, axis_w.join(item_w, w), lane, *r)

    # The last reduction axis is the lane of an input texel: innermost, so that a texel is one vector load.
    whole = c.texel or extents[-1]
    apart = {} if c.lhs_vector else {APART: 1}
    if c.lhs_varies == "by texel":
        patch = te.compute(
            (*extents[:-1], *owned, whole),
            lambda *i: left(*i[-6:-1], 0, *i[:-6], i[-1]),
            name=Stage.PATCH,
            attrs=apart or None,
        )
        factor: Callable[..., Any] = lambda *i: patch[(*i[6:-1], *i[:5], i[-1])]
    elif c.lhs_varies == "never":
        shape = (*extents[:-1], axis_w.items, *owned[3:], whole)
        if config["local"]:
            along = {ALONG_MEMORY: 0} if c.lhs_neighbours == "reduction" and not tensor_core.is_mma(config) else {}
            shared = {**along, **apart} or None
            patch = te.compute(
                (*extents[:-1], *domain[1:], whole),
                lambda *i: lhs(0, *i[-3:-1], 0, *i[:-3], i[-1]),
                name=Stage.PATCH,
                attrs=shared,
            )
            texels = te.compute(
                shape, lambda *i: patch[(*i[:-4], i[-3], axis_w.join(i[-4], i[-2]), i[-1])], name=Stage.TEXELS
            )
        else:
            texels = te.compute(
                shape,
                lambda *i: left(0, i[-4], 0, i[-3], i[-2], 0, *i[:-4], i[-1]),
                name=Stage.PATCH,
                attrs=apart or None,
            )
        factor = lambda _item_o, item_w, _o, h, w, _lane, *r: texels[(*r[:-1], item_w, h, w, r[-1])]
    else:
        factor = left
    right: Callable[..., Any] = rhs
    rows = [domain[1]] * c.is_batched
    has_steps = c.rhs_vector == "reduction"
    if config["local"] and has_steps:
        shape, along = (*rows, *extents[:-1], domain[0], LANES, extents[-1]), {ALONG_MEMORY: len(rows)}
        kernel = te.compute(
            shape, lambda *i: rhs(i[-3], i[0], i[-2], *i[len(rows) : -3], i[-1]), name=Stage.KERNEL, attrs=along
        )
        right = lambda o, h, lane, *r: kernel[(*[h] * c.is_batched, *r[:-1], o, lane, r[-1])]
    elif config["local"]:
        kernel = te.compute(
            (*rows, *extents, domain[0], LANES),
            lambda *i: rhs(i[-2], i[0], i[-1], *i[len(rows) : -2]),
            name=Stage.KERNEL,
        )
        right = lambda o, h, lane, *r: kernel[(*[h] * c.is_batched, *r, o, lane)]
    own_right: Callable[..., Any] = lambda item_o, o, h, lane, *r: right(axis_o.join(item_o, o), h, lane, *r)
    if has_steps:
        shape = (*rows, *extents[:-1], axis_o.items, owned[2], LANES, extents[-1])
        steps = te.compute(
            shape, lambda *i: right(axis_o.join(i[-4], i[-3]), i[0], i[-2], *i[len(rows) : -4], i[-1]), name=Stage.RIGHT
        )
        own_right = lambda item_o, o, h, lane, *r: steps[(*[h] * c.is_batched, *r[:-1], item_o, o, lane, r[-1])]

    def product(item_o: Expr, item_w: Expr, o: Expr, h: Expr, w: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        weight = own_right(item_o, o, h, lane, *r)
        return factor(item_o, item_w, o, h, w, lane, *r).astype(number) * weight.astype(number)

    number = FP32 if config["accumulate"] == FP32 else FP16
    pieces = config["split_k"]
    share = extents[0] // pieces
    axes = [te.reduce_axis((0, e), n) for n, e in zip(names, [share, *extents[1:]], strict=True)]
    summed: Callable[..., Any] = lambda k, *i: te.sum(
        product(*i, k * share + axes[0] if pieces > 1 else axes[0], *axes[1:]), axis=axes
    )
    if config["accumulate"] == MIXED:
        steps_of_block = math.gcd(steps_of_sum(c), share)
        inner = [te.reduce_axis((0, steps_of_block), names[0]), *axes[1:]]
        block = te.compute(
            (extents[0] // steps_of_block, *owned, LANES),
            lambda b, *i: te.sum(product(*i, b * steps_of_block + inner[0], *inner[1:]), axis=inner),
            name=Stage.BLOCK,
        )
        blocks = te.reduce_axis((0, share // steps_of_block), "blocks")
        summed = lambda k, *i: te.sum(block[(k * (share // steps_of_block) + blocks, *i)].astype(FP32), axis=blocks)

    def of_item(o: Expr, h: Expr, w: Expr, lane: Expr) -> tuple[Expr, ...]:
        (item_o, own_o), (item_w, own_w) = axis_o.split(o), axis_w.split(w)
        return item_o, item_w, own_o, h, own_w, lane

    if pieces > 1:
        part = te.compute((pieces, *owned, LANES), summed, name=Stage.PART)
        piece = te.reduce_axis((0, pieces), "piece")
        tile = te.compute((*domain, LANES), lambda *i: te.sum(part[(piece, *of_item(*i))], axis=piece), name=Stage.ACC)
    else:
        acc = te.compute((*owned, LANES), lambda *i: summed(0, *i), name=Stage.ACC)
        tile = te.compute((*domain, LANES), lambda *i: acc[of_item(*i)], name=Stage.TILE)
    return te.compute(c.output_shape, lambda *i: tile[c.output(*i)].astype(dtype), name=name)
