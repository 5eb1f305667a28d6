"""Schedule steps that several families take: unrolled tiles, thread bindings, staging in local memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm import s_tir

from romou.base.knob import Knob
from romou.compiler.tir.primitives import LANES

# On a stage: its axes, other than the lanes, that are contiguous in the memory it reads, outermost first.
ALONG_MEMORY = "romou.along_memory"
# On a stage: pairs of texels along its last axis are contiguous in the memory it reads and writes.
IN_PAIRS = "romou.in_pairs"
# On a stage: the lanes of its texels are not contiguous in memory.
APART = "romou.apart"
# Bytes that local memory serves in one cycle: a four-byte bank for each work-item of a warp.
_BANKS_BYTES = 128
VECTOR_WIDTH = Knob(
    name="vector_width",
    choices=(LANES, 2, 1),
    default=LANES,
    help="elements that one instruction loads, computes and stores",
)
SUB_GROUP = Knob(
    name="sub_group",
    choices=(1, 4, 8, 16, 32, 64, 128),
    default=1,
    help="work-items of a sub-group, whose functions combine their parts without local memory; 1: none are used",
    devices="those with sub-groups of a known size",
    exists_on=lambda limits: limits.sub_groups is not None,
    absent=1,
)
THREAD_COUNTS, ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16, 32, 64)
THREADS = Knob(name="threads", choices=THREAD_COUNTS, default=1, help="work-items that share a row")
GROUP_ROWS = Knob(name="rows", choices=ROW_COUNTS, default=1, help="rows of a work group", scales_outputs=True)
Loop: TypeAlias = "s_tir.schedule.LoopRV"
Block: TypeAlias = "s_tir.schedule.SBlockRV"


def bind_threads(sch: s_tir.Schedule, y: Loop, x: Loop) -> None:
    """Bind two loops to the work-items of a group.

    for y: for x: …      ->      threadIdx.y: threadIdx.x: …
    """
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")


def unroll_tile(sch: s_tir.Schedule, tile: Sequence[Loop], width: int = LANES) -> None:
    """Unroll a tile. Its last loop, the lanes of a texel, becomes vectors of `width` lanes.

    for y: for lane in range(4): …      ->      … y = 0, 1, …, each with lane = 0:4
    """
    *outer, lane = tile
    for loop in outer:
        sch.unroll(loop)
    if width == LANES:
        sch.vectorize(lane)
    elif width == 1:
        sch.unroll(lane)
    else:
        vectors, inner = sch.split(lane, [None, width])
        sch.unroll(vectors)
        sch.vectorize(inner)


def loops_below(sch: s_tir.Schedule, block: Block, at: Loop) -> list[Loop]:
    """Return the loops of `block` inside `at`."""
    loops, loop = sch.get_loops(block), sch.get(at)
    return list(loops[next(i for i, other in enumerate(loops) if sch.get(other).same_as(loop)) + 1 :])


def load_texels(sch: s_tir.Schedule, block: Block, at: Loop) -> None:
    """Load whole texels into registers before their lanes are used one by one.

    for at:                             for at:
        … a[texel, lane] …      ->          texels = a[texel, 0:4]
                                            … texels[lane] …
    """
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, at, preserve_unit_loops=True)
    is_apart = APART in sch.get(block).annotations
    unroll_tile(sch, _whole_texels(sch, block, at), 1 if is_apart else LANES)


def stage_in_local_memory(
    sch: s_tir.Schedule, block: Block, at: Loop, rows: int, across: int, number_bytes: int | None = 4
) -> None:
    """Let the `rows` x `across` work-items of a group load the block's share, coalesced, into local memory.

    for at:                    for at:
        … a[i] …       ->          local[threads] = a[threads]
                                   barrier
                                   … local[i] …

    If rows are not contiguous in local memory, they are padded to different banks for elements of `number_bytes`, or
    by the caller.
    """
    # The scope must be set first. Only then does compute_at compute the share of the whole group.
    sch.set_scope(block, 0, "shared")
    sch.compute_at(block, at, preserve_unit_loops=True)
    *texels, lane = _whole_texels(sch, block, at)
    axes = list(map(int, sch.get(block).annotations.get(ALONG_MEMORY, ())))
    along = [texels[axis] for axis in axes]
    steps = math.prod(int(sch.get(loop).extent) for loop in along)
    if steps > 1:
        if number_bytes is not None:
            lanes = int(sch.get(lane).extent)
            apart = lanes * int(_texels_apart(lanes * number_bytes, steps))
            sch.storage_align(block, 0, axes[0], _BANKS_BYTES // number_bytes, apart)
        texels = [loop for axis, loop in enumerate(texels) if axis not in axes] + along
        sch.reorder(*texels, lane)
    if IN_PAIRS in sch.get(block).annotations:
        texels[-1], pair = sch.split(texels[-1], [None, 2])
        sch.unroll(pair)
    _, y, x = sch.split(sch.fuse(*texels), [None, rows, across])
    bind_threads(sch, y, x)
    if APART in sch.get(block).annotations:
        sch.unroll(lane)
    else:
        sch.vectorize(lane)


def padded_texels(texels: Any, texel_bytes: Any, steps: Any) -> Any:
    """Return the row pitch in texels after the bank padding of `stage_in_local_memory`.

    texels: of a row. steps: rows. All arguments may be arrays.
    """
    banks = _BANKS_BYTES // texel_bytes
    return texels + np.where(steps > 1, (_texels_apart(texel_bytes, np.maximum(steps, 1)) - texels) % banks, 0)


def _texels_apart(texel_bytes: Any, steps: Any) -> Any:
    """Return the remainder of a row pitch that is free of bank conflicts, modulo the banks.

    Work-items that store one texel to each row then hit every bank once.
    """
    return np.maximum(_BANKS_BYTES // texel_bytes // steps, 1)


def _whole_texels(sch: s_tir.Schedule, block: Block, at: Loop) -> list[Loop]:
    """Return the loops of `block` below `at`, the last one over all lanes of a texel, read or not."""
    *loops, lane = loops_below(sch, block, at)
    whole = int(sch.get(block).iter_vars[-1].dom.extent)
    return (
        [*loops, *sch.split(lane, [1, whole], disable_predication=True)]
        if int(sch.get(lane).extent) < whole
        else [*loops, lane]
    )
