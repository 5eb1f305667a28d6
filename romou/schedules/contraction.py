"""The one shape that convolutions and dense layers share: a sum of products over channels packed by four.

    acc[o, h, w, lane] = sum over r of  lhs(o, h, w, lane, r) * rhs(o, lane, r)

`o` counts texels of output channels, (h, w) the pixels and r the reduction. A family says what `lhs` and `rhs` read; this
file turns that into stages over a padded domain, declares the knobs, and schedules the stages:

    work group    wg_w x wg_o [x split_k] work-items, each with a register tile of tile_o x tile_h x tile_w float4
    padded domain the register tile never needs a bounds check: indices are clamped to the last valid one, what is computed
                  beyond the edge is never stored (only the final store is guarded)
    local         the work group's share of lhs and rhs is staged in local memory, `local` texels of the reduction at a time
    arrangement   of the group's elements: "blocked", neighbouring pixels and channels belong to one work-item, which shares what their windows have
                  in common; "striped", they belong to neighbouring work-items, so that those of a warp read side by side
    split_k       the reduction is split over work-items, which add up their partial sums in local memory (paper, Section 5.3:
                  its answer to operators with few outputs and a long reduction)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tvm import s_tir, te, tirx

from romou.core.limits import Limits
from romou.core.space import Columns, Config, Space
from romou.schedules import tensor_core
from romou.schedules.loops import ALONG_MEMORY, Block, Loop, bind_threads, load_texels, loops_below, padded_texels, stage_in_local_memory, unroll_tile
from romou.schedules.stages import Stage
from romou.tir.places import Place
from romou.tir.primitives import LANES, autobroadcast, double_buffer, half_arithmetic, multiply_add, unroll_by_compiler

# float4 accumulators of one work-item beyond which every known GPU spills.
MAX_TILE = 32
# Turns of the reduction from which on local memory may be buffered twice.
_BUFFERED_TURNS = 3
# Choice of the knob `unroll`: the device's compiler writes out all that is summed up between two barriers, of so many products at most.
TURN, _MOST_UNROLLED = "turn", 2048
# Stages whose innermost axis is loaded into registers as one vector: where nothing is staged in local memory, and where something is.
_TEXELS, _STAGED_TEXELS = (Stage.PATCH, Stage.RIGHT), (Stage.TEXELS, Stage.RIGHT)
Expr: TypeAlias = "tirx.Expr | int"


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """What a family hands over.

    extents: (o, h, w) exact, in texels and pixels.
    reduce: name -> extent; the first one is the axis that `split_k` and `local` cut.
    lhs, rhs: expressions over (o, h, w, lane, *r) and (o, lane, *r); indices handed in are always inside the exact extents.
    is_batched: whether each row h has a right side of its own: then rhs is one over (o, lane, *r, h), and a tile has one row.
    lhs_varies: with the output channel: not at all, with the texel `o` that it is in (groups of whole texels), or with its lane too
        (depthwise); where it varies it is not worth staging in local memory.
    vector: whether the four lanes of a texel are neighbours in memory on both sides, so that one access loads them.
    rhs_vector: what are neighbours in memory on the right: the lanes of a texel; steps of the last reduction axis, which are then loaded together
        into registers as those of lhs are; or neither.
    lhs_neighbours: what are neighbours in memory on the left, beside the lanes of a texel: those of pixels, or of steps of the first reduction axis.
    texel: lanes of an input texel, which is loaded whole even where the last reduction axis takes fewer of them (an image of three channels).
    columns: of the right side in memory, where they do not fill their last texel.
    output: indices of the output buffer -> (o, h, w, lane).
    output_shape: of the buffer that the sum is written to, in single precision.
    is_image: whether the data lies in an image, where reads outside do no harm.
    """

    inputs: Sequence[te.Tensor]
    extents: tuple[int, int, int]
    reduce: Mapping[str, int]
    lhs: Callable[..., tirx.Expr]
    rhs: Callable[..., tirx.Expr]
    output: Callable[..., tuple[Expr, Expr, Expr, Expr]]
    output_shape: tuple[int, ...]
    lhs_varies: Literal["never", "by texel", "by lane"] = "never"
    vector: bool = True
    rhs_vector: Literal["lanes", "reduction", "none"] = "lanes"
    lhs_neighbours: Literal["pixels", "reduction"] = "pixels"
    texel: int | None = None
    columns: int | None = None
    is_image: bool = False
    is_batched: bool = False


def declare_knobs(space: Space, flat: Contraction, rows: Contraction, limits: Limits, dtype: str) -> None:
    """The knobs of every contraction, cut down to what this one's extents make different.

    `flat` and `rows` are the two ways to lay its pixels (equal where there is only one); the knob `pixels` tells which holds. The knobs
    `data`, `weight` and `output` are declared before: whether each lies in a buffer or in an image, whose texels are accessed whole.
    `dtype` is that of numbers in memory.
    """
    o, (reach_h, reach_w) = flat.extents[0], (max(c.extents[i] for c in (flat, rows)) for i in (1, 2))
    is_shared = flat.lhs_varies == "never"
    instruction = tensor_core.instruction(dtype, limits)
    has_mma = instruction is not None and not flat.is_batched and tensor_core.can_use(flat)
    first, *window = flat.reduce.values()
    space.define_knob("tile_o", [t for t in (1, 2, 4) if t <= o] if is_shared else [1])
    # Beside tensor cores, tiles that they do not take are few: every one would be looked at in all combinations.
    space.define_knob("tile_h", [t for t in (1, 2, 4) if t <= reach_h] if not has_mma and not flat.is_batched else [1])
    space.define_knob("tile_w", [t for t in ((1, 2, 3, 4, 7, 8) if not has_mma else (1, 2, 4, 8)) if t <= reach_w])
    space.define_knob("wg_o", [t for t in (1, 2, 4, 8, 16, 32, 64) if t < 2 * o or (has_mma and t == tensor_core.WARP_O)])
    space.define_knob("wg_w", [t for t in (1, 2, 4, 8, 16, 32, 64, 128) if t < 2 * reach_w or (has_mma and t == tensor_core.WARP_W)])
    space.define_knob("split_k", [k for k in (1, 2, 4, 8, 16, 32) if first % k == 0 or has_mma] if is_shared else [1])
    space.define_knob("arrangement", ["blocked", "striped"] if not has_mma else ["blocked"])
    can_stage = is_shared and flat.rhs_vector != "none"
    space.define_knob("local", [0] + [s for s in ((1, 2, 4, 8, 16) if not has_mma else (4, 8, 16)) if first % s == 0] if can_stage else [0])
    has_window = len(window) > 1 and math.prod(window[:-1]) > 1
    space.define_knob("unroll", ["lanes"] + ["window"] * has_window + [tensor_core.TAPS] * (has_window and has_mma) + [TURN] * (len(space.knobs["local"]) > 1))
    space.define_knob("vector_width", ([LANES, 2, 1] if not has_mma else [LANES]) if flat.vector else [1])
    # Where both factors are vectors already, or neither is one, nothing is broadcast.
    is_broadcast = limits.has_vector_arithmetic and flat.lhs_varies != "by lane" and flat.vector
    space.define_knob("autobroadcast", [True, False] if is_broadcast else [False])
    space.define_knob("multiply_add", ["mad", "fma", "plain"] if limits.has_vector_arithmetic else ["fma", *([instruction] if instruction and has_mma else [])])
    if instruction is not None:
        space.define_knob("steps", tensor_core.STEPS if has_mma else [1])
    # With two turns alone, half of all loads would be waited for as before.
    space.define_knob("local_buffers", [1, 2] if any(isinstance(s, int) and 0 < _BUFFERED_TURNS * s <= first for s in space.knobs["local"]) else [1])
    if has_mma:
        space.add_constraint(lambda config: tensor_core.is_allowed(config, flat))

    def is_allowed(config: Columns) -> Any:
        # With & and |: one config or columns of many. Comparisons with text give bool or array alike.
        is_rows = config.get("pixels", "flat") == "rows"
        o, h, w = (flat_extent + is_rows * (extent - flat_extent) for flat_extent, extent in zip(flat.extents, rows.extents, strict=True))
        tile = config["tile_o"] * config["tile_h"] * config["tile_w"]
        group_o, group_w, split = config["wg_o"] * config["tile_o"], config["wg_w"] * config["tile_w"], config["split_k"]
        is_stored_whole = config["output"] == Place.IMAGE
        is_mma = tensor_core.is_mma(config)
        has_image = (config["data"] == Place.IMAGE) | (config["weight"] == Place.IMAGE) | is_stored_whole
        is_dense = ((config["tile_o"] == 1) | (config["wg_o"] == 1)) & ((config["tile_w"] == 1) | (config["wg_w"] == 1))
        steps = config["local"] * math.prod(window)
        is_turn = (steps > window[-1]) & (steps * tile * LANES <= _MOST_UNROLLED) & (is_mma == False)  # noqa: E712  as above
        # The final sum deals the tile's elements out to the split, evenly; TVM proves that only for powers of two.
        most = tile * (LANES - (LANES - 1) * is_stored_whole)
        return (
            config["tile_h"] <= h,
            config["tile_w"] <= w,
            tile <= MAX_TILE,
            # Where both arrangements are the same, there is one.
            (config["arrangement"] == "blocked") | (is_dense == False),  # noqa: E712  `not` does not judge columns
            (config["vector_width"] == LANES) | (has_image == False),  # noqa: E712  `not` does not judge columns
            config["wg_o"] * config["wg_w"] * split <= limits.max_work_group_size,
            # A group more than twice as large as the whole operator computes mostly padding.
            (config["wg_o"] == 1 + 7 * is_mma) | (group_o < 2 * o),
            (config["wg_w"] == 1 + 3 * is_mma) | (group_w < 2 * w),
            (split == 1) | ((config["local"] == 0) & (tile & (tile - 1) == 0) & (split <= most)),
            (config["local_buffers"] == 1) | ((config["local"] > 0) & (config["local"] * _BUFFERED_TURNS <= first) & (is_mma == False)),  # noqa: E712  as above
            (config["unroll"] != TURN) | is_turn,
            local_bytes(config, flat) <= limits.local_memory_bytes,
        )

    space.add_constraint(is_allowed)


def local_bytes(config: Columns, c: Contraction) -> Any:
    """Local memory of a work group in bytes, for one config or columns of many; numbers are single precision there, but for half arithmetic
    and what tensor cores read."""
    group_o, group_w = config["wg_o"] * config["tile_o"], config["wg_w"] * config["tile_w"] * config["tile_h"]
    number = number_bytes(config)
    partial = number * (config["split_k"] > 1) * config["split_k"] * group_o * group_w * LANES
    *window, lanes = list(c.reduce.values())[1:]
    local, is_mma = config["local"], tensor_core.is_mma(config)
    patch, kernel = math.prod(window) * group_w, math.prod(window) * LANES * group_o
    # What runs along memory is padded.
    if c.lhs_neighbours == "reduction":
        patch = padded_texels(patch, (c.texel or lanes) * number, local)
    if c.rhs_vector == "reduction":
        kernel = padded_texels(kernel, lanes * number, local)
    by_itself = number * config["local_buffers"] * local * ((c.texel or lanes) * patch + lanes * kernel)
    # Where no config has tensor cores, nothing depends on their knobs.
    return partial + (by_itself if is_mma is False else by_itself + is_mma * (tensor_core.staged_bytes(config) - by_itself))


def number_bytes(config: Columns) -> Any:
    """Of a number that is computed with."""
    return 4 - 2 * (config["accumulate"] == "float16")


def default_config(space: Space, flat: Contraction, rows: Contraction, limits: Limits) -> Config:
    """A config that is decent on any GPU: a 1x4 register tile, about 64 work-items, nothing staged in local memory.

    Operators with few outputs leave most of a large GPU idle: for them the reduction is split, then the tile made smaller, until the
    device is busy.
    """
    wanted: dict[str, Any] = {
        "tile_o": 1,
        "tile_h": 1,
        "tile_w": 4,
        "wg_o": 8,
        "wg_w": 8,
        "split_k": 1,
        "arrangement": "blocked",
        "local": 0,
        "unroll": "lanes",
        "vector_width": 4,
        "autobroadcast": True,
        "multiply_add": "mad",
        "steps": 1,
        "accumulate": "float32",
        "local_buffers": 1,
        **dict.fromkeys(("data", "weight", "output"), (Place.IMAGE if limits.prefers_images else Place.BUFFER).value),
    }
    wanted["pixels"] = "rows" if _at_most(space.knobs["data"], wanted["data"]) == Place.IMAGE else "flat"
    contraction = rows if wanted["pixels"] == "rows" else flat
    config = Config({name: _at_most(choices, wanted[name]) for name, choices in space.knobs.items()})
    while not space.is_valid(config):
        # Too large for a small operator: halve the larger side of the group, then the tile.
        name = max(("wg_w", "wg_o", "tile_w"), key=lambda n: config[n])
        smaller = [c for c in space.knobs[name] if isinstance(c, int) and c < config[name]]
        if not smaller:
            break
        config = config.replace(**{name: max(smaller)})
    config = _fit_group(space, contraction, config, limits.warp_size)
    share = next(iter(contraction.reduce.values()))
    # A split below four steps costs more in the final sum than it brings.
    for split in [k for k in space.knobs["split_k"] if isinstance(k, int) and 1 < k <= share // 4]:
        # The group keeps its size: what the split adds, its other sides give.
        candidate = config.replace(split_k=split, wg_o=_at_most(space.knobs["wg_o"], max(1, 16 // split)))
        if _work_items(contraction, config) < limits.busy_work_items and space.is_valid(candidate):
            config = candidate
    for tile_w in (2, 1):
        candidate = config.replace(tile_w=_at_most(space.knobs["tile_w"], tile_w))
        if _work_items(contraction, config) < limits.busy_work_items and space.is_valid(candidate):
            config = candidate
    return tensor_core.default_config(space, contraction, config, limits)


def _fit_group(space: Space, contraction: Contraction, config: Config, warp_size: int) -> Config:
    """The largest group, and of those the widest, that leaves little undone beyond the ends of rows and channels and in a warp that it
    does not fill."""
    o, _, w = contraction.extents
    size = config["wg_o"] * config["wg_w"]
    computed = {}
    for wide, high in itertools.product(space.knobs["wg_w"], space.knobs["wg_o"]):
        shape = config.replace(wg_w=wide, wg_o=high)
        group = shape["wg_o"] * shape["wg_w"]
        if shape["wg_w"] <= config["wg_w"] and group <= size and space.is_valid(shape):
            padded = _padded(o, shape["wg_o"] * shape["tile_o"]) * _padded(w, shape["wg_w"] * shape["tile_w"])
            computed[shape] = padded * _padded(group, warp_size) / group
    enough = [shape for shape, cost in computed.items() if cost <= 1.1 * min(computed.values())]
    return max(enough, key=lambda c: (c["wg_o"] * c["wg_w"], c["wg_w"]), default=config)


def _at_most(choices: Sequence[Any], wanted: Any) -> Any:
    """`wanted` if it is a choice, else the largest one below it, else the first."""
    if wanted in choices:
        return wanted
    smaller = [c for c in choices if isinstance(c, int) and isinstance(wanted, int) and c < wanted]
    return max(smaller) if smaller else choices[0]


def _work_items(contraction: Contraction, config: Config) -> int:
    o, h, w = contraction.extents
    tiles = -(-o // config["tile_o"]) * -(-h // config["tile_h"]) * -(-w // config["tile_w"])
    return int(tiles * config["split_k"])


def _padded(extent: int, tile: int) -> int:
    return -(-extent // tile) * tile


@dataclass(frozen=True)
class _Axis:
    """An axis of which every group has `tile` elements for each of its `items` work-items: an element is known by its work-item in the group and by
    its place among those that the work-items with that number hold."""

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
    """Stages over a domain padded to whole work groups: [patch, texels, kernel, right,] acc, tile | part, acc; and last `name`, without the padding, in
    `dtype`.

    What a work-item has for itself is indexed by the work-item first, so that its register tile is dense whatever the arrangement.
    """
    o, h, w = c.extents
    domain = (
        _padded(o, config["wg_o"] * config["tile_o"]),
        _padded(h, config["tile_h"]),
        _padded(w, config["wg_w"] * config["tile_w"]),
    )

    def clamp(is_image: bool, index: Expr, extent: int, padded: int) -> Expr:
        # What is read outside of an image is nobody's memory, and what is computed from it is not stored.
        return index if is_image or padded == extent else te.min(index, extent - 1)

    def lhs(oo: Expr, hh: Expr, ww: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        inside = (clamp(c.is_image, i, e, p) for i, e, p in zip((oo, hh, ww), c.extents, domain, strict=True))
        return c.lhs(*inside, lane, *r)

    def rhs(oo: Expr, hh: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        pair = tensor_core.pair_of_weights(config, o)
        inside = clamp(config["weight"] == Place.IMAGE, oo // pair, o // pair, domain[0] // pair) * pair + oo % pair
        return c.rhs(inside, lane, *r, *([hh] if c.is_batched else []))

    names, extents = list(c.reduce), list(c.reduce.values())
    axis_o, axis_w = _axes(config)
    owned = (axis_o.items, axis_w.items, domain[0] // axis_o.items, domain[1], domain[2] // axis_w.items)

    def left(item_o: Expr, item_w: Expr, o: Expr, h: Expr, w: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        return lhs(axis_o.join(item_o, o), h, axis_w.join(item_w, w), lane, *r)

    # The last reduction axis is the lane of an input texel: innermost, so that a texel is one vector load.
    whole = c.texel or extents[-1]
    if c.lhs_varies == "by texel":
        patch = te.compute((*extents[:-1], *owned, whole), lambda *i: left(*i[-6:-1], 0, *i[:-6], i[-1]), name=Stage.PATCH)
        factor = lambda *i: patch[(*i[6:-1], *i[:5], i[-1])]
    elif c.lhs_varies == "never":
        shape = (*extents[:-1], axis_w.items, *owned[3:], whole)
        if config["local"]:
            along = {ALONG_MEMORY: 0} if c.lhs_neighbours == "reduction" and not tensor_core.is_mma(config) else None
            patch = te.compute((*extents[:-1], *domain[1:], whole), lambda *i: lhs(0, *i[-3:-1], 0, *i[:-3], i[-1]), name=Stage.PATCH, attrs=along)
            texels = te.compute(shape, lambda *i: patch[(*i[:-4], i[-3], axis_w.join(i[-4], i[-2]), i[-1])], name=Stage.TEXELS)
        else:
            texels = te.compute(shape, lambda *i: left(0, i[-4], 0, i[-3], i[-2], 0, *i[:-4], i[-1]), name=Stage.PATCH)
        factor = lambda _item_o, item_w, _o, h, w, _lane, *r: texels[(*r[:-1], item_w, h, w, r[-1])]
    else:
        factor = left
    right, rows = rhs, [domain[1]] * c.is_batched
    has_steps = c.rhs_vector == "reduction"
    if config["local"] and has_steps:
        shape, along = (*rows, *extents[:-1], domain[0], LANES, extents[-1]), {ALONG_MEMORY: len(rows)}
        kernel = te.compute(shape, lambda *i: rhs(i[-3], i[0], i[-2], *i[len(rows) : -3], i[-1]), name=Stage.KERNEL, attrs=along)
        right = lambda o, h, lane, *r: kernel[(*[h] * c.is_batched, *r[:-1], o, lane, r[-1])]
    elif config["local"]:
        kernel = te.compute((*rows, *extents, domain[0], LANES), lambda *i: rhs(i[-2], i[0], i[-1], *i[len(rows) : -2]), name=Stage.KERNEL)
        right = lambda o, h, lane, *r: kernel[(*[h] * c.is_batched, *r, o, lane)]
    own_right = lambda item_o, o, h, lane, *r: right(axis_o.join(item_o, o), h, lane, *r)
    if has_steps:
        shape = (*rows, *extents[:-1], axis_o.items, owned[2], LANES, extents[-1])
        steps = te.compute(shape, lambda *i: right(axis_o.join(i[-4], i[-3]), i[0], i[-2], *i[len(rows) : -4], i[-1]), name=Stage.RIGHT)
        own_right = lambda item_o, o, h, lane, *r: steps[(*[h] * c.is_batched, *r[:-1], item_o, o, lane, r[-1])]

    def product(item_o: Expr, item_w: Expr, o: Expr, h: Expr, w: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
        weight = own_right(item_o, o, h, lane, *r)
        return factor(item_o, item_w, o, h, w, lane, *r).astype(config["accumulate"]) * weight.astype(config["accumulate"])

    pieces = config["split_k"]
    share = extents[0] // pieces
    axes = [te.reduce_axis((0, e), n) for n, e in zip(names, [share, *extents[1:]], strict=True)]

    def of_item(o: Expr, h: Expr, w: Expr, lane: Expr) -> tuple[Expr, ...]:
        (item_o, own_o), (item_w, own_w) = axis_o.split(o), axis_w.split(w)
        return item_o, item_w, own_o, h, own_w, lane

    if pieces > 1:
        part = te.compute((pieces, *owned, LANES), lambda k, *i: te.sum(product(*i, k * share + axes[0], *axes[1:]), axis=axes), name=Stage.PART)
        piece = te.reduce_axis((0, pieces), "piece")
        tile = te.compute((*domain, LANES), lambda *i: te.sum(part[(piece, *of_item(*i))], axis=piece), name=Stage.ACC)
    else:
        acc = te.compute((*owned, LANES), lambda *i: te.sum(product(*i, *axes), axis=axes), name=Stage.ACC)
        tile = te.compute((*domain, LANES), lambda *i: acc[of_item(*i)], name=Stage.TILE)
    return te.compute(c.output_shape, lambda *i: tile[c.output(*i)].astype(dtype), name=name)


def schedule_stages(sch: s_tir.Schedule, loops: Sequence[Loop], reduce_names: Sequence[str], config: Config, *, has_whole_texels: bool = True) -> None:
    """Tile the output nest whose `loops` are (o, h, w, lane) and pull the stages of `build_stages` into it.

    `has_whole_texels`: whether the output's lanes are stored together; else each is guarded, and stored, by itself.
    """
    store = config if has_whole_texels else config.replace(vector_width=1)
    o, h, w, lane = loops
    if config["arrangement"] == "striped":
        block_o, tile_o, thread_o = sch.split(o, [None, config["tile_o"], config["wg_o"]])
        block_w, tile_w, thread_w = sch.split(w, [None, config["tile_w"], config["wg_w"]])
    else:
        block_o, thread_o, tile_o = sch.split(o, [None, config["wg_o"], config["tile_o"]])
        block_w, thread_w, tile_w = sch.split(w, [None, config["wg_w"], config["tile_w"]])
    block_h, tile_h = sch.split(h, [None, config["tile_h"]])
    sch.reorder(block_o, block_h, block_w, thread_o, thread_w, tile_o, tile_h, tile_w, lane)
    # OpenCL and CUDA allow long grids in x alone: the pixels go there. Fusing with a unit loop would leave a modulo behind.
    grid_x = sch.fuse(block_h, block_w) if int(sch.get(block_h).extent) > 1 else block_w
    sch.bind(block_o, "blockIdx.y")
    sch.bind(grid_x, "blockIdx.x")
    bind_threads(sch, thread_o, thread_w)
    if config["split_k"] > 1:
        _schedule_split(sch, grid_x, [tile_o, tile_h, tile_w, lane], config, store)
        return
    acc = sch.get_sblock(Stage.ACC)
    # TVM sees which registers a group needs as long as nothing is cropped.
    tile = sch.get_sblock(Stage.TILE)
    sch.compute_at(tile, grid_x, preserve_unit_loops=True)
    sch.compute_at(acc, grid_x, preserve_unit_loops=True)
    sch.compute_inline(tile)
    sch.set_scope(acc, 0, "local")
    spatial, reduction = _bind_items(sch, loops_below(sch, acc, grid_x))
    if config["local"]:
        outer, inner = sch.split(reduction[0], [None, config["local"]])
        sch.reorder(outer, inner, *reduction[1:], *spatial)
        for block in _stages_of(sch, _STAGED_TEXELS):
            load_texels(sch, block, reduction[-2] if len(reduction) > 2 else inner)
        for block in _stages_of(sch, (Stage.PATCH, Stage.KERNEL)):
            stage_in_local_memory(sch, block, outer, config["wg_o"], config["wg_w"], int(number_bytes(config)))
        if config["unroll"] == TURN:
            for loop in (loop for loop in (inner, *reduction[1:-1]) if int(sch.get(loop).extent) > 1):
                unroll_by_compiler(sch, loop)
        if config["local_buffers"] > 1:
            double_buffer(sch, outer)
        first, reduction = outer, [inner, *reduction[1:]]
    else:
        sch.reorder(*reduction, *spatial)
        for block in _stages_of(sch, _TEXELS):
            load_texels(sch, block, reduction[-2])
        first = reduction[0]
    _unroll_inner(sch, spatial, reduction, config)
    _spell_arithmetic(sch, acc, config)
    init = sch.decompose_reduction(acc, first)
    unroll_tile(sch, sch.get_loops(init)[-len(spatial) :], config["vector_width"])
    unroll_tile(sch, [tile_o, tile_h, tile_w, lane], store["vector_width"])
    # Registers are a work-item's own: they need no index that tells whose they are.
    sch.transform_layout(acc, ("write", 0), lambda _item_o, _item_w, *own: own, assume_injective_transform=True)


def _spell_arithmetic(sch: s_tir.Schedule, block: Block, config: Config) -> None:
    if config["autobroadcast"]:
        autobroadcast(sch, block)
    if config["multiply_add"] != "plain":
        multiply_add(sch, block, config["multiply_add"])
    if config["accumulate"] == "float16":
        half_arithmetic(sch, block)


def _bind_items(sch: s_tir.Schedule, loops: Sequence) -> tuple[Sequence, Sequence]:
    """Bind the loops over the work-items of a group; returns those of a work-item's tile and those of the reduction."""
    item_o, item_w, *own = loops
    bind_threads(sch, item_o, item_w)
    return own[:4], own[4:]


