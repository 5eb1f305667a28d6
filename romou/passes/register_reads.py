"""What a statement reads of registers and local memory becomes a variable of its own, where TVM takes vectors apart.

In CUDA, TVM's code generator takes a vector apart lane by lane, and keeps each vector in a variable that it finds again by its text: a second `acc[0]` in the
same block is the first one's value, even if acc[0] was written in between. A variable for each statement has a text of its own.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_equal, structural_map, structural_walk

from romou.backends.dialect import dialect_of

_CHANGING = ("local", "shared", "shared.dyn")


@tirx.transform.prim_func_pass(opt_level=0)
def name_register_reads(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run after the last simplification, on device functions."""
    if not dialect_of(func).takes_vectors_apart:
        return func
    return func.with_body(structural_map(func.body, ((tirx.BufferStore, tirx.Bind, tirx.Evaluate), _named)))


def _named(stmt: Any) -> tirx.Stmt:
    if isinstance(getattr(stmt, "value", None), tvm.ir.TensorLoad):
        return stmt  # a copy is written as it stands
    found: list[tvm.ir.TensorLoad] = []

    def read(load: tvm.ir.TensorLoad) -> None:
        if int(tvm.DataType(str(load.ty)).lanes) > 1 and str(load.source.scope()) in _CHANGING and not any(structural_equal(load, other) for other in found):
            found.append(load)

    structural_walk(stmt, (tvm.ir.TensorLoad, read))
    if not found:
        return stmt
    variables = [tirx.Var("read", load.ty) for load in found]

    def name(load: tvm.ir.TensorLoad) -> tirx.Expr:
        place = next((i for i, other in enumerate(found) if structural_equal(load, other)), None)
        return load if place is None else variables[place]

    named = structural_map(stmt, (tvm.ir.TensorLoad, name))
    return tirx.SeqStmt([*(tirx.Bind(v, load) for v, load in zip(variables, found, strict=True)), named])
