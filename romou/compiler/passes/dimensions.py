"""Names of a kernel's dimensions, from its schedule to the text that a backend writes.

main (DIMENSIONS: lines), main_kernel      ->      main, main_kernel (DIMENSIONS: lines)
"""

from __future__ import annotations

from typing import Any

import tvm

from romou.devices.backends.launch import DIMENSIONS


@tvm.transform.module_pass(opt_level=0)
def keep_dimensions(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Move the attribute `DIMENSIONS` from a host function to the last of its kernels, which computes the sum."""
    functions: dict[Any, Any] = dict(mod.functions_items())
    lines = [func.attrs[DIMENSIONS] for func in functions.values() if func.attrs and DIMENSIONS in func.attrs]
    kernels = [var for var in functions if "tirx.kernel_launch_params" in (functions[var].attrs or {})]
    if len(lines) != 1 or not kernels:
        return mod
    last = max(kernels, key=lambda var: (len(str(var.name_hint)), str(var.name_hint)))
    for var, func in functions.items():
        if func.attrs and DIMENSIONS in func.attrs:
            functions[var] = func.without_attr(DIMENSIONS)
    functions[last] = functions[last].with_attr(DIMENSIONS, lines[0])
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
