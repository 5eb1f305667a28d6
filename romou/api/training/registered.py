"""Gradients that replace TVM's.

TVM 0.27 forgets the dilation of a convolution when its gradient computes how many rows a stride leaves over. Its
gradient of max pooling has no kernel for GPUs (`romou/api/training/max_pool.py`). Drop each when TVM's works.
"""

from __future__ import annotations

import functools

from tvm import relax

from romou.api.training import max_pool
from romou.base.errors import ModelError
from romou.compiler.operators.families.bases.convolution import common_fields
from romou.compiler.operators.families.conv2d_backward_filter import in_relax
from romou.compiler.operators.families.conv2d_transpose import backward_input
from romou.compiler.operators.workload import Conv2d
from romou.compiler.tir.expressions import static_shape

# TVM registers its own at 10.
_LEVEL = 15


@functools.cache
def register_gradients() -> None:
    """Register the gradients in this process."""
    relax.op.register_gradient("relax.nn.conv2d", _of_conv2d, _LEVEL)
    relax.op.register_gradient("relax.nn.max_pool2d", max_pool.gradient, _LEVEL)


def _of_conv2d(
    _var: relax.Var, call: relax.Call, gradient: relax.Var, _builder: relax.BlockBuilder
) -> list[relax.Expr]:
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
        raise ModelError(f"a convolution of layouts {attrs.data_layout} and {attrs.kernel_layout} has no gradient")
    data, weight = call.args
    work = Conv2d(out_channels=static_shape(weight)[0], **common_fields(call))
    by = backward_input(work)
    by_input = relax.op.nn.conv2d_transpose(
        gradient,
        weight,
        strides=by.stride,
        padding=by.padding,
        output_padding=by.output_padding,
        dilation=by.dilation,
        groups=by.groups,
    )
    return [by_input, in_relax(work, data, gradient)]
