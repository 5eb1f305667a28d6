"""Transposed convolution with channels packed by four, as one convolution of stride 1.

data    (n, ceil(ic / 4), ih, iw, 4)
weight  packed as `conv2d` or `depthwise` packs it, for the convolution `Conv2dTranspose.phases`
output  (n, ceil(oc / 4), oh, ow, 4)

Output pixel y uses the taps k with (y + top - k) % stride == 0. They depend only on the pixel's phase, (y + top) %
stride. So the phases are output channels of one convolution over the same input, whose window has the taps of the
fullest phase. No zeros are inserted, and no output is accumulated twice.

Source: Shi et al., Real-Time Single Image and Video Super-Resolution, CVPR 2016, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.algorithms.winograd.convolution import TILES, Winograd, algorithms
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction.stages import Stage
from romou.compiler.operators.families.bases.convolution import (
    ConvolutionFamily,
    attributes,
    common_fields,
    groups_of,
    is_channels_first,
    is_of_images,
)
from romou.compiler.operators.families.bases.convolution_references import convolve_back
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.workload import Conv2d, Expr
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.scheduling.rewrites import GuardedIndex, as_module, renest
from romou.compiler.tir.expressions import bounds_of, dtype_of, is_constant, static_shape, zero_unless
from romou.compiler.tir.primitives import LANES


@dataclass(frozen=True, kw_only=True)
class Conv2dTranspose(Conv2d):
    """A transposed 2-D convolution.

    padding: cut off the result.
    output_padding: rows and columns added below and on the right.
    """

    output_padding: tuple[int, int] = (0, 0)

    @property
    def out_extents(self) -> tuple[int, ...]:
        return tuple(
            (axis.extent - 1) * axis.stride + axis.reach + 1 - axis.before - axis.after + more
            for axis, more in zip(self.axes, self.output_padding, strict=True)
        )

    @property
    def phases(self) -> Conv2d:
        """The convolution of stride 1 with the output channels of all phases.

        Its output covers the first to the last pixel that any phase needs.
        """
        channels = math.prod(self.stride) * self.out_texels * LANES
        is_depthwise = groups_of(self) == "depthwise"
        (kh, top, bottom), (kw, left, right) = (self._phases_along(axis) for axis in (0, 1))
        return Conv2d(
            batch=self.batch,
            in_channels=channels if is_depthwise else self.in_channels,
            in_hw=self.in_hw,
            out_channels=channels,
            kernel=(kh, kw),
            padding=(top, left, bottom, right),
            dilation=(1 if self.stride[0] > 1 else self.dilation[0], 1 if self.stride[1] > 1 else self.dilation[1]),
            groups=channels if is_depthwise else self.groups,
            dtype=self.dtype,
        )

    @property
    def spacing(self) -> tuple[int, int]:
        """Rows and columns between neighbouring taps of the window that is cut into phases.

        With a stride, a dilated window has zeros between its taps.
        """
        return tuple(d if s > 1 else 1 for s, d in zip(self.stride, self.dilation, strict=True))  # type: ignore[return-value]

    def _phases_along(self, axis: int) -> tuple[int, int, int]:
        """Return the taps of `phases` along an axis, and the padding before and after."""
        stride, cut = self.stride[axis], self.padding[axis]
        taps = -(-((self.kernel[axis] - 1) * self.spacing[axis] + 1) // stride)
        reach = (taps - 1) * (1 if stride > 1 else self.dilation[axis])
        first, last = cut // stride, (cut + self.out_hw[axis] - 1) // stride
        return taps, reach - first, last - (self.in_hw[axis] - 1)

    def phase_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the channel texel and pixel of `phases` that hold the output's (o, y, x)."""
        (sh, sw), (top, left, *_) = self.stride, self.padding
        y, x = y + top, x + left
        return (y % sh * sw + x % sw) * self.out_texels + o, y // sh - top // sh, x // sw - left // sw

    def output_of(self, channel: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        """Invert `phase_of`. Pixels of some phases are outside of the output."""
        (sh, sw), (top, left, *_) = self.stride, self.padding
        phase, o = channel // self.out_texels, channel % self.out_texels
        return o, (row + top // sh) * sh + phase // sw - top, (column + left // sw) * sw + phase % sw - left

    @property
    def flops(self) -> int:
        """Multiplications and additions, including results that the padding cuts off."""
        taps = self.out_channels // self.groups * self.kernel[0] * self.kernel[1]
        return 2 * self.batch * self.in_channels * self.in_hw[0] * self.in_hw[1] * taps


@dataclass(frozen=True)
class WinogradTranspose(Winograd):
    """The convolution of the phases in Winograd tiles."""

    whole: Conv2dTranspose

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.whole.output_shape

    @property
    def is_over_tiles(self) -> bool:
        return True

    def source_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        return self.whole.phase_of(o, y, x)

    def output_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        return self.whole.output_of(o, y, x)

    def is_output(self, y: Expr, x: Expr) -> list[tirx.Expr]:
        return [tirx.all(v >= 0, v < extent) for v, extent in zip((y, x), self.whole.out_hw, strict=True)]


def backward_input(w: Conv2d) -> Conv2dTranspose:
    """Return the gradient of a convolution by its input."""
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(w.out_hw, w.stride, w.kernel, w.dilation, strict=True)]
    top, left, bottom, right = w.padding
    rows, columns = (
        extent + pad - size for extent, pad, size in zip(w.in_hw, (top + bottom, left + right), reach, strict=True)
    )
    return Conv2dTranspose(
        batch=w.batch,
        in_channels=w.out_channels,
        in_hw=w.out_hw,
        out_channels=w.in_channels,
        kernel=w.kernel,
        stride=w.stride,
        padding=w.padding,
        dilation=w.dilation,
        groups=w.groups,
        dtype=w.dtype,
        output_padding=(rows, columns),
    )


class Conv2dTransposeFamily(ConvolutionFamily[Conv2dTranspose]):
    """Transposed convolutions, which are also gradients of convolutions by their inputs.

    Source: BEAST's paper, section 5 (backward by input).
    """

    name = "conv2d_transpose"
    workload = Conv2dTranspose
    operators = frozenset({"relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"})
    kernel_layout = "IOHW"
    typical = (
        Conv2dTranspose(
            in_channels=8, in_hw=(5, 7), out_channels=12, kernel=(4, 4), stride=(2, 2), padding=(1, 1, 1, 1)
        ),
        Conv2dTranspose(
            in_channels=3,
            in_hw=(5, 4),
            out_channels=6,
            kernel=(4, 3),
            stride=(3, 2),
            padding=(1, 0, 2, 1),
            output_padding=(1, 0),
            batch=2,
        ),
        Conv2dTranspose(
            in_channels=6, in_hw=(5, 3), out_channels=6, kernel=(3, 3), stride=(2, 2), padding=(2, 2, 2, 2), groups=6
        ),
        Conv2dTranspose(
            in_channels=16, in_hw=(5, 4), out_channels=8, kernel=(3, 2), padding=(2, 1, 1, 0), dilation=(2, 1), groups=2
        ),
        Conv2dTranspose(
            in_channels=6,
            in_hw=(4, 5),
            out_channels=9,
            kernel=(3, 3),
            stride=(2, 1),
            padding=(1, 1, 1, 1),
            dilation=(3, 2),
            groups=3,
            batch=2,
        ),
    )

    def work_of(self, call: relax.Call) -> Conv2dTranspose:
        fields, outputs = common_fields(call), static_shape(call.args[1])[1] * int(call.attrs.groups)
        return Conv2dTranspose(out_channels=outputs, **fields)

    def plain(self, w: Conv2dTranspose) -> Conv2d:
        return w.phases

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return the packed result. A volume with windows over several frames becomes a batch of images."""
        volume = _Volume.of(call)
        return super().rewrite(call, graph) if volume is None else volume.emit(self, graph)

    def winograd(self, w: Conv2dTranspose) -> dict[str, Winograd]:
        """Return the algorithms of the convolution of the phases.

        With stride 1 there is one phase, which is an ordinary convolution.
        """
        return {
            name: Winograd(w.phases, TILES[name]) if w.stride == (1, 1) else WinogradTranspose(w.phases, TILES[name], w)
            for name in algorithms(w.phases)
        }

    def pack_weight(self, w: Conv2dTranspose, weight: np.ndarray) -> np.ndarray:
        """Pack the weight for the convolution of the phases, with zeros for taps that a phase lacks.

        IOHW (ic, oc / groups, kh, kw)      ->      (phases * oc, ic, taps, taps), packed
        """
        inputs, kernel = w.in_channels // w.groups, w.kernel
        weight = weight.reshape(w.groups, inputs, -1, *kernel).swapaxes(1, 2).reshape(-1, inputs, *kernel)
        (sh, sw), (th, tw), (dh, dw) = w.stride, w.phases.kernel, w.spacing
        full = np.zeros((w.out_texels * LANES, inputs, th * sh, tw * sw), weight.dtype)
        full[: w.out_channels, :, : kernel[0] * dh : dh, : kernel[1] * dw : dw] = weight
        # Tap t of phase p is p + t * stride. The input runs the other way, so the last tap comes first.
        taps = full.reshape(-1, inputs, th, sh, tw, sw)[:, :, ::-1, :, ::-1].transpose(3, 5, 0, 1, 2, 4)
        return super().pack_weight(w, taps.reshape(-1, inputs, th, tw))

    def weight_at(self, w: Conv2dTranspose, weight: te.Tensor, o: Expr, i: Expr, kh: Expr, kw: Expr) -> tirx.Expr:
        (sh, sw), (th, tw), (dh, dw) = w.stride, w.phases.kernel, w.spacing
        outputs, inputs = w.out_channels // w.groups, w.in_channels // w.groups
        phase, o = o // (w.out_texels * LANES), o % (w.out_texels * LANES)
        y, x = (th - 1 - kh) * sh + phase // sw, (tw - 1 - kw) * sw + phase % sw
        value = weight[o // outputs * inputs + i, o % outputs, y // dh, x // dw]
        between = [position % d == 0 for position, d in ((y, dh), (x, dw)) if d > 1]
        return zero_unless(
            w.dtype, value, o < w.out_channels, i < inputs, y // dh < w.kernel[0], x // dw < w.kernel[1], *between
        )

    def contraction(
        self, w: Conv2dTranspose, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return the contraction of the phases, with results at their output pixels."""
        form = super().contraction(w, data, weight, flat, is_zero_outside)
        return replace(form, output=lambda n, o, y, x, lane: form.output(n, *w.phase_of(o, y, x), lane))

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: Conv2dTranspose, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output nest over (o, h, w, lane) of the phases, in a new schedule."""
        extents, pixel, _ = w.phases.pixels(config["pixels"] == "flat")

        def output_index(o: tirx.Expr, h: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> GuardedIndex:
            n, row, column = pixel(h, x)
            channel, y, x = w.output_of(o, row, column)
            return [n, channel, y, x, lane], [
                tirx.all(v >= 0, v < extent) for v, extent in zip((y, x), w.out_hw, strict=True)
            ]

        name, sums = str(sch.get(output).name_hint), Stage.TILE if config["split_k"] == 1 else Stage.ACC
        func = renest(sch.mod["main"], name, sums, (*extents, LANES), output_index)
        sch = s_tir.Schedule(as_module(func), enable_check=not bounds_of(func))
        return sch, sch.get_loops(sch.get_sblock(name))

    def case(self, w: Conv2dTranspose) -> Case:
        settings = {**attributes(w), "output_padding": list(w.output_padding)}
        return Case(
            name=w.name,
            inputs=[(w.batch, w.in_channels, *w.in_hw)],
            weights=[(w.in_channels, w.out_channels // w.groups, *w.kernel)],
            build=lambda x, weight: relax.op.nn.conv2d_transpose(x, weight, **settings),
            compute=partial(convolve_back, w),
        )


@dataclass(frozen=True)
class _Volume:
    """A transposed convolution of volumes as one of images.

    Output frame q * stride + phase - front uses input frames q - tap, through frame tap * stride + phase of the kernel.
    So output frames are output channels, and the input frames that an output frame uses are input channels.

    (n * d, c, ih, iw)
            ->  (n * q, taps * c, ih, iw)
            ->  (n * q, stride * outputs, oh, ow), viewed as (n * q * stride, outputs, oh, ow)
    """

    call: relax.Call

    @classmethod
    def of(cls, call: relax.Call) -> _Volume | None:
        """Return the volume, or None for groups, and for calls that already are convolutions of images."""
        if (
            not is_channels_first(call, "IOHW")
            or is_of_images(call)
            or int(call.attrs.groups) > 1
            or not is_constant(call.args[1])
        ):
            return None
        return cls(call)

    def emit(self, family: Conv2dTransposeFamily, graph: Graph) -> relax.Expr:
        """Emit the operators, and return the packed result."""
        (n, c, depth, *pixels), (_, outputs, extent, *kernel) = (static_shape(arg) for arg in self.call.args)
        stride, dilation, front = (
            int(getattr(self.call.attrs, name)[0]) for name in ("strides", "dilation", "padding")
        )
        texels, inputs, frames = -(-outputs // LANES), -(-c // LANES), static_shape(self.call)[2]
        taps, first = -(-((extent - 1) * dilation + 1) // stride), front // stride
        count = (front + frames - 1) // stride - first + 1
        full = np.zeros((inputs * LANES, texels * LANES, taps * stride, *kernel), dtype_of(self.call))
        full[:c, :outputs, : (extent - 1) * dilation + 1 : dilation] = self.call.args[1].value.numpy()
        # (channel, output, tap, phase) -> (tap, channel), (phase, output)
        weight = full.reshape(inputs * LANES, texels * LANES, taps, stride, *kernel).transpose(2, 0, 3, 1, 4, 5)
        work = replace(
            Conv2dTranspose(
                out_channels=stride * texels * LANES,
                **common_fields(self.call),
            ),
            batch=n * count,
            in_channels=taps * inputs * LANES,
        )

        def seen(data: te.Tensor) -> te.Tensor:
            def value(image: tirx.Expr, channel: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
                frame = image % count + first - channel // inputs
                load = data[image // count * depth + frame, channel % inputs, y, x, lane]
                return te.if_then_else(te.all(frame >= 0, frame < depth), load, tirx.const(0, data.dtype))

            return te.compute((n * count, taps * inputs, *pixels, LANES), value, name="seen")

        data = graph.packed_expr(self.call.args[0])
        if (taps, first, count) != (1, 0, depth):
            data = graph.bb.emit_te(seen, data, primfunc_name_hint="frames")
        packed = family.emit(graph, work, data, weight.reshape(taps * inputs * LANES, -1, *kernel))
        start, image = front - first * stride, (texels, *work.out_hw, LANES)
        if start or count * stride != frames:
            packed = graph.bb.emit(relax.op.reshape(packed, (n, count * stride, *image)))
            packed = graph.bb.emit(relax.op.strided_slice(packed, [1], [start], [start + frames]))
        return graph.bb.emit(relax.op.reshape(packed, (n * frames, *image)))


FAMILY = Conv2dTransposeFamily()
