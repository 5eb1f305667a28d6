"""Attributes of a scheduled function, from its schedule to the text of its kernels, which a backend writes last.

main (DIMENSIONS: lines, NATIVE_FUNCTIONS), kernel, kernel_1
                    ->
main, kernel (NATIVE_FUNCTIONS), kernel_1 (DIMENSIONS: lines, NATIVE_FUNCTIONS)

Kernels of a function with `WAITING_GROUPS` are launched so that all groups run at once, or not at all.
"""

from __future__ import annotations

from typing import Any

import tvm

from romou.compiler.tir.primitives import NATIVE_FUNCTIONS, WAITING_GROUPS
from romou.devices.backends.launch import DIMENSIONS, WAVE_KIND

# Attribute of a kernel with the tags of its launch, and the tag of CUDA's cooperative launch (launch_param.h of TVM).
_LAUNCH, _COOPERATIVE = "tirx.kernel_launch_params", "tirx.use_cooperative_launch"


@tvm.transform.module_pass(opt_level=0)
def keep_attributes(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Move attributes from a host function to its kernels: `DIMENSIONS` to the last, which computes the sum."""
    functions: dict[Any, Any] = dict(mod.functions_items())
    kernels = [var for var in functions if _LAUNCH in (functions[var].attrs or {})]
    if not kernels:
        return mod
    if any(WAITING_GROUPS in (func.attrs or {}) for func in functions.values()):
        for var in kernels:
            tags = [*functions[var].attrs[_LAUNCH], _COOPERATIVE]
            functions[var] = functions[var].with_attr(_LAUNCH, tags)
    last = max(kernels, key=lambda var: (len(str(var.name_hint)), str(var.name_hint)))
    for name, into in ((DIMENSIONS, [last]), (NATIVE_FUNCTIONS, kernels), (WAVE_KIND, kernels)):
        values = [func.attrs[name] for func in functions.values() if func.attrs and name in func.attrs]
        if len(values) != 1:
            continue
        functions = {var: func.without_attr(name) for var, func in functions.items()}
        functions |= {var: functions[var].with_attr(name, values[0]) for var in into}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
