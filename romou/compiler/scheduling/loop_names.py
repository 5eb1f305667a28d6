"""Names of a scheduled function's loops, which the kernel's text shows.

for ax6 in range(8): … v_ic = ax6 …      ->      for ic in range(8): … v_ic = ic …
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.tir.traversal import nodes_in, substitute

# Before the name of a block's variable in TIR.
_PREFIX = "v_"


def name_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Name the serial loops of a scheduled function by the reduced dimensions of the blocks inside.

    A loop that copies texels into local memory is named after the copy. Threads and unrolled loops keep their names.
    """
    names: dict[tirx.Var, list[str]] = {}

    def note(realize: s_tir.SBlockRealize) -> None:
        block = realize.block
        is_copy = any(str(write.source.scope()).startswith("shared") for write in block.writes)
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            is_reduced = int(axis.iter_type) == tirx.IterVar.CommReduce
            if not is_reduced and not is_copy:
                continue
            name = str(axis.var.name).removeprefix(_PREFIX) if is_reduced else f"{block.name_hint}_texel"
            for variable in nodes_in(value, tirx.Var):
                known = names.setdefault(variable, [])
                known.extend([name] * (name not in known))

    structural_walk(func.body, (s_tir.SBlockRealize, note))
    renamed: dict[tirx.Var, tirx.Var] = {}

    def rename(loop: tirx.For) -> None:
        # A loop around both copies and sums is a loop of the sum.
        found = names.get(loop.loop_var, [])
        reduced = [name for name in found if not name.endswith("_texel")] or found[:1]
        if reduced and loop.kind == tirx.ForKind.SERIAL:
            renamed[loop.loop_var] = tirx.Var("_".join(reduced), loop.loop_var.ty)

    structural_walk(func.body, (tirx.For, rename))
    return func.with_body(substitute(func.body, renamed))
