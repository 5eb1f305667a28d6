"""What an operator is, apart from how it is computed: the numbers that a schedule template starts from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from tvm import te, tirx

LANES = 4
Expr: TypeAlias = "tirx.Expr | int"


@dataclass(frozen=True, kw_only=True)
class Conv2d:
    """A 2-D convolution. Channels, pixels and padding (top, left, bottom, right) in elements."""

    batch: int
    in_channels: int
    in_hw: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str

    @property
    def out_hw(self) -> tuple[int, int]:
        """Height and width of the output, in pixels."""
        top, left, bottom, right = self.padding
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        padded = (self.in_hw[0] + top + bottom, self.in_hw[1] + left + right)
        return tuple((p - r) // s + 1 for p, r, s in zip(padded, reach, self.stride, strict=True))  # type: ignore[return-value]

    @property
    def out_texels(self) -> int:
        """Texels of output channels."""
        return -(-self.out_channels // LANES)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the packed output, in elements."""
        return (self.batch, self.out_texels, *self.out_hw, LANES)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the unpadded operator."""
        taps = self.in_channels // self.groups * self.kernel[0] * self.kernel[1]
        return 2 * self.batch * self.out_channels * self.out_hw[0] * self.out_hw[1] * taps

    @property
    def name(self) -> str:
        """Readable name: family-independent, shapes as the ONNX graph has them."""
        (ih, iw), (kh, kw), (sh, sw) = self.in_hw, self.kernel, self.stride
        text = f"{self.batch}x{self.in_channels}x{ih}x{iw}_{self.out_channels}_{kh}x{kw}_s{sh}" + (f"x{sw}" if sh != sw else "")
        if self.dilation != (1, 1):
            text += f"_d{self.dilation[0]}"
        return text + (f"_g{self.groups}" if self.groups > 1 else "")

    def block_attrs(self, family: str) -> dict[str, str]:
        """Annotations by which the operator is found again after fusion."""
        return {"romou.family": family, "romou.workload": json.dumps(asdict(self))}

    @classmethod
    def from_json(cls, text: str) -> Conv2d:
        """Inverse of what `block_attrs` writes."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
        return cls(**values)

    def pixels(self, flat: bool) -> tuple[tuple[int, int, int], Callable[..., Any], Callable[..., Any]]:
        """How output pixels are laid over the (h, w) plane of a contraction.

        flat: all pixels of the batch in one row, so that a tile wastes nothing at the end of a short row;
        else: one row a row, so that neighbouring pixels of a tile share the input that their windows have in common.

        Returns (extents, place, output): extents (o, h, w); place(h, w) -> (n, y, x); output(n, o, y, x, lane) -> (o, h, w, lane).
        """
        oh, ow = self.out_hw
        if flat:
            return (
                (self.out_texels, 1, self.batch * oh * ow),
                lambda _h, w: ((w // (oh * ow) if self.batch > 1 else 0), (w // ow % oh if self.batch > 1 else w // ow), w % ow),
                lambda n, o, y, x, lane: (o, 0, (n * oh + y) * ow + x, lane),
            )
        return (
            (self.out_texels, self.batch * oh, ow),
            lambda h, w: (h // oh if self.batch > 1 else 0, h % oh if self.batch > 1 else h, w),
            lambda n, o, y, x, lane: (o, n * oh + y, x, lane),
        )


@dataclass(frozen=True, kw_only=True)
class Conv2dTranspose(Conv2d):
    """A transposed 2-D convolution: `padding` is cut off the result, and output_padding (rows, columns) added to it below and on the right."""

    output_padding: tuple[int, int]

    @property
    def out_hw(self) -> tuple[int, int]:
        """Height and width of the output, in pixels."""
        top, left, bottom, right = self.padding
        sides = zip(self.in_hw, self.stride, self.kernel, self.dilation, (top + bottom, left + right), self.output_padding, strict=True)
        return tuple((i - 1) * s + (k - 1) * d + 1 - p + more for i, s, k, d, p, more in sides)  # type: ignore[return-value]

    @property
    def texels(self) -> int:
        """Texels of output channels, in one phase."""
        return -(-self.out_channels // LANES)

    @property
    def phases(self) -> Conv2d:
        """The convolution of stride 1 whose output channels are those of all phases, from the first pixel that any phase needs to the last one."""
        taps = tuple(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
        before, after = [], []
        for extent, out, tap, stride, cut in zip(self.in_hw, self.out_hw, taps, self.stride, self.padding[:2], strict=True):
            first, last = cut // stride, (cut + out - 1) // stride
            before.append(tap - 1 - first)
            after.append(last - (extent - 1))
        channels = math.prod(self.stride) * self.texels * LANES
        values = {name: getattr(self, name) for name in ("batch", "in_hw", "dtype")}
        return Conv2d(
            **values,
            in_channels=self.in_channels if self.groups == 1 else channels,
            out_channels=channels,
            kernel=taps,  # type: ignore[arg-type]
            stride=(1, 1),
            padding=(*before, *after),  # type: ignore[arg-type]
            dilation=(1, 1),
            groups=1 if self.groups == 1 else channels,
        )

    def phase_of(self, o: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
        """The channel texel and pixel of `phases` that is the output's (o, y, x)."""
        (sh, sw), (top, left, *_) = self.stride, self.padding
        y, x = y + top, x + left
        return (y % sh * sw + x % sw) * self.texels + o, y // sh - top // sh, x // sw - left // sw

    def place_of(self, channel: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        """Inverse of `phase_of`; some phases begin before the output does, or end after it."""
        (sh, sw), (top, left, *_) = self.stride, self.padding
        phase, o = channel // self.texels, channel % self.texels
        return o, (row + top // sh) * sh + phase // sw - top, (column + left // sw) * sw + phase % sw - left

    @property
    def flops(self) -> int:
        """Multiplications and additions of the operator, what it adds to cut off pixels counted."""
        taps = self.out_channels // self.groups * self.kernel[0] * self.kernel[1]
        return 2 * self.batch * self.in_channels * self.in_hw[0] * self.in_hw[1] * taps


def window_index(w: Conv2d, oy: Expr, ox: Expr, kh: Expr, kw: Expr, load: Callable[[Expr, Expr], tirx.Expr], *, is_zero_outside: bool = False) -> tirx.Expr:
    """The input pixel under tap (kh, kw) of the window at (oy, ox); zero where it lies in the padding.

    Only sides that have padding are compared, so an unpadded convolution has no branch at all; nor has one whose input is an image,
    which gives zero outside by itself (`is_zero_outside`).
    """
    (sh, sw), (dh, dw), (top, left, bottom, right) = w.stride, w.dilation, w.padding
    y, x = oy * sh + kh * dh - top, ox * sw + kw * dw - left
    value = load(y, x)
    if is_zero_outside:
        return value
    checks = []
    if top > 0:
        checks.append(y >= 0)
    if bottom > 0:
        checks.append(y < w.in_hw[0])
    if left > 0:
        checks.append(x >= 0)
    if right > 0:
        checks.append(x < w.in_hw[1])
    return te.if_then_else(te.all(*checks), value, tirx.const(0, w.dtype)) if checks else value


def stored_as(dtype: str, total: te.Tensor) -> te.Tensor:
    """Sums are single precision whatever the storage; this rounds them once, at the end."""
    return total if dtype == "float32" else te.compute(total.shape, lambda *i: total[i].astype(dtype), name="store")


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A matrix product with a constant right side: (m, k) x (k, n)."""

    m: int
    k: int
    n: int
    dtype: str

    @property
    def out_texels(self) -> int:
        """Texels of output columns."""
        return -(-self.n // LANES)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.k * self.n

    @property
    def name(self) -> str:
        """Readable name."""
        return f"{self.m}x{self.k}_{self.n}"

    def block_attrs(self, family: str) -> dict[str, str]:
        """Annotations by which the operator is found again after fusion."""
        return {"romou.family": family, "romou.workload": json.dumps(asdict(self))}

    @classmethod
    def from_json(cls, text: str) -> Dense:
        """Inverse of what `block_attrs` writes."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class BatchMatmul:
    """Products of matrices that are both computed at run time: (*batch, m, k) x (*batch, k, n).

    batch: of the output.   lhs_batch, rhs_batch: of the operands; 1 where one matrix serves all.
    lhs_axes, rhs_axes, out_axes: the axis of the buffer that holds each of (*batch, m, k), (*batch, k, n) and (*batch, m, n).
    """

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_axes: tuple[int, ...]
    rhs_axes: tuple[int, ...]
    out_axes: tuple[int, ...]
    dtype: str

    @property
    def batches(self) -> int:
        """Products."""
        return math.prod(self.batch)

    @property
    def out_texels(self) -> int:
        """Texels of output columns."""
        return -(-self.n // LANES)

    @property
    def is_rhs_transposed(self) -> bool:
        """Whether neighbours in memory of the right side are neighbours in k."""
        return self.rhs_axes[-2] == len(self.rhs_axes) - 1

    @property
    def lhs_shape(self) -> tuple[int, ...]:
        """Of the left operand's buffer."""
        return _in_order(self.lhs_axes, (*self.lhs_batch, self.m, self.k))

    @property
    def rhs_shape(self) -> tuple[int, ...]:
        """Of the right operand's buffer."""
        return _in_order(self.rhs_axes, (*self.rhs_batch, self.k, self.n))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of the output's buffer."""
        return _in_order(self.out_axes, (*self.batch, self.m, self.n))

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batches * self.m * self.k * self.n

    @property
    def name(self) -> str:
        """Readable name."""
        return f"{self.batches}x{self.m}x{self.k}_{self.n}" + ("_t" if self.is_rhs_transposed else "")

    def flat_batch(self, position: Sequence[Expr]) -> Expr:
        """The number of the product at a position of the batch."""
        flat: Expr = 0
        for index, extent in zip(position, self.batch, strict=True):
            flat = flat * extent + index
        return flat

    def batch_of(self, flat: Expr) -> list[Expr]:
        """Inverse of `flat_batch`."""
        position: list[Expr] = []
        for extent in reversed(self.batch[1:]):
            position.append(flat % extent)
            flat = flat // extent
        return [*([flat] if self.batch else []), *reversed(position)]

    def block_attrs(self, family: str) -> dict[str, str]:
        """Annotations by which the operator is found again after fusion."""
        return {"romou.family": family, "romou.workload": json.dumps(asdict(self))}

    @classmethod
    def from_json(cls, text: str) -> BatchMatmul:
        """Inverse of what `block_attrs` writes."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()}
        return cls(**values)


def _in_order(axes: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    return tuple(extent for _, extent in sorted(zip(axes, extents, strict=True)))
