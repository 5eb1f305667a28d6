"""Kernels that read inputs of the model. A caller of TVM's virtual machine may pass any tensor, so they check it."""

from __future__ import annotations

import tvm
from tvm import relax

from romou.compiler.tir.calls import called_function
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import CHECKS_ARGUMENTS
from romou.compiler.tir.traversal import copy_of


def mark_entries(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark the kernels that read inputs of `main`, or views of them, to check their arguments.

    The other kernels trust the memory plan.
    """
    marked = copy_of(mod)
    main = mod["main"]
    foreign = set(main.params)
    for binding in bindings_of(main):
        if foreign.isdisjoint(relax.analysis.free_vars(binding.value)):
            continue
        for var in relax.analysis.all_global_vars(binding.value):
            marked[var] = marked[var].with_attr(CHECKS_ARGUMENTS, True)
        if called_function(binding.value) is None:
            foreign.add(binding.var)
    return marked
