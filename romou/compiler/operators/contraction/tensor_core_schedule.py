"""The schedule of a contraction's stages for tensor cores: the work of each warp and of its work-items."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir

from romou.base.space import Config
from romou.compiler.operators.contraction.stages import Stage
from romou.compiler.operators.contraction.tensor_core import (
    APART_BYTES,
    GROUP,
    LINE_BYTES,
    PAIR,
    TAPS,
    TF32X3,
    WARP_O,
    WARP_W,
    number_bytes,
)
from romou.compiler.scheduling.loops import Block, Loop, bind_threads, loops_below, stage_in_local_memory, unroll_tile
from romou.compiler.tir.primitives import LANES, tensor_cores


def schedule_stages(
    sch: s_tir.Schedule,
    loops: Sequence[Loop],
    reduce_names: Sequence[str],
    config: Config,
    *,
    has_whole_texels: bool = True,
) -> None:
    """Schedule the stages of a contraction that `regroup` has cut for tensor cores.

    loops: (o, h, w, lane) of the output.
    has_whole_texels: whether the output's lanes are stored together.
    """
    width = LANES if has_whole_texels else 1
    o, h, w, lane = loops
    block_o, warp_o, g, tile_o = sch.split(o, [None, config["wg_o"] // WARP_O, WARP_O, config["tile_o"]])
    block_w, warp_w, pair, t, pixel = sch.split(
        w, [None, config["wg_w"] // WARP_W, config["tile_w"] // PAIR, WARP_W, PAIR]
    )
    sch.reorder(block_o, h, block_w, warp_o, warp_w, g, t, tile_o, pair, pixel, lane)
    grid = sch.fuse(h, block_w) if int(sch.get(h).extent) > 1 else block_w
    sch.bind(block_o, "blockIdx.y")
    sch.bind(grid, "blockIdx.x")
    is_split = config["split_k"] > 1
    # Before the crop is inlined, TVM sees which sums a group needs.
    total, sums = (sch.get_sblock(name) for name in ((Stage.ACC, Stage.PART) if is_split else (Stage.TILE, Stage.ACC)))
    sch.compute_at(total, grid, preserve_unit_loops=True)
    sch.compute_at(sums, grid, preserve_unit_loops=True)
    if is_split:
        _sum_pieces(sch, total, (warp_o, warp_w, g, t), (tile_o, pair, pixel, lane), config, width)
    else:
        sch.compute_inline(total)
        bind_threads(sch, sch.fuse(warp_o, warp_w, g), t)
        unroll_tile(sch, (tile_o, pair, pixel, lane), width)
    _deal_out(sch, sums, grid, config)
    *reduction, _o, _h, _w, _lane = sch.get_loops(sums)[-len(reduce_names) - 4 :]
    *_, group, _ilane = reduction
    outer = _stage_operands(sch, reduction, config) if config["local"] else _order_taps(sch, reduction, config)
    tensor_cores(sch, group, config["steps"], splits_floats=config["multiply_add"] == TF32X3)
    init = sch.decompose_reduction(sums, outer)
    unroll_tile(sch, sch.get_loops(init)[-4:])
    if not is_split:
        # Registers belong to a work-item, so they need no index of it.
        sch.transform_layout(sums, ("write", 0), lambda _item_o, _item_w, *own: own, assume_injective_transform=True)


def _stage_operands(sch: s_tir.Schedule, reduction: Sequence[Loop], config: Config) -> Loop:
    """Copy operands into local memory ahead of their use, tap by tap. Return the loop over iterations.

    Tap by tap, because little of a whole window would fit.
    """
    first, *window, group, _ = reduction
    outer, inner = sch.split(first, [None, config["local"] // GROUP])
    sch.reorder(outer, *window, inner, group)
    outer = sch.fuse(outer, *window)
    sch.compute_inline(sch.get_sblock(Stage.TEXELS))
    number = number_bytes(config)
    for name in (Stage.PATCH, Stage.KERNEL):
        block = sch.get_sblock(name)
        stage_in_local_memory(sch, block, outer, config["wg_o"] * config["wg_w"] // WARP_W, WARP_W, None)
        sch.unroll(loops_below(sch, block, outer)[0])
        # The four texels that a warp reads at once: (..., texel, row, pixel, lane), (..., texel, lane, channel, lane).
        axis = len(sch.get(block).writes[0].source.shape) - 4
        sch.storage_align(block, 0, axis, LINE_BYTES // number, APART_BYTES // number)
    sch.unroll(inner)
    for key, value in (("stage", [0, 0, config["steps"]]), ("order", [0, 1, 2]), ("async_stages", [0])):
        sch.annotate(outer, f"software_pipeline_{key}", value)
    return outer


def _order_taps(sch: s_tir.Schedule, reduction: Sequence[Loop], config: Config) -> Loop:
    """Order the loops of a reduction that reads its operands from memory. Return the outermost one."""
    first, *window, group, _ = reduction
    outer, inner = sch.split(first, [None, config["steps"]])
    order = [*window, outer] if config["unroll"] == TAPS else [outer, *window]
    sch.reorder(*order, inner, group)
    sch.compute_inline(sch.get_sblock(Stage.PATCH))
    sch.unroll(inner)
    if config["unroll"] == "window":
        for loop in window:
            sch.unroll(loop)
    return order[0]


def _sum_pieces(
    sch: s_tir.Schedule, acc: Block, threads: Sequence[Loop], tile: Sequence[Loop], config: Config, width: int
) -> None:
    """Add up the pieces of the stage `acc`, each number of the tile by one of the work-items that summed them.

    Work-items take whole texels if there are enough.
    """
    has_texels = config["tile_o"] * config["tile_w"] >= config["split_k"]
    outer, piece = sch.split(sch.fuse(*(tile[:-1] if has_texels else tile)), [None, config["split_k"]])
    sch.reorder(piece, *threads, outer)
    warp_o, warp_w, g, t = threads
    sch.bind(piece, "threadIdx.z")
    bind_threads(sch, sch.fuse(warp_o, warp_w, g), t)
    sch.compute_at(acc, outer, preserve_unit_loops=True)
    sch.set_scope(acc, 0, "local")
    *_, spatial, pieces = sch.get_loops(acc)
    sch.reorder(pieces, spatial)
    sch.unroll(pieces)
    if has_texels:
        sch.vectorize(spatial)
    init = sch.decompose_reduction(acc, pieces)
    if has_texels:
        sch.vectorize(sch.get_loops(init)[-1])
        unroll_tile(sch, (outer, tile[-1]), width)
    else:
        sch.unroll(outer)


def _deal_out(sch: s_tir.Schedule, sums: Block, group: Loop, config: Config) -> None:
    """Deal the sums of a group out to its work-items, which keep them in registers.

    If the reduction is split, they leave them in local memory in the end.
    """
    *pieces, item_o, t, o, h, w, lane = (loops := loops_below(sch, sums, group))[: 7 if config["split_k"] > 1 else 6]
    warp_o, g, own_o = sch.split(o, [None, WARP_O, config["tile_o"]])
    warp_w, own_w = sch.split(w, [None, config["tile_w"]])
    sch.reorder(*pieces, item_o, warp_o, warp_w, g, t, *loops[len(pieces) + 6 :], own_o, h, own_w, lane)
    if pieces:
        sch.set_scope(sums, 0, "shared")
        registers = sch.cache_write(sums, 0, "local")
        sch.reverse_compute_at(registers, t, preserve_unit_loops=True)
        sch.bind(pieces[0], "threadIdx.z")
        unroll_tile(sch, sch.get_loops(registers)[-4:])
    else:
        sch.set_scope(sums, 0, "local")
    bind_threads(sch, sch.fuse(warp_o, warp_w, g), t)
