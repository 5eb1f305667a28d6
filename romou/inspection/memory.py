"""Memory that a model's tensors take while it runs, read off its fused graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax


@dataclass(frozen=True, kw_only=True)
class LiveMemory:
    """One call of a run: the function, and bytes of all activations that are live during it, its inputs and outputs included."""

    function: str
    bytes: int


def live_memory(fused: tvm.IRModule) -> list[LiveMemory]:
    """Return the live memory of each call of the graph, in order.

    A tensor is live from the call that writes it to the last one that reads it; slices of one buffer count once. Weights do not count. No plan of memory
    can take less than the largest number; workspaces and padding come on top.

    fused: what `layout.fuse_operators` returned, with or without slices.
    """
    bindings = [binding for block in fused["main"].body.blocks for binding in block.bindings]
    # Variable -> the one whose memory it is.
    owner: dict[relax.Var, relax.Var] = {}
    calls = []
    for binding in bindings:
        value = binding.value
        owner[binding.var] = binding.var
        if isinstance(value, relax.Call):
            read = list(_vars(value.args[1] if len(value.args) > 1 else value))
            if str(getattr(value.op, "name", "")) == "relax.call_tir_inplace":
                written = value.args[1].fields[int(value.attrs.inplace_indices[0])]
                owner[binding.var] = owner.get(written, written)
            name = value.args[0].name_hint if isinstance(value.args[0], tvm.ir.GlobalVar) else str(getattr(value.op, "name", "call"))
            calls.append((name, read, binding.var))
        else:
            # A name or a tuple of what is there.
            found = list(_vars(value))
            if len(found) == 1:
                owner[binding.var] = owner.get(found[0], found[0])
    result = fused["main"].body.body
    first: dict[relax.Var, int] = {}
    last: dict[relax.Var, int] = {}
    for place, (_, read, var) in enumerate(calls):
        for used in (*read, var):
            whole = owner.get(used, used)
            first.setdefault(whole, place)
            last[whole] = place
    for var in _vars(result):
        last[owner.get(var, var)] = len(calls) - 1
    return [LiveMemory(function=name, bytes=sum(_bytes(var) for var in first if first[var] <= place <= last[var])) for place, (name, _, _) in enumerate(calls)]


def _vars(expr: relax.Expr) -> Iterator[relax.Var]:
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from _vars(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from _vars(expr.tuple_value)
    elif isinstance(expr, relax.Call):
        for argument in expr.args:
            yield from _vars(argument)


def _bytes(var: relax.Var) -> int:
    return _bytes_of_type(var.ty)


def _bytes_of_type(kind: tvm.ir.Type) -> int:
    if isinstance(kind, relax.TupleType):
        return sum(map(_bytes_of_type, kind.fields))
    return int(math.prod(int(extent) for extent in kind.shape) * tvm.DataType(str(kind.dtype)).itemsize)
