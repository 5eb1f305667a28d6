"""Kernels that read tensors which others hand to the model: whoever runs it by TVM's virtual machine alone may give it any."""

from __future__ import annotations

import tvm
from tvm import relax

from romou.tir.calls import called_function
from romou.tir.primitives import CHECKS_ARGUMENTS


def mark_entries(mod: tvm.IRModule) -> tvm.IRModule:
    """Have the kernels check their arguments that read inputs of `main`, or views of them; all others get what the model's own plan says."""
    marked = tvm.IRModule(dict(mod.functions_items()), global_infos=dict(mod.global_infos))
    main = mod["main"]
    foreign = set(main.params)
    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        read, called = _used(binding.value)
        if read.isdisjoint(foreign):
            continue
        for name in called:
            var = mod.get_global_var(name)
            marked[var] = marked[var].with_attr(CHECKS_ARGUMENTS, True)
        if called_function(binding.value) is None:
            foreign.add(binding.var)
    return marked


def _used(value: relax.Expr) -> tuple[set[relax.Var], set[str]]:
    """Variables that an expression reads, and names of the functions that it calls, those of branches included."""
    read: set[relax.Var] = set()
    called: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            read.add(expr)
        elif (name := called_function(expr)) is not None:
            called.add(name)

    relax.analysis.post_order_visit(value, visit)
    return read, called
