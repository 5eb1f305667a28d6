"""Relax operators as TIR functions, in groups that become one kernel each."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx
from tvm.relax.dpl import is_op, rewrite_call, wildcard
from tvm_ffi.structural import structural_map

from romou.base.errors import BrokenNodesError
from romou.compiler.graph.legalize import LEGALIZED
from romou.compiler.graph.rewrite import with_main
from romou.compiler.scheduling.blocks import is_regular, is_view, reductions_of
from romou.compiler.scheduling.rewrites import inlined
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.origin import bindings_of, origins_of

if TYPE_CHECKING:
    from romou.devices.targets import Target

# Characters of a kernel's name. Two that are joined, with what TVM adds, stay below the 255 that a file's name may
# have.
_LONGEST_NAME = 110
# Operators of a kernel. Each is a few parentheses more in its text, of which compilers take 256 inside each other.
_MOST_FUSED = 32


def legalize_operators(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """relax.add(x, y)      ->      call_tir(add, (x, y))

    Raises
    ------
    BrokenNodesError
        An operator has no TIR function; names its ONNX nodes.
    """
    legalize = tvm.transform.Sequential(
        [
            # Sorts and running sums have no other form for GPUs.
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(LEGALIZED),
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
    """conv2d(x, w); add(_, bias); add(_, skip); relu(_)   ->   fused_conv2d_add_add_relu(x, w, bias, skip)

    Elementwise operators behind a contraction (bias, residual, activation) become its epilogue. Other elementwise
    chains become one group each.
    """
    current = tvm.transform.PassContext.current()
    config = {**dict(current.config), "relax.FuseOps.max_depth": _MOST_FUSED}
    with tvm.transform.PassContext(
        opt_level=current.opt_level, disabled_pass=list(current.disabled_pass), config=config
    ):
        return relax.transform.FuseOps()(mod)


def _name_broken(mod: tvm.IRModule, to_functions: tvm.transform.Pass) -> None:
    """Make functions of one operator after the other; BrokenNodesError names those with which that fails."""
    main = mod["main"]
    origins = origins_of(main)
    for binding in bindings_of(main):
        params = list(relax.analysis.free_vars(binding.value))
        block = relax.DataflowBlock([relax.VarBinding(result := relax.Var("result", binding.var.ty), binding.value)])
        alone = tvm.IRModule({var: func for var, func in mod.functions_items() if var.name_hint != "main"})
        alone["main"] = relax.Function(params, relax.SeqExpr([block], result), binding.var.ty)
        try:
            to_functions(alone)
        except Exception as error:  # by many types
            raise BrokenNodesError.of(
                op_name(binding.value) or "a value of the graph", origins[binding.var], error
            ) from error


def shorten_names(mod: tvm.IRModule) -> tvm.IRModule:
    """fused_add_add1_add2_... (300 characters)      ->      fused_add_add1_..._1f0a93c2

    A name says all operators of a kernel. Compilers put it into names of files, which are of 255 characters at most,
    and add to it.
    """

    def shorter(name: str) -> str:
        return (
            name
            if len(name) <= _LONGEST_NAME
            else f"{name[: _LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        )

    names = {
        var: tvm.ir.GlobalVar(shorter(var.name_hint))
        for var in mod.get_global_vars()
        if len(var.name_hint) > _LONGEST_NAME
    }
    if not names:
        return mod
    for old, new in names.items():
        relax.expr._update_type(new, old.ty)
    main = mod["main"]
    functions = {names.get(var, var): func for var, func in mod.functions_items() if var.name_hint != "main"}
    body = structural_map(main.body, (tvm.ir.GlobalVar, lambda var: names.get(var, var)))
    functions[mod.get_global_var("main")] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def sum_along_rows(mod: tvm.IRModule) -> tvm.IRModule:
    """cumsum(x, axis=-1)      ->      reshape(cumsum(reshape(x, (..., n, 1)), axis=-2), (..., n))

    TVM's own kernel for running sums along the last axis is wrong in OpenCL; along any other axis it takes another one.
    """

    def sums(call: relax.Call, _matched: object) -> relax.Expr:
        shape, axis = list(call.ty.shape.values), call.attrs.axis
        if axis is None or int(axis) % len(shape) != len(shape) - 1:
            return call
        column = relax.op.reshape(call.args[0], [*shape, 1])
        return relax.op.reshape(
            relax.op.cumsum(column, len(shape) - 1, call.attrs.dtype, bool(call.attrs.exclusive)), shape
        )

    return with_main(mod, rewrite_call(is_op("relax.cumsum")(wildcard()), sums, mod["main"]))


def merge_views(mod: tvm.IRModule) -> tvm.IRModule:
    """reshape(reshape(x)) in one function      ->      one reshape, of which TVM makes a view, not a kernel"""
    merged = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for var, func in mod.functions_items():
        # Inlining copies a function, so that only what may be a view is looked at.
        if isinstance(func, tirx.PrimFunc) and len(func.params) == 2 and is_regular(func) and not reductions_of(func):
            one = inlined(func)
            if is_view(one):
                merged[var] = tirx.PrimFunc(one.params, one.body, func.ret_type, func.attrs)
    return merged
