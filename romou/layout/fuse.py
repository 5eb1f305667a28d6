"""Lower Relax operators to TIR functions and fuse every contraction with its epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from romou.layout.sink_reshapes import sink_reshapes
from romou.schedules.blocks import inlined, is_regular, is_view, reductions_of

if TYPE_CHECKING:
    from romou.target import Target


def fuse_operators(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """conv2d(x, w); add(_, bias); add(_, skip); relu(_)   ->   fused_conv2d_add_add_relu(x, w, bias, skip)

    What follows a contraction element-wise (bias, residual, activation) becomes its epilogue; other element-wise chains become
    one function each. Reshapes in between are moved out of the way.
    """
    mod = sink_reshapes(mod)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    with target.tvm_target:
        return merge_views(tvm.transform.Sequential(passes)(mod))


def merge_views(mod: tvm.IRModule) -> tvm.IRModule:
    """reshape(reshape(x)) in one function      ->      one reshape, of which TVM makes a view, not a kernel"""
    merged = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and is_regular(func) and not reductions_of(func):
            one = inlined(func)
            if is_view(one):
                merged[var] = tirx.PrimFunc(one.params, one.body, func.ret_type, func.attrs)
    return merged
