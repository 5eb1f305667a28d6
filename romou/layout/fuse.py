"""Lower Relax operators to TIR functions and fuse every contraction with its epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax

from romou.layout.sink_reshapes import sink_reshapes

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
        return tvm.transform.Sequential(passes)(mod)
