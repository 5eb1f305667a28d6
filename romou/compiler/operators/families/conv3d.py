"""Convolution of volumes with channels packed by four. Frames are stored like the images of a batch.

data    (n * id, ceil(ic / 4), ih, iw, 4)      output  (n * od, ceil(oc / 4), oh, ow, 4)
weight  packed by the family of one frame's convolution, with an axis of depth taps before the rows of the window

A convolution whose window spans one frame is one of images, and belongs to a 2-D family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction_family import ContractionFamily
from romou.compiler.operators.convolution import (
    ConvolutionFamily,
    all_sides,
    attributes,
    common_fields,
    convolve,
    is_channels_first,
    is_of_images,
)
from romou.compiler.operators.families.conv2d import FAMILY as CONV2D
from romou.compiler.operators.families.depthwise import FAMILY as DEPTHWISE
from romou.compiler.operators.families.group_conv2d import FAMILY as GROUP_CONV2D
from romou.compiler.operators.family import Case
from romou.compiler.operators.workload import Conv2d, Expr, Workload
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.expressions import Shape, static_shape
from romou.compiler.tir.primitives import LANES


@dataclass(frozen=True, kw_only=True)
class Conv3d(Workload):
    """A 3-D convolution. `padding` is (front, top, left, back, bottom, right)."""

    batch: int = 1
    in_channels: int
    in_dhw: tuple[int, int, int]
    out_channels: int
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int] = (1, 1, 1)
    padding: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    dilation: tuple[int, int, int] = (1, 1, 1)
    groups: int = 1
    dtype: str = "float32"

    @property
    def out_depth(self) -> int:
        """Frames of a volume's output."""
        window = (self.kernel[0] - 1) * self.dilation[0] + 1
        padded = self.in_dhw[0] + self.padding[0] + self.padding[3]
        return (padded - window) // self.stride[0] + 1

    @property
    def frames(self) -> Conv2d:
        """The 2-D convolution of all output frames, as if each used one input frame."""
        return Conv2d(
            batch=self.batch * self.out_depth,
            in_channels=self.in_channels,
            in_hw=self.in_dhw[1:],
            out_channels=self.out_channels,
            kernel=self.kernel[1:],
            stride=self.stride[1:],
            padding=(*self.padding[1:3], *self.padding[4:]),
            dilation=self.dilation[1:],
            groups=self.groups,
            dtype=self.dtype,
        )

    @property
    def taps(self) -> Conv2d:
        """The 2-D convolution with the same taps in its weight, depth taps as additional rows."""
        depth, rows, columns = self.kernel
        return replace(self.frames, kernel=(depth * rows, columns))

    @property
    def flops(self) -> int:
        """Multiplications and additions of the unpadded operator."""
        return self.frames.flops * self.kernel[0]

    @property
    def name(self) -> str:
        """Readable name, with shapes as in the ONNX graph."""
        shape, kernel = (
            "x".join(map(str, extents)) for extents in ((self.batch, self.in_channels, *self.in_dhw), self.kernel)
        )
        is_square = len({*self.stride}) == 1
        text = (
            f"{shape}_{self.out_channels}_{kernel}_s{self.stride[0] if is_square else 'x'.join(map(str, self.stride))}"
        )
        if self.dilation != (1, 1, 1):
            text += f"_d{'x'.join(map(str, self.dilation))}"
        return text + (f"_g{self.groups}" if self.groups > 1 else "")


