"""A program whose `main` takes sizes after its inputs, and whose kernels of any size take them after their tensors.

main(x): dense(x, w, y)      ->      main(x, size): dense(x, w, y, size)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import tvm
from tvm import relax, tirx

from romou.base.errors import as_build_error
from romou.compiler.assembly.assemble import CompiledModel
from romou.compiler.assembly.build import build_executable
from romou.compiler.tir.primitives import CHECKS_ARGUMENTS, SIZES
from romou.compiler.tir.traversal import copy_of, with_fields


def with_size_arguments(model: CompiledModel, kernels: Mapping[str, tirx.PrimFunc], count: int) -> CompiledModel:
    """Return the program with `count` sizes as last arguments of `main`.

    kernels: function name -> scheduled kernel of any size.
    """
    scheduled = copy_of(model.scheduled)
    main = model.scheduled["main"]
    sizes = [relax.Var(f"size{place or ''}", tvm.ir.PrimType("int64")) for place in range(count)]

    def binding_of(binding: relax.Binding) -> relax.Binding:
        call = binding.value
        if not isinstance(getattr(call, "op", None), tvm.ir.GlobalVar) or call.op.name_hint not in kernels:
            return binding
        with_sizes = with_fields(call, args=[*call.args, *sizes], ret_ty=call.ty)
        return relax.VarBinding(binding.var, with_sizes)

    blocks = [type(block)([binding_of(binding) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    scheduled["main"] = with_fields(main, params=[*main.params, *sizes], body=body)
    for name, func in kernels.items():
        # Checks of arguments compare shapes with those of the largest sizes.
        symbol = model.scheduled[name].attrs["global_symbol"]
        scheduled[name] = with_size_parameters(func).without_attr(CHECKS_ARGUMENTS).with_attr("global_symbol", symbol)
    with as_build_error("the model"), model.target.backend.keeping_programs():
        executable, host = build_executable([(scheduled, model.target)], model.kept)
    return replace(model, executable=executable, host=host, scheduled=scheduled)


def with_size_parameters(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function of any size that takes the sizes, which were an attribute, as last parameters."""
    params = [*func.params, *func.attrs[SIZES]]
    return with_fields(func, params=params).without_attr(SIZES)
