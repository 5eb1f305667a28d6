"""Schedule steps of Winograd's transforms, with one work-item for each tile, or for each column and row of it."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir

from romou.compiler.scheduling.loops import Loop, bind_threads, loops_below, unroll_tile

# Work-items of a group of the transforms. Groups that share tiles may be larger.
GROUP = 64


def padded_items(items: int) -> int:
    return -(-items // GROUP) * GROUP


def bind_items(sch: s_tir.Schedule, items: Loop, inner: Sequence[Loop]) -> Loop:
    """Bind each iteration of `items` to a work-item, with the loops `inner` inside.

    for item: for inner: …      ->      blockIdx.x: threadIdx.x: for inner: …
    """
    group, item = sch.split(items, [None, GROUP])
    sch.reorder(group, item, *inner)
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    return item


def place_rows(sch: s_tir.Schedule, name: str, item: Loop) -> Loop:
    """Compute the first half of a transform in a work-item's registers, and return its loop over columns.

    rows of all tiles in memory             for item:
    for item: …                     ->          for column:
                                                    for row: registers = …
                                                    …
    """
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, item, preserve_unit_loops=True)
    row, column, _, lane = loops_below(sch, block, item)
    sch.reorder(column, row, lane)
    unroll_tile(sch, [column, row, lane])
    return column


def share_rows(sch: s_tir.Schedule, name: str, group: Loop, across: int) -> Loop:
    """Stage the tiles of a group in local memory, and return the loop around a column.

    Each of the `across` work-items of a tile transforms every `across`-th column.
    """
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "shared")
    sch.compute_at(block, group, preserve_unit_loops=True)
    row, column, item, lane = loops_below(sch, block, group)
    outer, column = sch.split(column, [None, across])
    sch.reorder(outer, column, item, row, lane)
    bind_threads(sch, column, item)
    unroll_tile(sch, [row, lane])
    return item
