"""Workloads: the shapes and numbers of an operator, independent of its schedule."""

from __future__ import annotations

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tvm import te, tirx

from romou.base.schema import made_of
from romou.compiler.tir.expressions import is_one, zero_unless
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


@dataclass(frozen=True)
class Axis:
    """An axis of a convolution's window and pixels, in elements. The data has zeros `before` and `after`."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Return the distance of a window's first and last tap."""
        return (self.kernel - 1) * self.dilation

    @property
    def out(self) -> int:
        """Return the number of windows."""
        return (self.extent + self.before + self.after - self.reach - 1) // self.stride + 1

    def under(self, window: Expr, tap: Expr) -> Expr:
        """Return the element of the data under a tap of a window."""
        return window * self.stride + tap * self.dilation - self.before

    def checks(self, at: Expr) -> list[tirx.Expr]:
        """Return the conditions that an element is not in the padding, for the sides that may have one."""
        before, after = (not isinstance(count, int) or count > 0 for count in (self.before, self.after))
        return [*([at >= 0] if before else []), *([at < self.extent] if after else [])]


class Convolution(Workload):
    """A convolution of rows and columns, with a depth before them in a volume. Each kind declares its numbers.

    Frames of a volume are stored like the images of a batch.

    padding: before each axis, then after each axis.
    """

    if TYPE_CHECKING:
        batch: int
        in_channels: int
        out_channels: int
        kernel: tuple[int, ...]
        stride: tuple[int, ...]
        padding: tuple[int, ...]
        dilation: tuple[int, ...]
        groups: int

    # Integers in memory, which a kind may have as fields.
    has_integers: bool = False
    weight_type: str = ""
    weight_zero: int = 0
    data_type: str = ""
    data_zero: int = 0

    # Name of the field of the data's spatial extents.
    SIZE: ClassVar[str]

    @classmethod
    def of(cls, channels: int, size: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **fields: Any) -> Self:
        """Return a convolution. One number for stride, dilation or padding is that of all axes and sides."""
        counts = {"stride": len(kernel), "dilation": len(kernel), "padding": 2 * len(kernel)}
        each = {name: (fields[name],) * counts[name] for name in counts if isinstance(fields.get(name), int)}
        sizes = {"in_channels": channels, cls.SIZE: size, "out_channels": outputs, "kernel": kernel}
        return cls(**{**sizes, **fields, **each})

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the spatial extents of the data, in pixels."""
        extents: tuple[int, ...] = getattr(self, self.SIZE)
        return extents

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return the spatial axes, outermost first."""
        rank = len(self.kernel)
        sides = (self.padding[:rank], self.padding[rank:])
        return tuple(map(Axis, self.extents, self.kernel, self.stride, self.dilation, *sides))

    @property
    def out_extents(self) -> tuple[int, ...]:
        """Return the spatial extents of the output, in pixels."""
        return tuple(axis.out for axis in self.axes)

    @property
    def out_hw(self) -> tuple[int, int]:
        """Return height and width of the output, in pixels."""
        height, width = self.out_extents[-2:]
        return height, width

    @property
    def images(self) -> int:
        """Return the images of the output: of a batch, or frames of its volumes."""
        return self.batch * math.prod(self.out_extents[:-2])

    @property
    def out_texels(self) -> int:
        """Return the texels of output channels."""
        return -(-self.out_channels // LANES)

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Return the shape of the packed data, in elements."""
        *depth, height, width = self.extents
        return (self.batch * math.prod(depth), -(-self.in_channels // LANES), height, width, LANES)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the packed output, in elements."""
        return (self.images, self.out_texels, *self.out_hw, LANES)

    @property
    def flops(self) -> int:
        """Return the multiplications and additions of the unpadded operator."""
        products = self.in_channels // self.groups * math.prod(self.kernel)
        return 2 * self.batch * self.out_channels * math.prod(self.out_extents) * products

    @property
    def name(self) -> str:
        """Return a readable name, independent of the family, with shapes as in the ONNX graph."""

        def joined(numbers: Sequence[int]) -> str:
            return "x".join(map(str, numbers))

        def short(numbers: Sequence[int]) -> str:
            return joined(numbers[:1] if len({*numbers}) == 1 else numbers)

        shape = joined((self.batch, self.in_channels, *self.extents))
        text = f"{shape}_{self.out_channels}_{joined(self.kernel)}_s{short(self.stride)}"
        spread = "" if {*self.dilation} == {1} else f"_d{short(self.dilation)}"
        return text + spread + (f"_g{self.groups}" if self.groups > 1 else "")

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

    def pixel_names(self, flat: bool) -> tuple[str, str, str]:
        """Return names of (o, h, w) of `pixels` for a reader of the kernel."""
        oh, ow = self.out_hw
        row = f"n * {oh} + y" if self._has_batch else "y"
        if flat and not self._is_row:
            return "oc", "", f"({row}) * {ow} + x" if self._has_batch else f"y * {ow} + x"
        return "oc", row, "x"

    @property
    def _has_batch(self) -> bool:
        """Return whether there may be several images. Their number may be a size at run time."""
        return not is_one(self.images)

    @property
    def _is_row(self) -> bool:
        """Return whether all output pixels are one row, so that a pixel's column is its place in either layout."""
        return self.images * self.out_hw[0] == 1

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
        (oh, ow), is_batch = self.out_hw, self._has_batch
        if flat and not self._is_row:
            return (
                (self.out_texels, 1, self.images * oh * ow),
                lambda _h, w: (w // (oh * ow) if is_batch else 0, w // ow % oh if is_batch else w // ow, w % ow),
                lambda n, o, y, x, lane: (o, 0, (n * oh + y) * ow + x, lane),
            )
        return (
            (self.out_texels, self.images * oh, ow),
            lambda h, w: (h // oh if is_batch else 0, h % oh if is_batch else h, w),
            lambda n, o, y, x, lane: (o, n * oh + y, x, lane),
        )

    def under_window(
        self,
        windows: Sequence[Expr],
        taps: Sequence[Expr],
        load: Callable[..., tirx.Expr],
        *,
        only_if: tirx.Expr | bool = True,
        is_zero_outside: bool = False,
    ) -> tirx.Expr:
        """Return the element of the data under a tap of a window, or zero in the padding.

        Only sides with padding are compared, so an unpadded convolution has no branch. Neither have rows and columns of
        an image, which is zero outside (`is_zero_outside`).

        load: a place on each spatial axis -> the data's element.
        only_if: another condition without which the result is zero.
        """
        at = [axis.under(window, tap) for axis, window, tap in zip(self.axes, windows, taps, strict=True)]
        checked = list(zip(self.axes, at, strict=True))[: -2 if is_zero_outside else None]
        return zero_unless(self.dtype, load(*at), only_if, *(each for axis, i in checked for each in axis.checks(i)))


@dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    """A 2-D convolution. Channels, pixels and padding (top, left, bottom, right) in elements.

    has_integers: whether all weights are integers, so that sums of integers have to be exact.
    weight_type: type of the packed weight, if its integers stay integers in memory: "int8", "uint8" or "int16".
    weight_zero: what the kernel subtracts from each of these.
    data_type, data_zero: the same of the data, "int8" or "uint8" with its zero point.
    """

    OPTIONAL = frozenset({"has_integers", "weight_type", "weight_zero", "data_type", "data_zero"})
    SIZE = "in_hw"

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


@dataclass(frozen=True, kw_only=True)
class Conv3d(Convolution):
    """A 3-D convolution. `padding` is (front, top, left, back, bottom, right)."""

    SIZE = "in_dhw"

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


def stored_as(dtype: str, total: te.Tensor) -> te.Tensor:
    """Round a sum in single precision to the type of storage, once, at the end."""
    return total if dtype == "float32" else te.compute(total.shape, lambda *i: total[i].astype(dtype), name="store")
