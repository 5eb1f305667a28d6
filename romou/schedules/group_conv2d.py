"""Grouped convolution whose groups cut through texels (also depthwise with a channel multiplier).

data    (n, ceil(ic / 4), ih, iw, 4)   weight  (ic / groups, kh, kw, ceil(oc / 4), 4)   output  (n, ceil(oc / 4), oh, ow, 4)

Neighbouring output channels may read different input channels, so lanes are loaded one by one.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from romou.schedules.contraction import Contraction
from romou.schedules.workload import Conv2d, stored_as, window_index
from romou.tir.primitives import LANES

FAMILY = "group_conv2d"


def is_mine(w: Conv2d) -> bool:
    """Whatever the other two families leave."""
    return w.groups > 1


def works_in_texels(w: Conv2d) -> bool:
    """Whether the schedule reads its data in whole texels: its groups cut texels."""
    return False


def weight_shape(w: Conv2d) -> tuple[int, ...]:
    """Shape of the packed weight, in elements."""
    return (w.in_channels // w.groups, *w.kernel, w.out_texels, LANES)


def pack_weight(w: Conv2d, weight: np.ndarray) -> np.ndarray:
    """OIHW (oc, ic / groups, kh, kw) -> (ic / groups, kh, kw, ceil(oc / 4), 4), padded with zeros."""
    oc, ic, kh, kw = weight.shape
    full = np.zeros((w.out_texels * LANES, ic, kh, kw), weight.dtype)
    full[:oc] = weight
    return np.ascontiguousarray(full.reshape(w.out_texels, LANES, ic, kh, kw).transpose(2, 3, 4, 0, 1))


def define(w: Conv2d, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """The plain definition: what fusion sees, and the reference that a candidate is checked against."""
    r = {n: te.reduce_axis((0, e), n) for n, e in _reduction(w).items()}

    def value(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        tap = _load(w, data, n, o, y, x, lane, *r.values())
        return te.sum(tap.astype("float32") * weight[(*r.values(), o, lane)].astype("float32"), axis=list(r.values()))

    return stored_as(w.dtype, te.compute(w.output_shape, value, name="group_conv2d", attrs=w.block_attrs(FAMILY)))


def contraction(w: Conv2d, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False) -> Contraction:
    """The same as a contraction without vector loads."""
    extents, place, output = w.pixels(flat)

    def lhs(o: tirx.Expr, h: tirx.Expr, x: tirx.Expr, lane: tirx.Expr, *r: tirx.Expr) -> tirx.Expr:
        n, oy, ox = place(h, x)
        return _load(w, data, n, o, oy, ox, lane, *r)

    return Contraction(
        inputs=[data, weight],
        extents=extents,
        reduce=_reduction(w),
        lhs=lhs,
        rhs=lambda o, lane, *r: weight[(*r, o, lane)],
        output=output,
        output_shape=w.output_shape,
        lhs_varies="by lane",
        vector=False,
    )


def _reduction(w: Conv2d) -> dict[str, int]:
    return {"ic": w.in_channels // w.groups, "kh": w.kernel[0], "kw": w.kernel[1]}


def _load(w: Conv2d, data: te.Tensor, n, o, oy, ox, lane, ic, kh, kw):  # type: ignore[no-untyped-def]
    # Lanes that pad the last texel belong to no group; their weights are zero, so any channel in range will do.
    out_channel = te.min(o * LANES + lane, w.out_channels - 1)
    channel = out_channel // (w.out_channels // w.groups) * (w.in_channels // w.groups) + ic
    return window_index(w, oy, ox, kh, kw, lambda y, x: data[n, channel // LANES, y, x, channel % LANES])
