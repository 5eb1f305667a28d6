"""From the stages of a contraction to the nest that tensor cores compute: what each warp and each of its work-items
does.
"""

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
    """Schedule the stages that `regroup` makes, as `contraction.schedule.schedule_stages` does the others."""
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
    # TVM sees what a group needs as long as nothing is cropped.
    is_split = config["split_k"] > 1
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
    first, *window, group, _ilane = reduction
    if config["local"]:
        # Tap by tap: of a whole window little would fit.
        outer, inner = sch.split(first, [None, config["local"] // GROUP])
        sch.reorder(outer, *window, inner, group)
        outer = sch.fuse(outer, *window)
        window = []
        sch.compute_inline(sch.get_sblock(Stage.TEXELS))
        for name in (Stage.PATCH, Stage.KERNEL):
            block = sch.get_sblock(name)
            stage_in_local_memory(sch, block, outer, config["wg_o"] * config["wg_w"] // WARP_W, WARP_W)
            sch.unroll(loops_below(sch, block, outer)[0])
            # The four texels that a warp reads at once: (..., texel, row, pixel, lane), (..., texel, lane, channel,
            # lane).
            axis = len(sch.get(block).writes[0].source.shape) - 4
            sch.storage_align(block, 0, axis, LINE_BYTES // number_bytes(config), APART_BYTES // number_bytes(config))
        sch.unroll(inner)
        # The copies are ahead of their use.
        for key, value in (("stage", [0, 0, config["steps"]]), ("order", [0, 1, 2]), ("async_stages", [0])):
            sch.annotate(outer, f"software_pipeline_{key}", value)
    else:
        outer, inner = sch.split(first, [None, config["steps"]])
        order = [*window, outer] if config["unroll"] == TAPS else [outer, *window]
        sch.reorder(*order, inner, group)
        sch.compute_inline(sch.get_sblock(Stage.PATCH))
        sch.unroll(inner)
        outer = order[0]
    if config["unroll"] == "window":
        for loop in window:
            sch.unroll(loop)
    tensor_cores(sch, group, config["steps"])
    init = sch.decompose_reduction(sums, outer)
    unroll_tile(sch, sch.get_loops(init)[-4:])
    if not is_split:
        # Registers are a work-item's own: they need no index that tells whose they are.
        sch.transform_layout(sums, ("write", 0), lambda _item_o, _item_w, *own: own, assume_injective_transform=True)


def _sum_pieces(
    sch: s_tir.Schedule, acc: Block, threads: Sequence[Loop], tile: Sequence[Loop], config: Config, width: int
) -> None:
    """acc: the pieces are added up, each number of the tile by one of the work-items that have summed them; whole
    texels while there are enough.
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
    """The sums of a group, of each piece of the reduction: every work-item has its own in registers, and where there
    are pieces leaves them in local memory.
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
