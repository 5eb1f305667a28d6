"""Transposed convolution on channels packed by four, as one convolution of stride 1: no zeros are inserted, nothing is added up twice.

data    (n, ceil(ic / 4), ih, iw, 4)
weight  packed as `conv2d` or `depthwise` packs it, for the convolution `Conv2dTranspose.phases`
output  (n, ceil(oc / 4), oh, ow, 4)

An output pixel y sees the taps k of the kernel with (y + top - k) % stride == 0: which these are depends on its phase (y + top) % stride alone. So
the phases are output channels of one convolution over the same input, with as many taps as the fullest phase has. `output` says of which phase
and pixel an element of the result is (Shi et al., Real-Time Single Image and Video Super-Resolution, CVPR 2016, section 3.2, for the phases).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.core.space import Config
from romou.schedules.contraction import Contraction
from romou.schedules.contraction.stages import Stage
from romou.schedules.convolution import ConvolutionFamily, common_fields
from romou.schedules.families.conv2d import FAMILY as CONV2D
from romou.schedules.families.depthwise import FAMILY as DEPTHWISE
from romou.schedules.family import Case
from romou.schedules.loops import Block, Loop
from romou.schedules.splice import as_module, renest
from romou.schedules.workload import Conv2d, Expr, stored_as
from romou.tir.expressions import static_shape
from romou.tir.primitives import LANES


@dataclass(frozen=True, kw_only=True)
class Conv2dTranspose(Conv2d):
    """A transposed 2-D convolution: `padding` is cut off the result, and output_padding (rows, columns) added to it below and on the right."""

    output_padding: tuple[int, int] = (0, 0)

    @property
    def out_hw(self) -> tuple[int, int]:
        (h, w), (sh, sw), (kh, kw), (dh, dw), (down, across) = self.in_hw, self.stride, self.kernel, self.dilation, self.output_padding
        top, left, bottom, right = self.padding
        return (h - 1) * sh + (kh - 1) * dh + 1 - top - bottom + down, (w - 1) * sw + (kw - 1) * dw + 1 - left - right + across

    @property
    def texels(self) -> int:
        """Texels of output channels, in one phase."""
        return -(-self.out_channels // LANES)

    @property
    def phases(self) -> Conv2d:
        """The convolution of stride 1 whose output channels are those of all phases, from the first pixel that any phase needs to the last one."""
        channels = math.prod(self.stride) * self.texels * LANES
        (kh, top, bottom), (kw, left, right) = (self._phases_along(axis) for axis in (0, 1))
        return Conv2d(
            batch=self.batch,
            in_channels=self.in_channels if self.groups == 1 else channels,
            in_hw=self.in_hw,
            out_channels=channels,
            kernel=(kh, kw),
            padding=(top, left, bottom, right),
            groups=1 if self.groups == 1 else channels,
            dtype=self.dtype,
        )

    def _phases_along(self, axis: int) -> tuple[int, int, int]:
        """Taps of `phases` along an axis, and its padding before and after."""
        stride, cut = self.stride[axis], self.padding[axis]
        taps = -(-self.kernel[axis] // stride)
        first, last = cut // stride, (cut + self.out_hw[axis] - 1) // stride
        return taps, taps - 1 - first, last - (self.in_hw[axis] - 1)

    def phase_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        """The channel texel and pixel of `phases` that is the output's (o, y, x)."""
        (sh, sw), (top, left, *_) = self.stride, self.padding
        y, x = y + top, x + left
        return (y % sh * sw + x % sw) * self.texels + o, y // sh - top // sh, x // sw - left // sw

    def place_of(self, channel: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        """The inverse of `phase_of`; some phases begin before the output does, or end after it."""
        (sh, sw), (top, left, *_) = self.stride, self.padding
        phase, o = channel // self.texels, channel % self.texels
        return o, (row + top // sh) * sh + phase // sw - top, (column + left // sw) * sw + phase % sw - left

    @property
    def flops(self) -> int:
        """Multiplications and additions of the operator, what it adds to cut off pixels counted."""
        taps = self.out_channels // self.groups * self.kernel[0] * self.kernel[1]
        return 2 * self.batch * self.in_channels * self.in_hw[0] * self.in_hw[1] * taps


class Conv2dTransposeFamily(ConvolutionFamily[Conv2dTranspose]):
    """Transposed convolutions with one group, or as many as there are channels; without dilation."""

    name = "conv2d_transpose"
    workload = Conv2dTranspose
    operators = frozenset({"relax.nn.conv2d_transpose"})
    kernel_layout = "IOHW"
    typical = (
        Conv2dTranspose(in_channels=8, in_hw=(5, 7), out_channels=12, kernel=(4, 4), stride=(2, 2), padding=(1, 1, 1, 1)),
        Conv2dTranspose(in_channels=3, in_hw=(5, 4), out_channels=6, kernel=(4, 3), stride=(3, 2), padding=(1, 0, 2, 1), output_padding=(1, 0), batch=2),
        Conv2dTranspose(in_channels=6, in_hw=(5, 3), out_channels=6, kernel=(3, 3), stride=(2, 2), padding=(2, 2, 2, 2), groups=6),
    )

    def work_of(self, call: relax.Call) -> Conv2dTranspose:
        fields, outputs = common_fields(call), static_shape(call.args[1])[1]
        rows, columns = (int(p) for p in call.attrs.output_padding)
        return Conv2dTranspose(out_channels=outputs * fields["groups"], output_padding=(rows, columns), **fields)

    def is_mine(self, w: Conv2dTranspose) -> bool:
        """Whether the phases are a convolution that a family takes."""
        return w.dilation == (1, 1) and (w.groups == 1 or DEPTHWISE.is_mine(w))

    def weight_shape(self, w: Conv2dTranspose) -> tuple[int, ...]:
        return _of_phases(w).weight_shape(w.phases)

    def pack_weight(self, w: Conv2dTranspose, weight: np.ndarray) -> np.ndarray:
        """IOHW (ic, oc / groups, kh, kw) -> the packed weight of the convolution of the phases, with zeros for taps that a phase lacks."""
        if w.groups == 1:
            weight = weight.transpose(1, 0, 2, 3)
        (sh, sw), (th, tw) = w.stride, w.phases.kernel
        channels, inputs, kh, kw = weight.shape
        full = np.zeros((w.texels * LANES, inputs, th * sh, tw * sw), weight.dtype)
        full[:channels, :, :kh, :kw] = weight
        # Tap t of phase p is p + t * stride; as the input runs the other way, the last one comes first.
        taps = full.reshape(w.texels * LANES, inputs, th, sh, tw, sw)[:, :, ::-1, :, ::-1].transpose(3, 5, 0, 1, 2, 4)
        return _of_phases(w).pack_weight(w.phases, taps.reshape(-1, inputs, th, tw))

    def define(self, w: Conv2dTranspose, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        form = self.contraction(w, data, weight, flat=False)
        r = [te.reduce_axis((0, extent), name) for name, extent in form.reduce.items()]

        def value(*i: tirx.Expr) -> tirx.Expr:
            o, h, x, lane = form.output(*i)
            return te.sum(form.lhs(o, h, x, lane, *r).astype("float32") * form.rhs(o, lane, *r).astype("float32"), axis=r)

        return stored_as(w.dtype, te.compute(w.output_shape, value, name=self.name, attrs=w.block_attrs(self.name)))

    def contraction(self, w: Conv2dTranspose, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False) -> Contraction:
        """The contraction of the phases, whose results are put where they belong."""
        form = _of_phases(w).contraction(w.phases, data, weight, flat, is_zero_outside)

        def output(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tuple[Expr, Expr, Expr, Expr]:
            return form.output(n, *w.phase_of(o, y, x), lane)

        if w.groups > 1:
            # All phases of a channel read that channel.
            return replace(form, output=output, output_shape=w.output_shape, lhs=lambda o, *at: form.lhs(o % w.texels, *at))
        return replace(form, output=output, output_shape=w.output_shape)

    def pixel_rows(self, w: Conv2dTranspose) -> int | None:
        return w.phases.out_hw[0]

    def output_loops(self, sch: s_tir.Schedule, output: Block, w: Conv2dTranspose, config: Config) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """The output nest over (o, h, w, lane) of the phases, in a schedule of its own."""
        extents, pixel, _ = w.phases.pixels(config["pixels"] == "flat")

        def place(o: tirx.Expr, h: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tuple[list[tirx.Expr], list[tirx.Expr]]:
            n, row, column = pixel(h, x)
            channel, y, x = w.place_of(o, row, column)
            return [n, channel, y, x, lane], [tirx.all(v >= 0, v < extent) for v, extent in zip((y, x), w.out_hw, strict=True)]

        name, sums = str(sch.get(output).name_hint), Stage.TILE if config["split_k"] == 1 else Stage.ACC
        sch = s_tir.Schedule(as_module(renest(sch.mod["main"], name, sums, (*extents, LANES), place)))
        return sch, sch.get_loops(sch.get_sblock(name))

    def case(self, w: Conv2dTranspose) -> Case:
        settings = {"strides": list(w.stride), "padding": list(w.padding), "output_padding": list(w.output_padding), "groups": w.groups}
        return Case(
            name=w.name,
            inputs=[(w.batch, w.in_channels, *w.in_hw)],
            weights=[(w.in_channels, w.out_channels // w.groups, *w.kernel)],
            build=lambda x, weight: relax.op.nn.conv2d_transpose(x, weight, **settings),
            compute=lambda x, weight: _spread(w, x, weight),
        )


def _of_phases(w: Conv2dTranspose) -> ConvolutionFamily[Conv2d]:
    return CONV2D if w.groups == 1 else DEPTHWISE


def _spread(w: Conv2dTranspose, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The operator by NumPy: every input pixel adds a window to the output, off which the padding is cut."""
    (ih, iw), (sh, sw), (kh, kw), (top, left, _, _), (oh, ow) = w.in_hw, w.stride, w.kernel, w.padding, w.out_hw
    full = np.zeros((w.batch, w.groups, w.out_channels // w.groups, max(top + oh, (ih - 1) * sh + kh), max(left + ow, (iw - 1) * sw + kw)), x.dtype)
    pixels, taps = (a.reshape(*shape, *a.shape[-2:]) for a, shape in ((x, (w.batch, w.groups, -1)), (weight, (w.groups, w.in_channels // w.groups, -1))))
    for i, j in np.ndindex(w.kernel):
        full[:, :, :, i : i + (ih - 1) * sh + 1 : sh, j : j + (iw - 1) * sw + 1 : sw] += np.einsum("ngihw,gio->ngohw", pixels, taps[..., i, j])
    return full[..., top : top + oh, left : left + ow].reshape(w.batch, w.out_channels, oh, ow)


FAMILY = Conv2dTransposeFamily()
