"""A weight that is computed at run time, as in training. A kernel packs it in each call, before the operator's own."""

from __future__ import annotations

from tvm import s_tir, tirx

# The stage that packs, and the buffer between that kernel and the operator's.
PACKED = "packed_weight"
_GROUP = 64


def is_computed(func: tirx.PrimFunc, weight: tirx.Buffer) -> bool:
    """Return whether a function packs the weight itself instead of taking it as a parameter."""
    return not any(parameter.same_as(weight) for parameter in func.params)


def schedule_packing(sch: s_tir.Schedule) -> None:
    """Bind one work-item to each element of the packed weight, if the function has that stage."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if sch.get(block).name_hint == PACKED:
            group, item = sch.split(sch.fuse(*sch.get_loops(block)), [None, _GROUP])
            sch.bind(group, "blockIdx.x")
            sch.bind(item, "threadIdx.x")
