"""A weight that is computed at run time, as in training. A kernel packs it in each call, before the operator's own."""

from __future__ import annotations

from tvm import s_tir, te, tirx

# The stage that packs, and the buffer between that kernel and the operator's.
PACKED = "packed_weight"
_GROUP = 64


def zero_unless(dtype: str, value: tirx.Expr, *conditions: tirx.Expr | bool) -> tirx.Expr:
    """Return `if all conditions: value else 0`, without a branch if all conditions are True."""
    unknown = [condition for condition in conditions if not isinstance(condition, bool)]
    assert all(condition for condition in conditions if isinstance(condition, bool)), "nothing would be left"
    return te.if_then_else(te.all(*unknown), value, tirx.const(0, dtype)) if unknown else value


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