def _unroll_inner(sch: s_tir.Schedule, spatial: Sequence, reduction: Sequence, config: Config) -> None:
    """Unroll the register tile, the lanes of the reduction, and on request the window."""
    if len(reduction) > 1:
        sch.unroll(reduction[-1])
    if config["unroll"] == "window":
        for loop in reduction[1:-1]:
            sch.unroll(loop)
    unroll_tile(sch, spatial, config["vector_width"])


def _stages_of(sch: s_tir.Schedule, names: Sequence[str]) -> list[Block]:
    return [b for b in sch.get_child_blocks(sch.get_sblock("root")) if sch.get(b).name_hint in names]


def _schedule_split(sch: s_tir.Schedule, group: Loop, tile: Sequence[Loop], config: Config, store: Config) -> None:
    """part: every work-item sums its share in registers and leaves it in local memory; acc: the group adds the shares up."""
    # TVM sees which shares a group needs as long as nothing is cropped.
    part, total = sch.get_sblock(Stage.PART), sch.get_sblock(Stage.ACC)
    sch.compute_at(total, group, preserve_unit_loops=True)
    sch.set_scope(part, 0, "shared")
    sch.compute_at(part, group, preserve_unit_loops=True)
    # Whole texels while there is one for each work-item of the split, single lanes beyond that.
    texels = config["tile_o"] * config["tile_h"] * config["tile_w"]
    has_texels = texels >= config["split_k"]
    share = sch.fuse(*(tile[:-1] if has_texels else tile))
    outer, thread_k = sch.split(share, [None, config["split_k"]])
    sch.bind(thread_k, "threadIdx.z")
    sch.compute_at(total, thread_k, preserve_unit_loops=True)
    sch.set_scope(total, 0, "local")
    piece = sch.get_loops(total)[-1]
    spatial = sch.get_loops(total)[-2]
    sch.reorder(piece, spatial)
    sch.unroll(piece)
    if has_texels:
        unroll_tile(sch, [spatial], config["vector_width"])
    init = sch.decompose_reduction(total, piece)
    sch.unroll(outer)
    if has_texels:
        unroll_tile(sch, [sch.get_loops(init)[-1]], config["vector_width"])
        unroll_tile(sch, [tile[-1]], store["vector_width"])

    k, *loops = loops_below(sch, part, group)
    spatial, reduction = _bind_items(sch, loops)
    sch.bind(k, "threadIdx.z")
    sch.reorder(*reduction, *spatial)
    for block in _stages_of(sch, _TEXELS):
        load_texels(sch, block, reduction[-2])
    registers = sch.cache_write(part, 0, "local")
    sch.reverse_compute_at(registers, loops[1], preserve_unit_loops=True)
    _unroll_inner(sch, spatial, reduction, config)
    _spell_arithmetic(sch, part, config)
    init = sch.decompose_reduction(part, reduction[0])
    unroll_tile(sch, sch.get_loops(init)[-4:], config["vector_width"])
    unroll_tile(sch, sch.get_loops(registers)[-4:], config["vector_width"])
