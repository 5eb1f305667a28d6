"""Concatenations of more tensors than a kernel may bind, in several steps."""

from __future__ import annotations

import itertools

import tvm
from tvm import relax
from tvm.relax.dpl import is_op, rewrite_call, wildcard

from romou.compiler.graph.rewrite import with_main


def split_concats(mod: tvm.IRModule, max_buffers: int | None) -> tvm.IRModule:
    """concat(a, b, c, d, e, f)      ->      concat(concat(a, b, c), concat(d, e, f)), for four buffers, one of which is the result

    stack(a, ..., f) likewise, as a concatenation of reshaped tensors.
    """  # noqa: E501
    if max_buffers is None:
        return mod

    def joined(tensors: list[relax.Expr], axis: int) -> relax.Expr:
        most = max(2, max_buffers - 1)
        if len(tensors) <= most:
            return relax.op.concat(tensors, axis)
        # As few as hold all, each about as long as the others.
        count = -(-len(tensors) // most)
        bounds = [len(tensors) * i // count for i in range(count + 1)]
        return joined([joined(tensors[start:end], axis) for start, end in itertools.pairwise(bounds)], axis)

    def split(call: relax.Expr, _matched: object) -> relax.Expr:
        if not isinstance(call, relax.Call):
            return call  # a variable that is bound to one, where nothing else is bound
        tensors = call.args[0]
        if not isinstance(tensors, relax.Tuple) or len(tensors.fields) < max_buffers or call.attrs.axis is None:
            return call
        fields, axis = list(tensors.fields), int(call.attrs.axis)
        if call.op.name == "relax.stack":
            shape = list(call.ty.shape.values)
            axis %= len(shape)
            fields = [relax.op.reshape(field, [*shape[:axis], 1, *shape[axis + 1 :]]) for field in fields]
        return joined(fields, axis)

    main = mod["main"]
    for name in ("relax.concat", "relax.stack"):
        main = rewrite_call(is_op(name)(wildcard()), split, main)
    return with_main(mod, main)
