"""Transposed convolution with channels packed by four, as one convolution of stride 1.

data    (n, ceil(ic / 4), ih, iw, 4)
weight  packed as `conv2d` or `depthwise` packs it, for the convolution `Conv2dTranspose.phases`
output  (n, ceil(oc / 4), oh, ow, 4)

Output pixel y uses the taps k with (y + top - k) % stride == 0. They depend only on the pixel's phase, (y + top) %
stride. So the phases are output channels of one convolution over the same input, whose window has the taps of the
fullest phase. No zeros are inserted, and no output is accumulated twice. If windows are short and some phases lack
taps, phones compute all phases of a pixel in one work-item, which leaves these taps out.

Source: Shi et al., Real-Time Single Image and Video Super-Resolution, CVPR 2016, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.algorithms.winograd.convolution import TILES, Winograd, algorithms
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction.stages import Stage
from romou.compiler.operators.families.bases.convolution import (
    ConvolutionFamily,
    by_onnx,
    common_fields,
    groups_of,
    is_channels_first,
    is_of_images,
)
from romou.compiler.operators.family import Graph
from romou.compiler.operators.workload import Axis, Conv2d, Expr
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.scheduling.rewrites import GuardedIndex, as_module, renest
from romou.compiler.tir.expressions import (
    bounds_of,
    digits_of,
    dtype_of,
    is_constant,
    number_of,
    static_shape,
    zero_unless,
)
from romou.compiler.tir.primitives import LANES

# Most taps of a window that a work-item unrolls for all phases: more keep too many registers alive.
_MOST_TAPS = 4
# Phases that a tile may have: choices of the knob `tile_o`.
_WINDOWS = (2, 4)


@dataclass(frozen=True)
class TransposedAxis(Axis):
    """An axis whose elements are windows of the output. `before` and `after` are cut off, `more` elements follow."""

    more: int

    @property
    def out(self) -> int:
        return (self.extent - 1) * self.stride + self.reach + 1 - self.before - self.after + self.more

    @property
    def spacing(self) -> int:
        """Return the distance of neighbouring taps of the window that is cut into phases.

        With a stride, a dilated window has zeros between its taps.
        """
        return self.dilation if self.stride > 1 else 1

    @property
    def width(self) -> int:
        """Return the extent of that window, from its first to its last tap."""
        return (self.kernel - 1) * self.spacing + 1

    @property
    def shift(self) -> int:
        """Return the zeros before its first tap.

        With them, all phases of a pixel begin at the same place, which saves a row of places. They must not take a tap.
        """
        shift = -self.before % self.stride
        return shift if (self.width - 1 + shift) // self.stride == (self.width - 1) // self.stride else 0

    @property
    def cut(self) -> int:
        """Return the outputs that are cut off in front, those of the zeros included."""
        return self.before + self.shift

    @property
    def taps(self) -> slice:
        """Return the places of taps in that window, after its zeros."""
        return slice(self.shift, self.shift + self.width, self.spacing)

    @property
    def phases(self) -> Axis:
        """Return the axis of the convolution of all phases, from the first to the last pixel that any phase needs."""
        taps = -(-(self.shift + self.width) // self.stride)
        first, last = self.cut // self.stride, (self.cut + self.out - 1) // self.stride
        axis = Axis(self.extent, taps, 1, 1 if self.stride > 1 else self.dilation, 0, last - (self.extent - 1))
        return replace(axis, before=axis.reach - first)

    def phase_of(self, at: Expr) -> tuple[Expr, Expr]:
        """Return the phase of an output element, and its place in `phases`."""
        at = at + self.cut
        return at % self.stride, at // self.stride - self.cut // self.stride

    def output_of(self, phase: Expr, at: Expr) -> Expr:
        """Invert `phase_of`. Elements of some phases are outside of the output."""
        return (at + self.cut // self.stride) * self.stride + phase - self.cut


@dataclass(frozen=True, kw_only=True)
class Conv2dTranspose(Conv2d):
    """A transposed 2-D convolution.

    padding: cut off the result.
    output_padding: rows and columns added below and on the right.
    """

    output_padding: tuple[int, int] = (0, 0)

    @property
    def axes(self) -> tuple[TransposedAxis, ...]:
        return tuple(
            TransposedAxis(**vars(axis), more=more)
            for axis, more in zip(super().axes, self.output_padding, strict=True)
        )

    @property
    def phases(self) -> Conv2d:
        """Return the convolution of stride 1 with the output channels of all phases."""
        channels, axes = math.prod(self.stride) * self.out_texels * LANES, [axis.phases for axis in self.axes]
        changed = {
            **{each.name: getattr(self, each.name) for each in fields(Conv2d)},
            "out_channels": channels,
            "kernel": tuple(axis.kernel for axis in axes),
            "stride": (1,) * len(axes),
            "padding": (*(axis.before for axis in axes), *(axis.after for axis in axes)),
            "dilation": tuple(axis.dilation for axis in axes),
            **({"in_channels": channels, "groups": channels} if groups_of(self) == "depthwise" else {}),
        }
        return Conv2d(**changed)

    @property
    def is_interleaved(self) -> bool:
        """Return whether phases of an output texel are neighbours, so that a work-item computes all of them.

        Then it leaves out taps that a phase lacks. Phases that lack none are apart: whole work groups of a phase are
        outside of the output.
        """
        taps = math.prod(axis.phases.kernel for axis in self.axes)
        windows = math.prod(self.stride)
        fits_tile = self.groups == 1 and 1 < taps <= _MOST_TAPS and windows in _WINDOWS
        return fits_tile and math.prod(self.kernel) < taps * windows

    def channel_of(self, o: Expr, phase: Expr) -> Expr:
        """Return the channel texel of `phases` of an output texel and the number of a phase."""
        return o * math.prod(self.stride) + phase if self.is_interleaved else phase * self.out_texels + o

    def texel_of(self, channel: Expr) -> tuple[Expr, list[Expr]]:
        """Invert `channel_of`: return the output texel, and its phase along each axis."""
        count = math.prod(self.stride) if self.is_interleaved else self.out_texels
        outer, inner = channel // count, channel % count
        o, phase = (outer, inner) if self.is_interleaved else (inner, outer)
        return o, digits_of(phase, self.stride)

    def phase_of(self, o: Expr, at: Sequence[Expr]) -> tuple[Expr, list[Expr]]:
        """Return the channel texel of `phases`, and the place there, that hold the output's texel `o` at a place."""
        pairs = [axis.phase_of(i) for axis, i in zip(self.axes, at, strict=True)]
        return self.channel_of(o, number_of([phase for phase, _ in pairs], self.stride)), [i for _, i in pairs]

    def output_of(self, channel: Expr, at: Sequence[Expr]) -> tuple[Expr, list[Expr]]:
        """Invert `phase_of`. Elements of some phases are outside of the output."""
        o, phases = self.texel_of(channel)
        return o, [axis.output_of(phase, i) for axis, phase, i in zip(self.axes, phases, at, strict=True)]

    def _places(self, channel: Expr, taps: Sequence[Expr]) -> list[Expr]:
        """Return the places, after a window's zeros, of taps of `phases` of a texel of its channels."""
        _, phases = self.texel_of(channel)
        return [
            (axis.phases.kernel - 1 - tap) * axis.stride + phase - axis.shift
            for axis, phase, tap in zip(self.axes, phases, taps, strict=True)
        ]

    def tap_of(self, channel: Expr, *taps: Expr) -> list[Expr]:
        """Return the taps of the kernel that taps of `phases` are, for a texel of its channels."""
        return [place // axis.spacing for axis, place in zip(self.axes, self._places(channel, taps), strict=True)]

    def has_tap(self, channel: Expr, *taps: Expr) -> list[tirx.Expr]:
        """Return the conditions that the kernel has a tap of `phases`, which has those of the fullest phase."""
        pairs = list(zip(self.axes, self._places(channel, taps), strict=True))
        inside = [tirx.all(place >= 0, place < axis.width) for axis, place in pairs]
        return inside + [place % axis.spacing == 0 for axis, place in pairs if axis.spacing > 1]

    def is_output(self, at: Sequence[Expr]) -> list[tirx.Expr]:
        """Return the conditions that the output has a place."""
        return [tirx.all(i >= 0, i < extent) for i, extent in zip(at, self.out_extents, strict=True)]

    @property
    def flops(self) -> int:
        """Multiplications and additions, including results that the padding cuts off."""
        products = self.out_channels // self.groups * math.prod(self.kernel)
        return 2 * self.batch * self.in_channels * math.prod(self.extents) * products


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
        channel, (y, x) = self.whole.phase_of(o, (y, x))
        return channel, y, x

    def output_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        channel, (y, x) = self.whole.output_of(o, (y, x))
        return channel, y, x

    def is_output(self, y: Expr, x: Expr) -> list[tirx.Expr]:
        return self.whole.is_output((y, x))


def backward_input(w: Conv2d) -> Conv2dTranspose:
    """Return the gradient of a convolution by its input."""
    more = (a.extent + a.before + a.after - ((a.out - 1) * a.stride + a.reach + 1) for a in w.axes)
    exchanged = {"in_channels": w.out_channels, "in_hw": w.out_hw, "out_channels": w.in_channels}
    return Conv2dTranspose(**{**w.to_dict(), **exchanged, "output_padding": tuple(more)})


def convolve_back(
    w: Conv2dTranspose, x: np.ndarray, weight: np.ndarray, by: Callable[..., np.ndarray] = by_onnx
) -> np.ndarray:
    """Compute a transposed convolution of x (n, ic, *extents) and weight (ic, oc / groups, *kernel).

    Group by group, because ONNX's reference of several groups is wrong.
    """
    settings = {"strides": w.stride, "pads": w.padding, "dilations": w.dilation, "output_padding": w.output_padding}
    groups = zip(np.split(x, w.groups, 1), np.split(weight, w.groups), strict=True)
    return np.concatenate([by("ConvTranspose", *group, **settings) for group in groups], 1)


class Conv2dTransposeFamily(ConvolutionFamily[Conv2dTranspose]):
    """Transposed convolutions, which are also gradients of convolutions by their inputs.

    Source: BEAST's paper, section 5 (backward by input).
    """

    name = "conv2d_transpose"
    workload = Conv2dTranspose
    operators = frozenset({"relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"})
    kernel_layout, build = "IOHW", "conv2d_transpose"
    reference = staticmethod(convolve_back)
    typical = (
        Conv2dTranspose.of(8, (5, 7), 12, (4, 4), stride=2, padding=1),
        Conv2dTranspose.of(8, (5, 7), 12, (3, 3), stride=2, padding=1, output_padding=(1, 1)),
        Conv2dTranspose.of(3, (5, 4), 6, (4, 3), stride=(3, 2), padding=(1, 0, 2, 1), output_padding=(1, 0), batch=2),
        Conv2dTranspose.of(6, (5, 3), 6, (3, 3), stride=2, padding=2, groups=6),
        Conv2dTranspose.of(16, (5, 4), 8, (3, 2), padding=(2, 1, 1, 0), dilation=(2, 1), groups=2),
        Conv2dTranspose.of(6, (4, 5), 9, (3, 3), stride=(2, 1), padding=1, dilation=(3, 2), groups=3, batch=2),
    )

    def work_of(self, call: relax.Call) -> Conv2dTranspose:
        outputs = static_shape(call.args[1])[1] * int(call.attrs.groups)
        return Conv2dTranspose(out_channels=outputs, **common_fields(call))

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return the packed result. A volume with windows over several frames becomes a batch of images."""
        is_volume = is_channels_first(call, self.kernel_layout) and not is_of_images(call)
        if is_volume and int(call.attrs.groups) == 1 and is_constant(call.args[1]):
            return self._of_volume(call, graph)
        return super().rewrite(call, graph)

    def plain(self, w: Conv2dTranspose) -> Conv2d:
        return w.phases

    def output_texel(self, w: Conv2dTranspose, o: Expr) -> Expr:
        return w.texel_of(o)[0]

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
        inputs, taps, (down, across) = w.in_channels // w.groups, w.phases.kernel, w.axes
        by_output = weight.reshape(w.groups, inputs, -1, *w.kernel).swapaxes(1, 2).reshape(-1, inputs, *w.kernel)
        full = np.zeros((w.out_texels * LANES, inputs, taps[0] * down.stride, taps[1] * across.stride), weight.dtype)
        full[: w.out_channels, :, down.taps, across.taps] = by_output
        # Tap t of phase p is p + t * stride. The input runs the other way, so the last tap comes first.
        cut = full.reshape(w.out_texels, LANES, inputs, taps[0], down.stride, taps[1], across.stride)
        phases = cut[:, :, :, ::-1, :, ::-1].transpose(*((0, 4, 6) if w.is_interleaved else (4, 6, 0)), 1, 2, 3, 5)
        return super().pack_weight(w, phases.reshape(-1, inputs, *taps))

    def taken_weights(self, w: Conv2dTranspose) -> np.ndarray | None:
        shape = (w.in_channels, w.out_channels // w.groups, *w.kernel)
        return self.pack_weight(w, np.ones(shape, np.int8)) if w.is_interleaved else None

    def weight_at(self, w: Conv2dTranspose, weight: te.Tensor, o: Expr, i: Expr, ky: Expr, kx: Expr) -> tirx.Expr:
        outputs, inputs = w.out_channels // w.groups, w.in_channels // w.groups
        texel = o // LANES
        o = w.texel_of(texel)[0] * LANES + o % LANES
        value = weight[(o // outputs * inputs + i, o % outputs, *w.tap_of(texel, ky, kx))]
        return zero_unless(w.dtype, value, o < w.out_channels, i < inputs, *w.has_tap(texel, ky, kx))

    def contraction(
        self, w: Conv2dTranspose, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return the contraction of the phases, with results at their output pixels."""
        form = super().contraction(w, data, weight, flat, is_zero_outside)

        def output(n: Expr, o: Expr, y: Expr, x: Expr, lane: Expr) -> tuple[Expr, Expr, Expr, Expr]:
            channel, place = w.phase_of(o, (y, x))
            return form.output(n, channel, *place, lane)

        def has_tap(o: Expr, _texel: Expr, ky: Expr, kx: Expr, _lane: Expr) -> tirx.Expr:
            return tirx.all(*w.has_tap(o, ky, kx))

        placed = replace(form, output=output)
        if not w.is_interleaved:
            return placed
        return replace(placed, has_tap=has_tap, windows=math.prod(w.stride), taps=math.prod(w.kernel))

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: Conv2dTranspose, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output nest over (o, h, w, lane) of the phases, in a new schedule."""
        extents, pixel, _ = w.phases.pixels(config["pixels"] == "flat")

        def output_index(o: tirx.Expr, h: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> GuardedIndex:
            n, *place = pixel(h, x)
            channel, place = w.output_of(o, place)
            return [n, channel, *place, lane], w.is_output(place)

        name, sums = str(sch.get(output).name_hint), Stage.TILE if config["split_k"] == 1 else Stage.ACC
        func = renest(sch.mod["main"], name, sums, (*extents, LANES), output_index)
        sch = s_tir.Schedule(as_module(func), enable_check=not bounds_of(func))
        return sch, sch.get_loops(sch.get_sblock(name))

    def _of_volume(self, call: relax.Call, graph: Graph) -> relax.Expr:
        """Emit a transposed convolution of volumes as one of images, whose transforms may be Winograd's.

        Output frame q * stride + phase - front uses input frames q - tap, through frame tap * stride + phase of the
        kernel. So output frames are output channels, and the input frames that an output frame uses are input channels.

        (n * d, c, ih, iw)
                ->  (n * q, taps * c, ih, iw)
                ->  (n * q, stride * outputs, oh, ow), viewed as (n * q * stride, outputs, oh, ow)
        """
        (n, c, depth, *pixels), (_, outputs, extent, *kernel) = (static_shape(arg) for arg in call.args)
        names = ("strides", "dilation", "padding")
        stride, dilation, front = (int(getattr(call.attrs, name)[0]) for name in names)
        texels, inputs, frames = -(-outputs // LANES), -(-c // LANES), static_shape(call)[2]
        taps, first = -(-((extent - 1) * dilation + 1) // stride), front // stride
        count = (front + frames - 1) // stride - first + 1
        full = np.zeros((inputs * LANES, texels * LANES, taps * stride, *kernel), dtype_of(call))
        full[:c, :outputs, : (extent - 1) * dilation + 1 : dilation] = call.args[1].value.numpy()
        # (channel, output, tap, phase) -> (tap, channel), (phase, output)
        weight = full.reshape(inputs * LANES, texels * LANES, taps, stride, *kernel).transpose(2, 0, 3, 1, 4, 5)
        sizes = {"batch": n * count, "in_channels": taps * inputs * LANES, "out_channels": stride * texels * LANES}
        work = Conv2dTranspose(**{**common_fields(call), **sizes})

        def seen(data: te.Tensor) -> te.Tensor:
            def value(image: tirx.Expr, channel: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
                frame = image % count + first - channel // inputs
                load = data[image // count * depth + frame, channel % inputs, y, x, lane]
                return zero_unless(data.dtype, load, frame >= 0, frame < depth)

            return te.compute((n * count, taps * inputs, *pixels, LANES), value, name="seen")

        data = graph.packed_expr(call.args[0])
        if (taps, first, count) != (1, 0, depth):
            data = graph.bb.emit_te(seen, data, primfunc_name_hint="frames")
        packed = self.emit(graph, work, data, weight.reshape(taps * inputs * LANES, -1, *kernel))
        start, image = front - first * stride, (texels, *work.out_hw, LANES)
        if start or count * stride != frames:
            packed = graph.bb.emit(relax.op.reshape(packed, (n, count * stride, *image)))
            packed = graph.bb.emit(relax.op.strided_slice(packed, [1], [start], [start + frames]))
        return graph.bb.emit(relax.op.reshape(packed, (n * frames, *image)))


FAMILY = Conv2dTransposeFamily()
