"""New names for functions of a module."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm_ffi.structural import structural_map


def renamed(mod: tvm.IRModule, names: Mapping[str, str]) -> tvm.IRModule:
    """Return a module with other names for some functions, in their calls and as their symbols. names: old -> new."""
    new: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    for var in mod.get_global_vars():
        name = names.get(var.name_hint, var.name_hint)
        if name != var.name_hint:
            new[var] = tvm.ir.GlobalVar(name)
            relax.expr._update_type(new[var], var.ty)
    if not new:
        return mod
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    for var, func in mod.functions_items():
        changed = func
        if isinstance(func, relax.Function):
            body = structural_map(func.body, (tvm.ir.GlobalVar, lambda each: new.get(each, each)))
            changed = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        if var in new and func.attrs and "global_symbol" in func.attrs:
            changed = changed.with_attr("global_symbol", new[var].name_hint)
        functions[new.get(var, var)] = changed
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=dict(mod.global_infos))
