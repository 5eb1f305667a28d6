"""Split concatenations of more tensors than a kernel can bind."""

from __future__ import annotations

import itertools

import tvm
from tvm import relax
from tvm.relax.dpl import is_op, rewrite_call, wildcard

from romou.compiler.graph.relax_rewriter import with_main


def split_concats(mod: tvm.IRModule, max_buffers: int | None) -> tvm.IRModule:
    """Concatenate in several steps, each of fewer than `max_buffers` tensors.

    concat(a, b, c, d, e, f)      ->      concat(concat(a, b, c), concat(d, e, f))      (four buffers, with the result)
    stack(a, ..., f)              ->      the same for reshaped tensors
    """
    if max_buffers is None:
        return mod

    def joined(tensors: list[relax.Expr], axis: int) -> relax.Expr:
        most = max(2, max_buffers - 1)
        if len(tensors) <= most:
            return relax.op.concat(tensors, axis)
        # The smallest number of pieces, of about equal length.
        count = -(-len(tensors) // most)
        bounds = [len(tensors) * i // count for i in range(count + 1)]
        return joined([joined(tensors[start:end], axis) for start, end in itertools.pairwise(bounds)], axis)

    def split(call: relax.Expr, _matched: object) -> relax.Expr:
        if not isinstance(call, relax.Call):
            return call  # the only binding of an alias
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