class Conv3dFamily(ContractionFamily[Conv3d]):
    """Convolutions of volumes. Groups are as in the family of one frame."""

    name = "conv3d"
    workload = Conv3d
    is_packed = True
    works_in_texels = True
    operators = frozenset({"relax.nn.conv3d"})
    typical = (
        Conv3d(in_channels=8, in_dhw=(5, 9, 7), out_channels=12, kernel=(3, 3, 3), padding=(1, 1, 1, 1, 1, 1)),
        Conv3d(
            in_channels=3,
            in_dhw=(6, 5, 8),
            out_channels=6,
            kernel=(3, 1, 2),
            stride=(2, 1, 2),
            padding=(0, 0, 1, 1, 0, 0),
            dilation=(2, 1, 1),
            batch=2,
        ),
        Conv3d(
            in_channels=6,
            in_dhw=(4, 7, 5),
            out_channels=6,
            kernel=(3, 3, 3),
            padding=(1, 1, 1, 1, 1, 1),
            stride=(1, 2, 2),
            groups=6,
        ),
        Conv3d(
            in_channels=16,
            in_dhw=(4, 5, 6),
            out_channels=8,
            kernel=(2, 3, 3),
            padding=(1, 1, 1, 0, 1, 1),
            groups=2,
            batch=2,
        ),
        Conv3d(in_channels=6, in_dhw=(3, 5, 6), out_channels=9, kernel=(2, 2, 2), groups=3),
    )

    def match(self, call: relax.Call) -> Conv3d | None:
        """Match a float convolution in NCDHW with windows over several frames."""
        if not is_channels_first(call, "OIHW") or is_of_images(call):
            return None
        (n, c, *volume), attrs = static_shape(call.args[0]), call.attrs
        outputs, _, *kernel = static_shape(call.args[1])
        shared = {name: value for name, value in common_fields(call).items() if name in ("groups", "dtype")}
        triples = {
            "in_dhw": volume,
            "kernel": kernel,
            "stride": attrs.strides,
            "dilation": attrs.dilation,
            "padding": all_sides(attrs.padding, 3),
        }
        fields = {name: tuple(int(number) for number in numbers) for name, numbers in triples.items()}
        return Conv3d(batch=n, in_channels=c, out_channels=outputs, **shared, **fields)  # type: ignore[arg-type]

    def operands(self, w: Conv3d) -> Mapping[str, Shape]:
        texels = -(-w.in_channels // LANES)
        return {
            "data": (w.batch * w.in_dhw[0], texels, *w.in_dhw[1:], LANES),
            "weight": _of_frames(w).weight_shape(w.taps),
        }

    def bias(self, w: Conv3d) -> tuple[Shape, Callable[..., tuple[tirx.Expr | int, ...]]]:
        return _of_frames(w).bias(w.frames)

    def kernel_shape(self, w: Conv3d, shape: Shape) -> Shape:
        return *shape[:2], *w.taps.kernel

    def pack_weight(self, w: Conv3d, weight: np.ndarray) -> np.ndarray:
        return _of_frames(w).pack_weight(w.taps, weight)

    def pack_at_run_time(self, w: Conv3d, weight: te.Tensor) -> te.Tensor:
        return _of_frames(w).pack_at_run_time(w.taps, weight)

    def contraction(
        self, w: Conv3d, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return the contraction of a frame with one more axis: the frames of the window."""
        family, rows = _of_frames(w), w.kernel[1]
        form = family.contraction(w.frames, data, weight, flat, is_zero_outside)
        _, pixel, _ = w.frames.pixels(flat)
        axes = list(form.reduce.items())
        row_axis = [name for name, _ in axes].index("ky")

        def lhs(is_image: bool, o: tirx.Expr, h: tirx.Expr, x: tirx.Expr, lane: tirx.Expr, *r: tirx.Expr) -> tirx.Expr:
            frame, inside = _frame_under(w, pixel(h, x)[0], r[row_axis])
            plane = family.contraction(w.frames, _Frame(data, frame), weight, flat, is_image)
            return _where(inside, plane.lhs(o, h, x, lane, *r[:row_axis], *r[row_axis + 1 :]), w.dtype)

        def rhs(o: tirx.Expr, lane: tirx.Expr, *r: tirx.Expr) -> tirx.Expr:
            return form.rhs(o, lane, *r[:row_axis], r[row_axis] * rows + r[row_axis + 1], *r[row_axis + 2 :])

        reduce = dict([*axes[:row_axis], ("kz", w.kernel[0]), *axes[row_axis:]])
        return replace(
            form, reduce=reduce, layouts=(), lhs=partial(lhs, is_zero_outside), lhs_of_image=partial(lhs, True), rhs=rhs
        )

    def pixel_rows(self, w: Conv3d) -> int | None:
        return w.frames.out_hw[0]

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: Conv3d, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        return _of_frames(w).output_loops(sch, output, w.frames, config)

    def case(self, w: Conv3d) -> Case:
        settings = attributes(w)
        return Case(
            name=w.name,
            inputs=[(w.batch, w.in_channels, *w.in_dhw)],
            weights=[(w.out_channels, w.in_channels // w.groups, *w.kernel)],
            build=lambda x, weight: relax.op.nn.conv3d(x, weight, **settings),
            compute=lambda x, weight: _convolve(w, x, weight),
        )


@dataclass(frozen=True)
class _Frame:
    """The data of one frame, whichever image an index names."""

    data: te.Tensor
    frame: Expr

    def __getitem__(self, index: Sequence[Expr]) -> tirx.Expr:
        return self.data[(self.frame, *index[1:])]


def _frame_under(w: Conv3d, image: Expr, kd: Expr) -> tuple[Expr, list[tirx.Expr]]:
    """Return the input frame under a depth tap of an output frame, and the conditions that it is in the volume."""
    volume, out = (image // w.out_depth, image % w.out_depth) if w.batch > 1 else (0, image)
    (depth, *_), front, back = w.in_dhw, w.padding[0], w.padding[3]
    at = out * w.stride[0] + kd * w.dilation[0] - front
    return volume * depth + at, [*([at >= 0] if front > 0 else []), *([at < depth] if back > 0 else [])]


def _where(conditions: Sequence[tirx.Expr], value: tirx.Expr, dtype: str) -> tirx.Expr:
    """Return the value if all conditions hold, and zero otherwise. Its own condition is merged with them."""
    if not conditions:
        return value
    if is_conditional(value):
        inner_condition, value, _ = value.args
        conditions = [*conditions, inner_condition]
    return te.if_then_else(te.all(*conditions), value, tirx.const(0, dtype))


def _of_frames(w: Conv3d) -> ConvolutionFamily[Conv2d]:
    return next(family for family in (DEPTHWISE, CONV2D, GROUP_CONV2D) if family.is_mine(w.frames))


def _convolve(w: Conv3d, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute the operator in NumPy: convolutions of frames, summed over the depth of the window."""
    (n, c, *_), (stride, *_), (dilation, *_) = x.shape, w.stride, w.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (w.padding[0], w.padding[3]), (0, 0), (0, 0)))
    total = np.zeros((n * w.out_depth, w.out_channels, *w.frames.out_hw), x.dtype)
    for kd in range(w.kernel[0]):
        frames = padded[:, :, kd * dilation :][:, :, : (w.out_depth - 1) * stride + 1 : stride]
        total += convolve(w.frames, frames.swapaxes(1, 2).reshape(-1, c, *w.in_dhw[1:]), weight[:, :, kd])
    return total.reshape(n, w.out_depth, w.out_channels, *w.frames.out_hw).swapaxes(1, 2)


FAMILY = Conv3dFamily()
