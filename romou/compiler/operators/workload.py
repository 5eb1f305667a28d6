"""Workloads: the shapes and numbers of an operator, independent of its schedule."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tvm import te, tirx

from romou.base.schema import made_of
from romou.compiler.tir.primitives import LANES

if TYPE_CHECKING:
    from typing_extensions import Self

Expr: TypeAlias = "tirx.Expr | int"
# Annotations of the block that is an operator's plain definition: its family's name and its workload.
FAMILY, WORKLOAD = "romou.family", "romou.workload"


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """The numbers of one operator. Records and task keys contain the fields in their order.

    dtype: type of numbers in memory, "float32" or "float16".
    """

    if TYPE_CHECKING:
        # Each kind declares it after its shapes. As a field of this class it would come first.
        dtype: str

    # Fields that records and task keys lack if they are empty.
    OPTIONAL: ClassVar[Set[str]] = frozenset()

    @property
    @abstractmethod
    def name(self) -> str:
        """Return a readable name, without the family."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Return the multiplications and additions of one call."""

    def block_attrs(self, family: str) -> dict[str, str]:
        """Return annotations that identify the operator after fusion."""
        return {FAMILY: family, WORKLOAD: json.dumps(self.to_dict())}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the workload that `block_attrs` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def has_fields(cls, names: Set[str]) -> bool:
        """Return whether these are the names that `to_dict` gives the numbers of such an operator."""
        every = {field.name for field in dataclasses.fields(cls)}
        return every - cls.OPTIONAL <= names <= every

    @property
    def data_dtype(self) -> str:
        """Return the type of the first factor in memory."""
        return self.dtype

    @property
    def weight_dtype(self) -> str:
        """Return the type of the packed second factor in memory."""
        return self.dtype

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON-ready data."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if value or name not in self.OPTIONAL}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the workload that `to_dict` wrote, perhaps through JSON. ValueError for values of other types."""
        return made_of(cls, values)


@dataclass(frozen=True, kw_only=True)
class Conv2d(Workload):
    """A 2-D convolution. Channels, pixels and padding (top, left, bottom, right) in elements.

    has_integers: whether all weights are integers, so that sums of integers have to be exact.
    weight_type: type of the packed weight, if its integers stay integers in memory: "int8", "uint8" or "int16".
    weight_zero: what the kernel subtracts from each of these.
    data_type, data_zero: the same of the data, "int8" or "uint8" with its zero point.
    """

    OPTIONAL = frozenset({"has_integers", "weight_type", "weight_zero", "data_type", "data_zero"})

    batch: int = 1
    in_channels: int
    in_hw: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    has_integers: bool = False
    weight_type: str = ""
    weight_zero: int = 0
    data_type: str = ""
    data_zero: int = 0
    dtype: str = "float32"

    @property
    def data_dtype(self) -> str:
        return self.data_type or self.dtype

    @property
    def weight_dtype(self) -> str:
        return self.weight_type or self.dtype

    def data_number(self, stored: tirx.Expr) -> tirx.Expr:
        """Return the number that an element of the data stands for."""
        return self._number(stored, self.data_zero)

    def weight_number(self, stored: tirx.Expr) -> tirx.Expr:
        """Return the weight that an element of the packed weight stands for."""
        return self._number(stored, self.weight_zero)

    def _number(self, stored: tirx.Expr, zero: int) -> tirx.Expr:
        number = stored.astype(self.dtype)
        return number - tirx.const(zero, self.dtype) if zero else number

    @property
    def out_hw(self) -> tuple[int, int]:
        """Return height and width of the output, in pixels."""
        top, left, bottom, right = self.padding
        (h, w), (kh, kw), (sh, sw), (dh, dw) = self.in_hw, self.kernel, self.stride, self.dilation
        return (h + top + bottom - (kh - 1) * dh - 1) // sh + 1, (w + left + right - (kw - 1) * dw - 1) // sw + 1

    @property
    def out_texels(self) -> int:
        """Return the texels of output channels."""
        return -(-self.out_channels // LANES)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the packed output, in elements."""
        return (self.batch, self.out_texels, *self.out_hw, LANES)

    @property
    def flops(self) -> int:
        """Return the multiplications and additions of the unpadded operator."""
        taps = self.in_channels // self.groups * self.kernel[0] * self.kernel[1]
        return 2 * self.batch * self.out_channels * self.out_hw[0] * self.out_hw[1] * taps

    @property
    def name(self) -> str:
        """Return a readable name, independent of the family, with shapes as in the ONNX graph."""
        (ih, iw), (kh, kw), (sh, sw) = self.in_hw, self.kernel, self.stride
        text = f"{self.batch}x{self.in_channels}x{ih}x{iw}_{self.out_channels}_{kh}x{kw}_s{sh}" + (
            f"x{sw}" if sh != sw else ""
        )
        if self.dilation != (1, 1):
            rows, columns = self.dilation
            text += f"_d{rows}" + (f"x{columns}" if rows != columns else "")
        return text + (f"_g{self.groups}" if self.groups > 1 else "")

    def axes(self, flat: bool) -> tuple[str, str, str]:
        """Return names of (o, h, w) of `pixels` for a reader of the kernel."""
        oh, ow = self.out_hw
        row = f"n * {oh} + y" if self.batch > 1 else "y"
        if flat and not self._is_row:
            return "oc", "", f"({row}) * {ow} + x" if self.batch > 1 else f"y * {ow} + x"
        return "oc", row, "x"

    @property
    def _is_row(self) -> bool:
        """Return whether all output pixels are one row, so that a pixel's column is its place in either layout."""
        return self.batch * self.out_hw[0] == 1

    def pixels(self, flat: bool) -> tuple[tuple[int, int, int], Callable[..., Any], Callable[..., Any]]:
        """Return the layout of output pixels on the (h, w) plane of a contraction.

        flat: all pixels of the batch are in one row, so that no tile is cut at the end of a short row. If not, or if
        there is only one row, rows stay rows, so that neighbouring pixels of a tile share the input that their windows
        have in common.

        Returns (extents, place, output):
            extents                     (o, h, w)
            place(h, w)                 -> (n, y, x)
            output(n, o, y, x, lane)    -> (o, h, w, lane)
        """
        oh, ow = self.out_hw
        if flat and not self._is_row:
            return (
                (self.out_texels, 1, self.batch * oh * ow),
                lambda _h, w: (
                    (w // (oh * ow) if self.batch > 1 else 0),
                    (w // ow % oh if self.batch > 1 else w // ow),
                    w % ow,
                ),
                lambda n, o, y, x, lane: (o, 0, (n * oh + y) * ow + x, lane),
            )
        return (
            (self.out_texels, self.batch * oh, ow),
            lambda h, w: (h // oh if self.batch > 1 else 0, h % oh if self.batch > 1 else h, w),
            lambda n, o, y, x, lane: (o, n * oh + y, x, lane),
        )


def window_index(
    w: Conv2d,
    oy: Expr,
    ox: Expr,
    kh: Expr,
    kw: Expr,
    load: Callable[[Expr, Expr], tirx.Expr],
    *,
    is_zero_outside: bool = False,
) -> tirx.Expr:
    """Return the input pixel under tap (kh, kw) of the window at (oy, ox), or zero in the padding.

    Only sides with padding are compared, so an unpadded convolution has no branch. Neither has a convolution of an
    image, which is zero outside (`is_zero_outside`).
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
    """Round a sum in single precision to the type of storage, once, at the end."""
    return total if dtype == "float32" else te.compute(total.shape, lambda *i: total[i].astype(dtype), name="store")
