"""Transposed convolution on channels packed by four, as one convolution of stride 1: no zeros are inserted, nothing is added up twice.

data    (n, ceil(ic / 4), ih, iw, 4)
weight  as of `conv2d`, or of `depthwise`, for the convolution `Conv2dTranspose.phases`
output  (n, ceil(oc / 4), oh, ow, 4)

An output pixel y sees the taps k of the kernel with (y + top - k) % stride == 0: which these are depends on its phase (y + top) % stride alone. So
the phases are output channels of one convolution over the same input, with as many taps as the fullest phase has, and `output` says of which phase
and pixel of it an element of the result is (Shi et al., Real-Time Single Image and Video Super-Resolution, CVPR 2016, section 3.2, for
the phases).
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
from tvm import te, tirx

from romou.schedules import conv2d, depthwise
from romou.schedules.contraction import Contraction
from romou.schedules.workload import LANES, Conv2dTranspose, stored_as

FAMILY = "conv2d_transpose"


def is_mine(w: Conv2dTranspose) -> bool:
    """One group, or as many as there are channels; no dilation."""
    return w.dilation == (1, 1) and (w.groups == 1 or depthwise.is_mine(w))


def works_in_texels(w: Conv2dTranspose) -> bool:
    """Whether the schedule reads its data in whole texels."""
    return True


def weight_shape(w: Conv2dTranspose) -> tuple[int, ...]:
    """Shape of the packed weight, in elements."""
    return _of_phases(w).weight_shape(w.phases)  # type: ignore[no-any-return]


def pack_weight(w: Conv2dTranspose, weight: np.ndarray) -> np.ndarray:
    """IOHW (ic, oc / groups, kh, kw) -> the packed weight of the convolution of the phases, with zeros for taps that a phase lacks."""
    if w.groups == 1:
        weight = weight.transpose(1, 0, 2, 3)
    (sh, sw), (th, tw) = w.stride, w.phases.kernel
    channels, inputs, kh, kw = weight.shape
    full = np.zeros((w.texels * LANES, inputs, th * sh, tw * sw), weight.dtype)
    full[:channels, :, :kh, :kw] = weight
    # Tap t of phase p is p + t * stride; as the input runs the other way, the last one comes first.
    taps = full.reshape(w.texels * LANES, inputs, th, sh, tw, sw)[:, :, ::-1, :, ::-1].transpose(3, 5, 0, 1, 2, 4)
    return _of_phases(w).pack_weight(w.phases, taps.reshape(-1, inputs, th, tw))  # type: ignore[no-any-return]


def define(w: Conv2dTranspose, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """The plain definition: what fusion sees, and the reference that a candidate is checked against."""
    form = contraction(w, data, weight, flat=False)
    r = [te.reduce_axis((0, extent), name) for name, extent in form.reduce.items()]

    def value(*i: tirx.Expr) -> tirx.Expr:
        o, h, x, lane = form.output(*i)
        return te.sum(form.lhs(o, h, x, lane, *r).astype("float32") * form.rhs(o, lane, *r).astype("float32"), axis=r)

    return stored_as(w.dtype, te.compute(w.output_shape, value, name=FAMILY, attrs=w.block_attrs(FAMILY)))


def contraction(w: Conv2dTranspose, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False) -> Contraction:
    """The same as a contraction: that of the phases, whose results are put where they belong."""
    form = _of_phases(w).contraction(w.phases, data, weight, flat, is_zero_outside)

    def output(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tuple[tirx.Expr, ...]:
        return form.output(n, *w.phase_of(o, y, x), lane)

    if w.groups > 1:
        # All phases of a channel read that channel.
        return replace(form, output=output, output_shape=w.output_shape, lhs=lambda o, *at: form.lhs(o % w.texels, *at))
    return replace(form, output=output, output_shape=w.output_shape)


def _of_phases(w: Conv2dTranspose) -> ModuleType:
    return conv2d if w.groups == 1 else depthwise
