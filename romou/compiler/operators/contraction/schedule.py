"""The schedules of a contraction's stages, without tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.base.space import Config
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.knobs import FP32, ITERATION, MIXED, number_bytes, rows_of_items
from romou.compiler.operators.contraction.stages import Stage, texel_of
from romou.compiler.scheduling.blocks import reduced_axes
from romou.compiler.scheduling.loops import (
    Block,
    Loop,
    bind_threads,
    load_texels,
    loops_below,
    stage_in_local_memory,
    unroll_tile,
)
from romou.compiler.tir.expressions import is_one
from romou.compiler.tir.primitives import (
    MemoryKind,
    autobroadcast,
    double_buffer,
    fp16_arithmetic,
    multiply_add,
    unroll_by_compiler,
)
from romou.compiler.tir.traversal import with_fields

# The stage that packs a weight which is computed at run time, as in training, and its buffer. It is a kernel before the
# contraction's.
PACKED = "packed_weight"
_PACKING_GROUP = 64
# Stages whose innermost axis is loaded into registers as one vector: without local memory, and with it.
_TEXELS, _STAGED_TEXELS = (Stage.PATCH, Stage.RIGHT), (Stage.TEXELS, Stage.RIGHT)


def schedule_stages(
    sch: s_tir.Schedule,
    loops: Sequence[Loop],
    reduce_names: Sequence[str],
    config: Config,
    *,
    has_whole_texels: bool = True,
) -> None:
    """Tile the output nest and pull the stages of `build_stages` into it.

    loops: (o, h, w, lane) of the output.
    has_whole_texels: whether the output's lanes are stored together. If not, each store is guarded.
    """
    store = config if has_whole_texels else config.replace(vector_width=1)
    group, tile = _tile_output(sch, loops, config)
    if config["split_k"] > 1:
        _schedule_split(sch, group, tile, config, store)
        return
    acc = sch.get_sblock(Stage.ACC)
    # Before the crop is inlined, TVM sees which registers a group needs.
    padded = sch.get_sblock(Stage.TILE)
    sch.compute_at(padded, group, preserve_unit_loops=True)
    sch.compute_at(acc, group, preserve_unit_loops=True)
    sch.compute_inline(padded)
    sch.set_scope(acc, 0, "local")
    spatial, reduction = _bind_items(sch, loops_below(sch, acc, group), config)
    if config["local"]:
        first, reduction = _stage_operands(sch, spatial, reduction, config)
    else:
        sch.reorder(*reduction, *spatial)
        first = reduction[0]
    if config["accumulate"] == MIXED:
        _schedule_blocks(sch, first, config)
        unroll_tile(sch, spatial, config["vector_width"])
    else:
        if not config["local"]:
            for block in _stages_of(sch, _TEXELS):
                load_texels(sch, block, reduction[-2])
        _unroll_inner(sch, spatial, reduction, config)
        _spell_arithmetic(sch, acc, config)
    init = sch.decompose_reduction(acc, first)
    unroll_tile(sch, sch.get_loops(init)[-len(spatial) :], config["vector_width"])
    unroll_tile(sch, tile, store["vector_width"])
    # Registers belong to a work-item, so they need no index of it.
    sch.transform_layout(acc, ("write", 0), lambda _item_o, _item_w, *own: own, assume_injective_transform=True)


def schedule_group_store(
    sch: s_tir.Schedule,
    loops: Sequence[Loop],
    config: Config,
    *,
    is_along_channels: bool,
    has_whole_texels: bool = True,
) -> None:
    """Schedule sums that wait in local memory, from which the group stores them in the order of the output's memory.

        registers = sum over r of …
        acc[work-item's own] = registers      in local memory
        barrier
        crop[threads] = acc[threads]

    Source: Boda-RTC, section V, "local-memory based output buffers".

    loops: (o, h, w, lane) of the output.
    is_along_channels: whether neighbours in memory are channels. Otherwise they are pixels.
    has_whole_texels: whether the output's lanes are stored together.
    """
    o, h, w, lane = loops
    sides = (config["wg_o"] * config["tile_o"], config["tile_h"], config["wg_w"] * config["tile_w"])
    (block_o, o), (block_h, h), (block_w, w) = (
        sch.split(loop, [None, side]) for loop, side in zip((o, h, w), sides, strict=True)
    )
    texels = (h, w, o) if is_along_channels else (o, h, w)
    sch.reorder(block_o, block_h, block_w, *texels, lane)
    group = _bind_groups(sch, block_o, block_h, block_w)
    acc, padded = sch.get_sblock(Stage.ACC), sch.get_sblock(Stage.TILE)
    for block in (padded, acc):
        sch.compute_at(block, group, preserve_unit_loops=True)
    sch.compute_inline(padded)
    sch.set_scope(acc, 0, "shared")
    _sum_in_registers(sch, acc, loops_below(sch, acc, group), config)
    own, y, x = sch.split(sch.fuse(*texels), [None, config["wg_o"], config["wg_w"]])
    bind_threads(sch, y, x)
    unroll_tile(sch, [own, lane], config["vector_width"] if has_whole_texels else 1)


def skip_taps(func: tirx.PrimFunc, c: Contraction, config: Config) -> tirx.PrimFunc:
    """Return a scheduled function without products by taps that the windows of its output channels lack.

    for kx: for own_o: acc += patch * weight      ->      for kx: for own_o: if has_tap: acc += patch * weight

    The loops are unrolled, so no branch stays.
    """
    condition = c.has_tap
    if condition is None or not c.skips_taps(config):
        return func

    def with_condition(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        if len(reduced_axes(realize.block)) < len(c.reduce) or realize.block.init is not None:
            return realize
        item_o, _item_w, own_o, *_ = realize.iter_values[-len(c.reduce) - 6 :]
        has_tap = condition(texel_of(c, config, item_o, own_o), *realize.iter_values[-len(c.reduce) :])
        return with_fields(realize, predicate=tirx.all(realize.predicate, has_tap))

    return func.with_body(structural_map(func.body, (s_tir.SBlockRealize, with_condition)))


def _tile_output(sch: s_tir.Schedule, loops: Sequence[Loop], config: Config) -> tuple[Loop, list[Loop]]:
    """Split the output into work groups, work-items and register tiles.

    Return the innermost loop over groups, and the loops of a tile: (o, h, w, lane).
    """
    o, h, w, lane = loops
    if config["arrangement"] == "striped":
        block_o, tile_o, thread_o = sch.split(o, [None, config["tile_o"], config["wg_o"]])
        block_w, tile_w, thread_w = sch.split(w, [None, config["tile_w"], config["wg_w"]])
    else:
        block_o, thread_o, tile_o = sch.split(o, [None, config["wg_o"], config["tile_o"]])
        block_w, thread_w, tile_w = sch.split(w, [None, config["wg_w"], config["tile_w"]])
    rows = [rows_of_items(config)] if rows_of_items(config) > 1 else []
    block_h, *thread_h, tile_h = sch.split(h, [None, *rows, config["tile_h"]])
    sch.reorder(block_o, block_h, block_w, *thread_h, thread_o, thread_w, tile_o, tile_h, tile_w, lane)
    group = _bind_groups(sch, block_o, block_h, block_w)
    for loop in thread_h:
        sch.bind(loop, "threadIdx.z")
    bind_threads(sch, thread_o, thread_w)
    return group, [tile_o, tile_h, tile_w, lane]


def _bind_groups(sch: s_tir.Schedule, block_o: Loop, block_h: Loop, block_w: Loop) -> Loop:
    """Bind the loops over work groups. Return the innermost one."""
    # OpenCL and CUDA allow long grids only along x, so pixels are there. Fusing a loop of one iteration would leave a
    # modulo behind.
    grid_x = block_w if is_one(sch.get(block_h).extent) else sch.fuse(block_h, block_w)
    sch.bind(block_o, "blockIdx.y")
    sch.bind(grid_x, "blockIdx.x")
    return grid_x


def _stage_operands(
    sch: s_tir.Schedule, spatial: Sequence[Loop], reduction: Sequence[Loop], config: Config
) -> tuple[Loop, list[Loop]]:
    """Stage operands in local memory. Return the loop over iterations, and the loops of the reduction inside."""
    outer, inner = sch.split(reduction[0], [None, config["local"]])
    sch.reorder(outer, inner, *reduction[1:], *spatial)
    for block in _stages_of(sch, _STAGED_TEXELS):
        load_texels(sch, block, reduction[-2] if len(reduction) > 2 else inner)
    for block in _stages_of(sch, (Stage.PATCH, Stage.KERNEL)):
        stage_in_local_memory(sch, block, outer, config["wg_o"], config["wg_w"], int(number_bytes(config)))
    if config["unroll"] == ITERATION:
        for loop in (loop for loop in (inner, *reduction[1:-1]) if int(sch.get(loop).extent) > 1):
            unroll_by_compiler(sch, loop)
    if config["local_buffers"] > 1:
        double_buffer(sch, outer)
    return outer, [inner, *reduction[1:]]


def _schedule_blocks(sch: s_tir.Schedule, at: Loop, config: Config) -> None:
    """Sum up the block of one iteration of `at` in fp16 registers, before it is added to the sums in fp32."""
    block = sch.get_sblock(Stage.BLOCK)
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, at, preserve_unit_loops=True)
    _, _, _, *loops = loops_below(sch, block, at)
    spatial, reduction = loops[:4], loops[4:]
    sch.reorder(*reduction, *spatial)
    for texels in _stages_of(sch, _TEXELS):
        load_texels(sch, texels, reduction[-2])
    _unroll_inner(sch, spatial, reduction, config)
    _spell_arithmetic(sch, block, config)
    init = sch.decompose_reduction(block, reduction[0])
    unroll_tile(sch, sch.get_loops(init)[-len(spatial) :], config["vector_width"])
    sch.transform_layout(
        block, ("write", 0), lambda _block, _item_o, _item_w, *own: own, assume_injective_transform=True
    )


def _spell_arithmetic(sch: s_tir.Schedule, block: Block, config: Config) -> None:
    if config["autobroadcast"]:
        autobroadcast(sch, block)
    if config["multiply_add"] != "plain":
        multiply_add(sch, block, config["multiply_add"])
    if config["accumulate"] != FP32:
        fp16_arithmetic(sch, block)


def _bind_items(sch: s_tir.Schedule, loops: Sequence[Loop], config: Config) -> tuple[Sequence[Loop], Sequence[Loop]]:
    """Bind the loops over the work-items of a group. Return the loops of a tile, and the loops of the reduction."""
    item_o, item_w, *own = loops
    if rows_of_items(config) > 1:
        item_h, item_w = sch.split(item_w, [None, config["wg_w"]])
        sch.bind(item_h, "threadIdx.z")
    bind_threads(sch, item_o, item_w)
    return own[:4], own[4:]


def _unroll_inner(sch: s_tir.Schedule, spatial: Sequence[Loop], reduction: Sequence[Loop], config: Config) -> None:
    """Unroll the register tile, the lanes of the reduction, and the window if the config says so."""
    if len(reduction) > 1:
        sch.unroll(reduction[-1])
    if config["unroll"] == "window":
        for loop in reduction[1:-1]:
            sch.unroll(loop)
    unroll_tile(sch, spatial, config["vector_width"])


def _stages_of(sch: s_tir.Schedule, names: Sequence[str]) -> list[Block]:
    return [b for b in sch.get_child_blocks(sch.get_sblock("root")) if sch.get(b).name_hint in names]


def _schedule_split(sch: s_tir.Schedule, group: Loop, tile: Sequence[Loop], config: Config, store: Config) -> None:
    """Schedule a split sum.

    Each work-item sums its piece in registers and stores it in local memory. The group adds the pieces up.
    """
    # Before the crop is inlined, TVM sees which pieces a group needs.
    part, total = sch.get_sblock(Stage.PART), sch.get_sblock(Stage.ACC)
    sch.compute_at(total, group, preserve_unit_loops=True)
    sch.set_scope(part, 0, "shared")
    sch.compute_at(part, group, preserve_unit_loops=True)
    _add_up_pieces(sch, total, tile, config, store)
    piece, *loops = loops_below(sch, part, group)
    sch.bind(piece, "threadIdx.z")
    _sum_in_registers(sch, part, loops, config)


def _add_up_pieces(sch: s_tir.Schedule, total: Block, tile: Sequence[Loop], config: Config, store: Config) -> None:
    """Deal the elements of a tile out to the work-items of the split, which add up the pieces of their elements."""
    # Whole texels, or single lanes if there are fewer texels than work-items. If there are fewer lanes, too, some
    # work-items get none.
    texels = config["tile_o"] * config["tile_h"] * config["tile_w"]
    has_texels = texels >= config["split_k"] or config["output"] == MemoryKind.IMAGE
    # TVM does not prove that fused loops are complete unless they are powers of two, and allocates up to twice an axis
    # that is dealt out unevenly.
    is_fused = texels & (texels - 1) == 0
    even = (loop for loop in tile[-2::-1] if int(sch.get(loop).extent) % config["split_k"] == 0)
    share = sch.fuse(*(tile[:-1] if has_texels else tile)) if is_fused else next(even, tile[-2])
    outer, thread_k = sch.split(share, [None, config["split_k"]])
    others = [] if is_fused else [loop for loop in tile[:-1] if not loop.same_as(share)]
    sch.reorder(*others, outer, thread_k)
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
    for loop in (*others, outer):
        sch.unroll(loop)
    if has_texels:
        unroll_tile(sch, [sch.get_loops(init)[-1]], config["vector_width"])
        unroll_tile(sch, [tile[-1]], store["vector_width"])


def _sum_in_registers(sch: s_tir.Schedule, part: Block, loops: Sequence[Loop], config: Config) -> None:
    """Sum a work-item's part in registers, then write it to local memory. loops: of the work-items, tile and sum."""
    spatial, reduction = _bind_items(sch, loops, config)
    sch.reorder(*reduction, *spatial)
    if config["accumulate"] != MIXED:
        for block in _stages_of(sch, _TEXELS):
            load_texels(sch, block, reduction[-2])
    registers = sch.cache_write(part, 0, "local")
    sch.reverse_compute_at(registers, loops[1], preserve_unit_loops=True)
    if config["accumulate"] == MIXED:
        _schedule_blocks(sch, reduction[0], config)
        unroll_tile(sch, spatial, config["vector_width"])
    else:
        _unroll_inner(sch, spatial, reduction, config)
        _spell_arithmetic(sch, part, config)
    init = sch.decompose_reduction(part, reduction[0])
    unroll_tile(sch, sch.get_loops(init)[-4:], config["vector_width"])
    unroll_tile(sch, sch.get_loops(registers)[-4:], config["vector_width"])


def is_computed(func: tirx.PrimFunc, weight: tirx.Buffer) -> bool:
    """Return whether a function packs the weight itself instead of taking it as a parameter."""
    return not any(parameter.same_as(weight) for parameter in func.params)


def schedule_packing(sch: s_tir.Schedule) -> None:
    """Bind one work-item to each element of the packed weight, if the function has that stage."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if sch.get(block).name_hint == PACKED:
            group, item = sch.split(sch.fuse(*sch.get_loops(block)), [None, _PACKING_GROUP])
            sch.bind(group, "blockIdx.x")
            sch.bind(item, "threadIdx.x")
