"""Match every fused function against the operator families early, so that a family that fails is reported by name."""

from __future__ import annotations

from functools import partial

import tvm
from tvm import tirx

from romou.compiler.failures import Failures
from romou.compiler.graph.origins import function_origins
from romou.compiler.operators.families import template_of


def check_families(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` unchanged. `template_of` caches its results for later stages.

    Raises
    ------
    BrokenFunctionsError
        A family failed. The error names the functions and their ONNX nodes.
    """
    failures = Failures()
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            failures.attempt(str(var.name_hint), f"the kernel {var.name_hint}", partial(template_of, func))
    failures.check(function_origins(mod))
    return mod
