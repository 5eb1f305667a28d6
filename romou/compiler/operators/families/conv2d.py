"""Convolution with channels packed by four: any kernel, stride, padding and dilation, and groups of whole texels.

data    (n, ceil(ic / 4), ih, iw, 4)
weight  (ic / groups / 4, kh, kw, 4, oc / 4, 4)   lanes: of input channels, then of output channels
output  (n, ceil(oc / 4), oh, ow, 4)

An fp32 weight has no lanes for missing input channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import te, tirx

from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.convolution import ConvolutionFamily
from romou.compiler.operators.winograd.convolution import TILES, Winograd, algorithms
from romou.compiler.operators.workload import Conv2d, Expr, window_index
from romou.compiler.tir.primitives import LANES


class Conv2dFamily(ConvolutionFamily[Conv2d]):
    """Convolutions with one group, or with groups of whole texels."""

    name = "conv2d"
    workload = Conv2d
    typical = (
        Conv2d(in_channels=8, in_hw=(13, 11), out_channels=12, kernel=(3, 3), padding=(1, 1, 1, 1)),
        Conv2d(in_channels=3, in_hw=(9, 10), out_channels=7, kernel=(5, 3), stride=(2, 1), padding=(2, 1, 1, 0)),
        Conv2d(
            in_channels=16,
            in_hw=(7, 6),
            out_channels=8,
            kernel=(3, 3),
            padding=(2, 2, 2, 2),
            dilation=(2, 2),
            groups=2,
            batch=2,
        ),
    )

    def is_mine(self, w: Conv2d) -> bool:
        """Return whether there is one group, or each group fills whole texels."""
        return w.groups == 1 or (w.in_channels // w.groups % LANES == 0 and w.out_channels // w.groups % LANES == 0)

    def winograd(self, w: Conv2d) -> dict[str, Winograd]:
        return {name: Winograd(w, TILES[name]) for name in algorithms(w)}

    def weight_shape(self, w: Conv2d) -> tuple[int, ...]:
        return (-(-w.in_channels // w.groups // LANES), w.kernel[0], w.kernel[1], _lanes(w), w.out_texels, LANES)

    def pack_weight(self, w: Conv2d, weight: np.ndarray) -> np.ndarray:
        """Pack the weight by four input and four output channels, padded with zeros.

        OIHW (oc, ic / groups, kh, kw)      ->      (ceil(ic / groups / 4), kh, kw, 4 or fewer, ceil(oc / 4), 4)
        """
        oc, ic, kh, kw = weight.shape
        ic4, oc4 = -(-ic // LANES), -(-oc // LANES)
        full = np.zeros((oc4 * LANES, ic4 * LANES, kh, kw), weight.dtype)
        full[:oc, :ic] = weight
        return np.ascontiguousarray(
            full.reshape(oc4, LANES, ic4, LANES, kh, kw).transpose(2, 4, 5, 3, 0, 1)[:, :, :, : _lanes(w)]
        )

    def tap_of(self, w: Conv2d, *index: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        texel, kh, kw, ilane, o, lane = index
        return o * LANES + lane, texel * LANES + ilane, kh, kw

    def contraction(
        self, w: Conv2d, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        extents, pixel, output = w.pixels(flat)

        def lhs(o: tirx.Expr, h: tirx.Expr, x: tirx.Expr, _lane: tirx.Expr, *r: tirx.Expr) -> tirx.Expr:
            return _load(w, data, pixel(h, x), o, r, is_zero_outside=is_zero_outside)

        return Contraction(
            inputs=[data, weight],
            extents=extents,
            reduce=_reduction(w),
            lhs=lhs,
            rhs=lambda o, lane, *r: w.weight_number(weight[(*r, o, lane)]),
            output=output,
            output_shape=w.output_shape,
            axes=w.axes(flat),
            layouts=("n:ic:y:x:lane", "ic:ky:kx:ilane:oc:lane", "n:oc:y:x:lane"),
            is_image=is_zero_outside,
            is_padded=any(w.padding),
            stride=w.stride[1],
            texel=LANES,
            lhs_varies="by texel" if w.groups > 1 else "never",
        )


def _reduction(w: Conv2d) -> dict[str, int]:
    return {"ic": -(-w.in_channels // w.groups // LANES), "ky": w.kernel[0], "kx": w.kernel[1], "ilane": _lanes(w)}


def _lanes(w: Conv2d) -> int:
    """Return how many lanes of an input texel are multiplied.

    fp32: the lanes that hold channels, three in the first layer of most networks. fp16: all four, because matrix units
    take whole texels.
    """
    return min(w.in_channels // w.groups, LANES) if w.dtype == "float32" else LANES


def _load(
    w: Conv2d, data: te.Tensor, pixel: Sequence[Expr], o: Expr, r: Sequence[Expr], *, is_zero_outside: bool = False
) -> tirx.Expr:
    """Return the data's factor for output texel `o` of pixel (n, y, x), at r = (ic, kh, kw, lane) of the reduction."""
    (n, oy, ox), (texel, kh, kw, ilane) = pixel, r
    if w.groups > 1:
        texel = o // (w.out_texels // w.groups) * (w.in_channels // w.groups // LANES) + texel
    return window_index(
        w, oy, ox, kh, kw, lambda y, x: w.data_number(data[n, texel, y, x, ilane]), is_zero_outside=is_zero_outside
    )


FAMILY = Conv2dFamily()
