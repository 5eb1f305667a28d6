"""Lower Relax operators to TIR functions and fuse every contraction with its epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx
from tvm.relax.dpl import is_op, rewrite_call, wildcard

from romou.layout.rewrite import with_main
from romou.layout.sink_reshapes import sink_reshapes
from romou.schedules.blocks import inlined, is_regular, is_view, reductions_of

if TYPE_CHECKING:
    from romou.target import Target


def fuse_operators(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """conv2d(x, w); add(_, bias); add(_, skip); relu(_)   ->   fused_conv2d_add_add_relu(x, w, bias, skip)

    What follows a contraction element-wise (bias, residual, activation) becomes its epilogue; other element-wise chains become
    one function each. Reshapes in between are moved out of the way.
    """
    mod = sink_reshapes(sum_along_rows(mod))
    passes = [
        # Sorts and running sums have no other form for GPUs.
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    with target.tvm_target:
        return merge_views(tvm.transform.Sequential(passes)(mod))


def sum_along_rows(mod: tvm.IRModule) -> tvm.IRModule:
    """cumsum(x, axis=-1)      ->      reshape(cumsum(reshape(x, (..., n, 1)), axis=-2), (..., n))

    TVM's own kernel for running sums along the last axis is wrong in OpenCL; along any other axis it takes another one.
    """

    def sums(call: relax.Call, _matched: object) -> relax.Expr:
        shape, axis = list(call.ty.shape.values), call.attrs.axis
        if axis is None or int(axis) % len(shape) != len(shape) - 1:
            return call
        column = relax.op.reshape(call.args[0], [*shape, 1])
        return relax.op.reshape(relax.op.cumsum(column, len(shape) - 1, call.attrs.dtype, bool(call.attrs.exclusive)), shape)

    return with_main(mod, rewrite_call(is_op("relax.cumsum")(wildcard()), sums, mod["main"]))


def merge_views(mod: tvm.IRModule) -> tvm.IRModule:
    """reshape(reshape(x)) in one function      ->      one reshape, of which TVM makes a view, not a kernel"""
    merged = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and is_regular(func) and not reductions_of(func):
            one = inlined(func)
            if is_view(one):
                merged[var] = tirx.PrimFunc(one.params, one.body, func.ret_type, func.attrs)
    return merged
