"""Depthwise convolution with channels packed by four: each lane has its own window, and channels are not summed.

data    (n, c / 4, ih, iw, 4)      weight  (kh, kw, c / 4, 4)      output  (n, c / 4, oh, ow, 4)
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.convolution import ConvolutionFamily
from romou.compiler.operators.workload import Conv2d, Expr, window_index
from romou.compiler.tir.primitives import LANES


class DepthwiseFamily(ConvolutionFamily[Conv2d]):
    """Convolutions with one input and one output channel in each group."""

    name = "depthwise"
    workload = Conv2d
    typical = (
        Conv2d(in_channels=16, in_hw=(13, 13), out_channels=16, kernel=(3, 3), padding=(1, 1, 1, 1), groups=16),
        Conv2d(
            in_channels=6, in_hw=(9, 8), out_channels=6, kernel=(5, 5), stride=(2, 2), padding=(2, 2, 2, 2), groups=6
        ),
    )

    def is_mine(self, w: Conv2d) -> bool:
        """Return whether each channel is a group."""
        return w.groups > 1 and w.groups == w.in_channels == w.out_channels

    def weight_shape(self, w: Conv2d) -> tuple[int, ...]:
        return (*w.kernel, w.out_texels, LANES)

    def pack_weight(self, w: Conv2d, weight: np.ndarray) -> np.ndarray:
        """Return the weight in texels, padded with zeros: OIHW (c, 1, kh, kw) -> (kh, kw, ceil(c / 4), 4)."""
        channels, _, kh, kw = weight.shape
        full = np.zeros((w.out_texels * LANES, kh, kw), weight.dtype)
        full[:channels] = weight[:, 0]
        return np.ascontiguousarray(full.reshape(w.out_texels, LANES, kh, kw).transpose(2, 3, 0, 1))

    def tap_of(self, w: Conv2d, *index: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        kh, kw, o, lane = index
        return o * LANES + lane, 0, kh, kw

    def contraction(
        self, w: Conv2d, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return a contraction over the window. Its lhs varies with the output channel."""
        extents, pixel, output = w.pixels(flat)

        def lhs(c: tirx.Expr, h: tirx.Expr, x: tirx.Expr, lane: tirx.Expr, kh: tirx.Expr, kw: tirx.Expr) -> tirx.Expr:
            n, oy, ox = pixel(h, x)
            return window_index(
                w,
                oy,
                ox,
                kh,
                kw,
                lambda iy, ix: w.data_number(data[n, c, iy, ix, lane]),
                is_zero_outside=is_zero_outside,
            )

        return Contraction(
            inputs=[data, weight],
            extents=extents,
            reduce={"ky": w.kernel[0], "kx": w.kernel[1]},
            lhs=lhs,
            rhs=lambda c, lane, kh, kw: w.weight_number(weight[kh, kw, c, lane]),
            output=output,
            output_shape=w.output_shape,
            axes=w.axes(flat),
            layouts=("n:oc:y:x:lane", "ky:kx:oc:lane", "n:oc:y:x:lane"),
            is_image=is_zero_outside,
            is_padded=any(w.padding),
            stride=w.stride[1],
            lhs_varies="by lane",
        )


FAMILY = DepthwiseFamily()
