"""The launch of a lowered device function."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvm import tirx

from romou.tir.traversal import nodes_in


def thread_extents(func: tirx.PrimFunc) -> dict[str, int]:
    """Return the extents of a lowered device function's launch: "blockIdx.x" -> work groups, "threadIdx.x" -> work-items of a group."""
    marks = [stmt for stmt in nodes_in(func.body, tirx.AttrStmt) if stmt.attr_key == "thread_extent"]
    return {str(stmt.node.thread_tag): int(stmt.value) for stmt in marks}


def launch_size(extents: Mapping[str, int]) -> tuple[int, int]:
    """Return the work groups of a launch, and the work-items of one."""
    groups, items = (math.prod(extent for tag, extent in extents.items() if tag.startswith(kind)) for kind in ("blockIdx", "threadIdx"))
    return groups, items
