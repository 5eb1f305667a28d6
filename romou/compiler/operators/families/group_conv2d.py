"""Grouped convolution with groups that cut through texels, or depthwise convolution with a channel multiplier.

data    (n, ceil(ic / 4), ih, iw, 4)
weight  (ic / groups, kh, kw, ceil(oc / 4), 4)
output  (n, ceil(oc / 4), oh, ow, 4)

Neighbouring output channels may read different input channels, so lanes are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import te, tirx

from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.convolution import ConvolutionFamily
from romou.compiler.operators.workload import Conv2d, Expr, window_index
from romou.compiler.tir.primitives import LANES


class GroupConv2dFamily(ConvolutionFamily[Conv2d]):
    """Grouped convolutions that no other family takes. No tensor is accessed in whole texels."""

    name = "group_conv2d"
    precedence = 1
    workload = Conv2d
    works_in_texels = False
    typical = (
        Conv2d(in_channels=6, in_hw=(7, 7), out_channels=12, kernel=(3, 3), padding=(1, 1, 1, 1), groups=6),
        Conv2d(in_channels=12, in_hw=(6, 5), out_channels=9, kernel=(3, 2), padding=(1, 0, 1, 1), groups=3),
    )

    def is_mine(self, w: Conv2d) -> bool:
        """Return whether the convolution has groups."""
        return w.groups > 1

    def weight_shape(self, w: Conv2d) -> tuple[int, ...]:
        return (w.in_channels // w.groups, *w.kernel, w.out_texels, LANES)

    def pack_weight(self, w: Conv2d, weight: np.ndarray) -> np.ndarray:
        """Return the weight in texels, padded with zeros.

        OIHW (oc, ic / groups, kh, kw)      ->      (ic / groups, kh, kw, ceil(oc / 4), 4)
        """
        oc, ic, kh, kw = weight.shape
        full = np.zeros((w.out_texels * LANES, ic, kh, kw), weight.dtype)
        full[:oc] = weight
        return np.ascontiguousarray(full.reshape(w.out_texels, LANES, ic, kh, kw).transpose(2, 3, 4, 0, 1))

    def tap_of(self, w: Conv2d, *index: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        ic, kh, kw, o, lane = index
        return o * LANES + lane, ic, kh, kw

    def contraction(
        self, w: Conv2d, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return a contraction without vector loads."""
        extents, pixel, output = w.pixels(flat)

        def lhs(o: tirx.Expr, h: tirx.Expr, x: tirx.Expr, lane: tirx.Expr, *r: tirx.Expr) -> tirx.Expr:
            return _load(w, data, pixel(h, x), o, lane, r)

        return Contraction(
            inputs=[data, weight],
            extents=extents,
            reduce=_reduction(w),
            lhs=lhs,
            rhs=lambda o, lane, *r: w.weight_number(weight[(*r, o, lane)]),
            output=output,
            output_shape=w.output_shape,
            axes=w.axes(flat),
            layouts=("n:ic:y:x:lane", "ic:ky:kx:oc:lane", "n:oc:y:x:lane"),
            lhs_varies="by lane",
            vector=False,
        )


def _reduction(w: Conv2d) -> dict[str, int]:
    return {"ic": w.in_channels // w.groups, "ky": w.kernel[0], "kx": w.kernel[1]}


def _load(w: Conv2d, data: te.Tensor, pixel: Sequence[Expr], o: Expr, lane: Expr, r: Sequence[Expr]) -> tirx.Expr:
    """Return the data's factor for a lane of output texel `o` of pixel (n, y, x), at r = (ic, kh, kw)."""
    (n, oy, ox), (ic, kh, kw) = pixel, r
    # Lanes that pad the last texel belong to no group. Their weights are zero, so they may read any channel.
    out_channel = te.min(o * LANES + lane, w.out_channels - 1)
    channel = out_channel // (w.out_channels // w.groups) * (w.in_channels // w.groups) + ic
    return window_index(w, oy, ox, kh, kw, lambda y, x: w.data_number(data[n, channel // LANES, y, x, channel % LANES]))


FAMILY = GroupConv2dFamily()
