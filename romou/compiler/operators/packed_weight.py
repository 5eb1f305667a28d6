"""A weight that is no constant, as in training: each call packs it anew, by a kernel before that of the operator."""

from __future__ import annotations

from tvm import s_tir, te, tirx

# The stage that packs, and the buffer between it and the operator's own.
PACKED = "packed_weight"
_GROUP = 64


def guarded(dtype: str, value: tirx.Expr, *conditions: tirx.Expr | bool) -> tirx.Expr:
    """A value where all conditions hold; zero elsewhere. Those that are known to hold cost nothing."""
    open_ones = [condition for condition in conditions if not isinstance(condition, bool)]
    assert all(condition for condition in conditions if isinstance(condition, bool)), "nothing would be left"
    return te.if_then_else(te.all(*open_ones), value, tirx.const(0, dtype)) if open_ones else value


def is_computed(func: tirx.PrimFunc, weight: tirx.Buffer) -> bool:
    """Whether a function makes the packed weight itself, instead of getting it as a parameter."""
    return not any(parameter.same_as(weight) for parameter in func.params)


def schedule_packing(sch: s_tir.Schedule) -> None:
    """A work-item for each number of the packed weight, where the function has that stage."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if sch.get(block).name_hint == PACKED:
            group, item = sch.split(sch.fuse(*sch.get_loops(block)), [None, _GROUP])
            sch.bind(group, "blockIdx.x")
            sch.bind(item, "threadIdx.x")
