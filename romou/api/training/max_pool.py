"""The gradient of max pooling. TVM's own kernel reduces over pairs (argmax), which its schedules for GPUs refuse."""

from __future__ import annotations

import math

from tvm import relax, te, tirx

from romou.base.errors import ModelError
from romou.compiler.operators.families.bases.convolution import four_sides
from romou.compiler.tir.expressions import static_shape


def gradient(var: relax.Var, call: relax.Call, by_output: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    """Return the gradient of max pooling. Each window's gradient goes to its first maximum, as in PyTorch.

    first[p]  = the first tap of window p whose input is the output
    result[y] = the sum of by_output[p], over windows p and taps t with p * stride + t * dilation - padding = y and
    first[p] = t
    """
    attrs, (data,) = call.attrs, call.args
    if attrs.layout != "NCHW":
        raise ModelError(f"max pooling of layout {attrs.layout} has no gradient")
    kernel, stride, dilation = ([int(v) for v in values] for values in (attrs.pool_size, attrs.strides, attrs.dilation))
    before, shape, out_shape = four_sides(attrs.padding)[:2], static_shape(data), static_shape(var)

    def reduced() -> list[tirx.IterVar]:
        return [te.reduce_axis((0, extent), name) for extent, name in zip(kernel, ("i", "j"), strict=True)]

    def first_maximum(data: te.Tensor, output: te.Tensor) -> te.Tensor:
        taps = reduced()

        def value(n: tirx.Expr, c: tirx.Expr, *p: tirx.Expr) -> tirx.Expr:
            at = [o * s + t * d - b for o, t, s, d, b in zip(p, taps, stride, dilation, before, strict=True)]
            inside = [check for v, extent in zip(at, data.shape[2:], strict=True) for check in (v >= 0, v < extent)]
            # In the padding any other value will do.
            is_maximum = tirx.all(
                *inside,
                te.if_then_else(tirx.all(*inside), data[n, c, at[0], at[1]], tirx.const(0, data.dtype))
                == output[n, c, p[0], p[1]],
            )
            return te.min(te.if_then_else(is_maximum, taps[0] * kernel[1] + taps[1], math.prod(kernel)), axis=taps)

        return te.compute(output.shape, value, name="first_maximum")

    def to_inputs(by_output: te.Tensor, first: te.Tensor) -> te.Tensor:
        taps = reduced()

        def value(n: tirx.Expr, c: tirx.Expr, *at: tirx.Expr) -> tirx.Expr:
            steps = [v + b - t * d for v, b, t, d in zip(at, before, taps, dilation, strict=True)]
            checks, p = list[tirx.Expr](), list[tirx.Expr]()
            for v, s, extent in zip(steps, stride, out_shape[2:], strict=True):
                checks += [v >= 0, v % s == 0, v // s < extent]
                p.append(te.max(te.min(v // s, extent - 1), 0))
            is_mine = tirx.all(*checks, first[n, c, p[0], p[1]] == taps[0] * kernel[1] + taps[1])
            other = tirx.const(0, by_output.dtype)
            return te.sum(te.if_then_else(is_mine, by_output[n, c, p[0], p[1]], other), axis=taps)

        return te.compute(shape, value, name="max_pool_gradient")

    first = builder.emit_te(first_maximum, data, var, primfunc_name_hint="first_maximum")
    return [builder.emit_te(to_inputs, by_output, first, primfunc_name_hint="max_pool_gradient")]
