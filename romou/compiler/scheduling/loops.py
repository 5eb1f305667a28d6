"""Steps of a schedule that several families take: a work-item's tile written out, a work-item for each iteration, a
group's share in local memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm import s_tir

from romou.base.knob import Knob
from romou.compiler.tir.primitives import LANES

# On a stage: the axis that, beside the lanes of a texel, runs along memory where the stage reads.
ALONG_MEMORY = "romou.along_memory"
# On a stage: the lanes of the texels that it reads are no neighbours in memory.
APART = "romou.apart"
# All that a GPU's local memory serves at once: as many banks as there are work-items in a warp, of four bytes each.
_BANKS_BYTES = 128
VECTOR_WIDTH = Knob(
    name="vector_width",
    choices=(LANES, 2, 1),
    default=LANES,
    help="numbers that one instruction loads, computes and stores",
)
Loop: TypeAlias = "s_tir.schedule.LoopRV"
Block: TypeAlias = "s_tir.schedule.SBlockRV"


def bind_threads(sch: s_tir.Schedule, y: Loop, x: Loop) -> None:
    """Bind two loops, so that each of their iterations is a work-item of the group."""
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")


def unroll_tile(sch: s_tir.Schedule, tile: Sequence[Loop], width: int = LANES) -> None:
    """Write a tile out; its last loop, over the lanes of a texel, as vectors of `width` lanes, 1 being none."""
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
    """The loops of `block` inside `at`."""
    loops, loop = sch.get_loops(block), sch.get(at)
    return list(loops[next(i for i, other in enumerate(loops) if sch.get(other).same_as(loop)) + 1 :])


def load_texels(sch: s_tir.Schedule, block: Block, at: Loop) -> None:
    """A work-item loads whole texels into registers, before their lanes are used one by one."""
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, at, preserve_unit_loops=True)
    is_apart = APART in sch.get(block).annotations
    unroll_tile(sch, _whole_texels(sch, block, at), 1 if is_apart else LANES)


def stage_in_local_memory(
    sch: s_tir.Schedule, block: Block, at: Loop, rows: int, across: int, number_bytes: int = 4
) -> None:
    """The `rows` x `across` work-items of a group load the block's share together, neighbours next to each other in
    memory.

    Where these do not lie next to each other in local memory, they lie in different banks, if numbers take so many
    bytes there in the end.
    """
    # The scope comes first: only then does compute_at see that all work-items of the group need the data.
    sch.set_scope(block, 0, "shared")
    sch.compute_at(block, at, preserve_unit_loops=True)
    *texels, lane = _whole_texels(sch, block, at)
    axis = sch.get(block).annotations.get(ALONG_MEMORY)
    steps = 1 if axis is None else int(sch.get(texels[axis]).extent)
    if steps > 1:
        lanes = int(sch.get(lane).extent)
        sch.storage_align(
            block, 0, axis, _BANKS_BYTES // number_bytes, lanes * int(_texels_apart(lanes * number_bytes, steps))
        )
        texels.append(texels.pop(axis))
        sch.reorder(*texels, lane)
    _, y, x = sch.split(sch.fuse(*texels), [None, rows, across])
    bind_threads(sch, y, x)
    if APART in sch.get(block).annotations:
        sch.unroll(lane)
    else:
        sch.vectorize(lane)


def padded_texels(texels: Any, texel_bytes: Any, steps: Any) -> Any:
    """Texels from one of the `steps` along memory to the next one where `stage_in_local_memory` puts so many texels for
    each; all may be arrays.
    """
    banks = _BANKS_BYTES // texel_bytes
    return texels + np.where(steps > 1, (_texels_apart(texel_bytes, np.maximum(steps, 1)) - texels) % banks, 0)


def _texels_apart(texel_bytes: Any, steps: Any) -> Any:
    """What is to be left of that, whole rounds of the banks taken away: then work-items of which each stores a step's
    texel fill all banks once.
    """
    return np.maximum(_BANKS_BYTES // texel_bytes // steps, 1)


def _whole_texels(sch: s_tir.Schedule, block: Block, at: Loop) -> list[Loop]:
    """The loops of `block` below `at`; the last one over all lanes that a texel has, also over those that nothing
    reads.
    """
    *loops, lane = loops_below(sch, block, at)
    whole = int(sch.get(block).iter_vars[-1].dom.extent)
    return (
        [*loops, *sch.split(lane, [1, whole], disable_predication=True)]
        if int(sch.get(lane).extent) < whole
        else [*loops, lane]
    )
