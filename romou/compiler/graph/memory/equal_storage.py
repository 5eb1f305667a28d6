"""Storages of equal sizes in several graphs whose runs take turns.

    first:  alloc_storage(100), alloc_storage(20)      ->      alloc_storage(400), alloc_storage(80)
    second: alloc_storage(80),  alloc_storage(400)             alloc_storage(80),  alloc_storage(400)

The runtimes' pools serve a request with idle memory of the same size. So the graphs use the same memory, and need as
much as the largest one. Images keep their sizes: a pool holds those of one graph at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import tvm
from tvm import relax

from romou.compiler.graph.relax_rewriter import with_main
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.traversal import with_fields

_STORAGE = "relax.vm.alloc_storage"
_BUFFER = "global"


def equalize_storages(mods: Sequence[tvm.IRModule]) -> list[tvm.IRModule]:
    """Return scheduled modules in which the largest buffers have one size, the second largest ones too, and so on.

    Outputs keep their sizes, because they are live after a run.
    """
    ranked = [sorted(_buffers(mod["main"]).items(), key=lambda entry: -entry[1]) for mod in mods]
    rows = zip_longest(*([size for _, size in buffers] for buffers in ranked), fillvalue=0)
    largest = [max(row) for row in rows]
    equal = []
    for mod, buffers in zip(mods, ranked, strict=True):
        sizes = {var: size for (var, _), size in zip(buffers, largest, strict=False)}
        equal.append(with_main(mod, _resized(mod["main"], sizes)))
    return equal


def _buffers(main: relax.Function) -> dict[relax.Var, int]:
    """Return the bytes of each allocated buffer that does not hold an output."""
    sizes: dict[relax.Var, int] = {}
    # A variable -> the buffers that it may be in, through tensors, views and tuples.
    behind: dict[relax.Var, frozenset[relax.Var]] = {}

    def used(expr: relax.Expr) -> frozenset[relax.Var]:
        return frozenset().union(*(behind.get(var, ()) for var in relax.analysis.free_vars(expr)))

    for binding in bindings_of(main):
        value = binding.value
        behind[binding.var] = used(value)
        if op_name(value) == _STORAGE and str(value.args[3].value) == _BUFFER:
            sizes[binding.var] = int(value.args[0].values[0])
            behind[binding.var] = frozenset([binding.var])
    outputs = used(main.body.body)
    return {var: size for var, size in sizes.items() if var not in outputs}


def _resized(main: relax.Function, sizes: Mapping[relax.Var, int]) -> relax.Function:
    """Return `main` with other bytes for some of its buffers."""

    def binding_of(binding: relax.Binding) -> relax.Binding:
        if binding.var not in sizes:
            return binding
        call = binding.value
        arguments = [relax.ShapeExpr([sizes[binding.var]]), *call.args[1:]]
        return relax.VarBinding(binding.var, with_fields(call, args=arguments, ret_ty=call.ty))

    blocks = [type(block)([binding_of(binding) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    return with_fields(main, body=body)
