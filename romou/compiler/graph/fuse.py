"""Lower Relax operators to TIR functions and fuse them into groups, one kernel each."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from romou.base.errors import BrokenNodesError
from romou.compiler.graph.legalize import LEGALIZED, OF_SIZES
from romou.compiler.graph.relax_rewriter import with_names
from romou.compiler.scheduling.blocks import is_regular, is_view, reductions_of
from romou.compiler.scheduling.rewrites import inlined
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.origin import bindings_of, origins_of
from romou.compiler.tir.primitives import with_own_names
from romou.compiler.tir.traversal import copy_of, function_pass, with_fields

if TYPE_CHECKING:
    from romou.devices.targets import Target

# Characters of a kernel's name. Two names joined, with TVM's suffixes, stay below the 255 characters of a file name.
_LONGEST_NAME = 110
# Operators of a kernel. Each adds a few nested parentheses to the source, and compilers accept 256 levels.
_MOST_FUSED = 32


def legalize_operators(mod: tvm.IRModule, target: Target, has_sizes: bool = False) -> tvm.IRModule:
    """Lower operators to calls of TIR functions.

    relax.add(x, y)      ->      call_tir(add, (x, y))

    Raises
    ------
    BrokenNodesError
        An operator has no TIR function. The error names its ONNX nodes.
    """
    legalize = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(LEGALIZED | OF_SIZES if has_sizes else LEGALIZED),
            relax.transform.AnnotateTIROpPattern(),
        ]
    )
    with target.tvm_target:
        try:
            return legalize(mod)
        except Exception:
            _name_broken(mod, legalize)
            raise


def group_operators(mod: tvm.IRModule) -> tvm.IRModule:
    """Fuse element-wise operators into the contraction before them.

    relu(add(add(conv2d(x, w), bias), skip))      ->      fused_conv2d_add_add_relu(x, w, bias, skip)

    The operators behind a contraction (bias, residual, activation) become its epilogue. Other element-wise chains
    become one group each.
    """
    current = tvm.transform.PassContext.current()
    config = {**dict(current.config), "relax.FuseOps.max_depth": _MOST_FUSED}
    with tvm.transform.PassContext(
        opt_level=current.opt_level, disabled_pass=list(current.disabled_pass), config=config
    ):
        return relax.transform.FuseOps()(mod)


def _name_broken(mod: tvm.IRModule, to_functions: tvm.transform.Pass) -> None:
    """Lower operators one by one. Raise BrokenNodesError with the nodes of the first operator that fails."""
    main = mod["main"]
    origins = origins_of(main)
    for binding in bindings_of(main):
        params = list(relax.analysis.free_vars(binding.value))
        block = relax.DataflowBlock([relax.VarBinding(result := relax.Var("result", binding.var.ty), binding.value)])
        alone = tvm.IRModule({var: func for var, func in mod.functions_items() if var.name_hint != "main"})
        alone["main"] = relax.Function(params, relax.SeqExpr([block], result), binding.var.ty)
        try:
            to_functions(alone)
        except Exception as error:  # TVM raises many types
            raise BrokenNodesError.of(
                op_name(binding.value) or "a value of the graph", origins[binding.var], error
            ) from error


def name_parameters_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """Give each parameter of a function a name of its own. TVM names both parameters of x * x alike.

    The pass runs behind `FuseTIR`, which needs the equal names.
    """
    return function_pass(with_own_names)(mod)


def shorten_names(mod: tvm.IRModule) -> tvm.IRModule:
    """Cut the names of kernels at a length that compilers accept as part of a file name.

    fused_add_add1_add2_... (300 characters)      ->      fused_add_add1_..._1f0a93c2

    A kernel's name lists all of its operators. Compilers derive file names from it, with suffixes.
    """

    def shorter(name: str) -> str:
        return (
            name
            if len(name) <= _LONGEST_NAME
            else f"{name[: _LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        )

    names = [var.name_hint for var in mod.get_global_vars()]
    return with_names(mod, {name: shorter(name) for name in names})


def merge_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Merge reshapes of reshapes within a function into one reshape, which TVM lowers to a view instead of a kernel.

    reshape(reshape(x))      ->      reshape(x)
    """
    merged = copy_of(mod)
    for var, func in mod.functions_items():
        # Inlining copies a function, so it is done only for functions that may be views.
        if isinstance(func, tirx.PrimFunc) and len(func.params) == 2 and is_regular(func) and not reductions_of(func):
            flat = inlined(func)
            if is_view(flat):
                merged[var] = with_fields(flat, attrs=func.attrs)
    return merged
