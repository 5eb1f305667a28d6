"""The base of convolution families: channels packed by four on both sides, a moving window, a constant weight.

data    (n, ceil(ic / 4), ih, iw, 4)      output  (n, ceil(oc / 4), oh, ow, 4)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction_family import ContractionFamily
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.packed_weight import PACKED, zero_unless
from romou.compiler.operators.workload import Conv2d, Expr
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import FLOATS, Shape, dtype_of, is_constant, shape_of, static_shape
from romou.compiler.tir.images import as_images
from romou.compiler.tir.primitives import LANES

C = TypeVar("C", bound=Conv2d)


class ConvolutionFamily(ContractionFamily[C]):
    """A family of 2-D convolutions. 1-D and 3-D convolutions belong to it as convolutions of images.

    kernel_layout: of the weight in the graph.
    """

    is_packed = True
    works_in_texels = True
    operators = frozenset({"relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"})
    kernel_layout = "OIHW"

    def match(self, call: relax.Call) -> C | None:
        """Match a float convolution in NCHW, NCW or NCDHW."""
        if not is_channels_first(call, self.kernel_layout) or not is_of_images(call):
            return None
        work = self.work_of(call)
        return work if self.is_mine(work) else None

    def work_of(self, call: relax.Call) -> C:
        """Return the workload of a convolution that this family matches."""
        weight, fields = call.args[1], common_fields(call)
        if is_constant(weight) and has_integers(weight.value.numpy()):
            fields["has_integers"] = True
            if fields["dtype"] == "float32":
                fields["weight_type"], fields["weight_zero"] = integer_type(weight.value.numpy())
        return self.workload(out_channels=static_shape(weight)[0], **fields)

    def stored_data(self, w: C, data: relax.Expr, graph: Graph) -> tuple[C, relax.Expr]:
        source = _bytes_of(data, graph.bound) if w.weight_type else None
        if source is None:
            return w, data
        return replace(w, data_type=dtype_of(source[0]), data_zero=source[1]), source[0]

    def stored_weight(self, w: C, weight: np.ndarray) -> np.ndarray:
        packed = self.pack_weight(w, weight)
        return (packed + w.weight_zero).astype(w.weight_type) if w.weight_type else packed

    @abstractmethod
    def weight_shape(self, w: C) -> Shape:
        """Return the shape of the packed weight, in elements."""

    @abstractmethod
    def tap_of(self, w: C, *index: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Return the output channel, the group's input channel, and the tap of an element of the packed weight."""

    def weight_at(self, w: C, weight: te.Tensor, o: Expr, i: Expr, kh: Expr, kw: Expr) -> tirx.Expr:
        """Return the unpacked weight at a tap, or zero if there is no such channel."""
        return zero_unless(w.dtype, weight[o, i, kh, kw], o < w.out_channels, i < w.in_channels // w.groups)

    def pack_at_run_time(self, w: C, weight: te.Tensor) -> te.Tensor:
        return te.compute(
            self.weight_shape(w), lambda *index: self.weight_at(w, weight, *self.tap_of(w, *index)), name=PACKED
        )

    def kernel_shape(self, w: C, shape: Shape) -> Shape:
        return *shape[:2], *w.kernel

    def operands(self, w: C) -> Mapping[str, Shape]:
        return {"data": (w.batch, -(-w.in_channels // LANES), *w.in_hw, LANES), "weight": self.weight_shape(w)}

    def bias(self, w: C) -> tuple[Shape, Callable[..., tuple[tirx.Expr | int, ...]]]:
        return (1, w.out_texels, 1, 1, LANES), lambda n, o, y, x, lane: (0, o, 0, 0, lane)

    def pixel_rows(self, w: C) -> int | None:
        return w.out_hw[0]

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: C, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output (n, o, y, x, lane) as loops (o, h, w, lane), with pixels as the knob `pixels` says."""
        oh, ow = w.out_hw
        if config["pixels"] == "flat":
            sch.transform_block_layout(output, lambda n, o, y, x, lane: (o, (n * oh + y) * ow + x, lane))
            o, x, lane = sch.get_loops(output)
            return sch, (o, sch.add_unit_loop(x), x, lane)
        sch.transform_block_layout(output, lambda n, o, y, x, lane: (o, n * oh + y, x, lane))
        return sch, sch.get_loops(output)

    def case(self, w: C) -> Case:
        settings = attributes(w)
        return Case(
            name=w.name,
            inputs=[(w.batch, w.in_channels, *w.in_hw)],
            weights=[(w.out_channels, w.in_channels // w.groups, *w.kernel)],
            build=lambda x, weight: relax.op.nn.conv2d(x, weight, **settings),
            compute=lambda x, weight: convolve(w, x, weight),
        )


class Window(Protocol):
    """The workload of a convolution in one, two or three dimensions."""

    @property
    def stride(self) -> Shape: ...
    @property
    def padding(self) -> Shape: ...
    @property
    def dilation(self) -> Shape: ...
    @property
    def groups(self) -> int: ...


def attributes(w: Window) -> dict[str, Any]:
    """Return the attributes of the Relax operator of a convolution."""
    return {
        "strides": list(w.stride),
        "padding": list(w.padding),
        "dilation": list(w.dilation),
        "groups": w.groups,
    }


def is_channels_first(call: relax.Call, kernel_layout: str) -> bool:
    """Return whether a convolution has floats, static shapes, and channels before pixels.

    kernel_layout: of the weight, as in 2-D.
    """
    (data, weight), attrs = call.args, call.attrs
    shape = shape_of(data)
    if shape_of(call) is None or shape is None or shape_of(weight) is None:
        return False
    pixels = "DHW"[5 - len(shape) :]
    is_first = (attrs.data_layout, attrs.kernel_layout) == ("NC" + pixels, kernel_layout.replace("HW", pixels))
    return is_first and dtype_of(call) in FLOATS and dtype_of(weight) == dtype_of(data)


def is_of_images(call: relax.Call) -> bool:
    """Return whether each output frame of a convolution depends on one input frame."""
    if len(static_shape(call.args[0])) < 5:
        return True
    attrs, depth, (front, _, _, back, _, _) = (
        call.attrs,
        static_shape(call.args[1])[2],
        all_sides(call.attrs.padding, 3),
    )
    return depth == int(attrs.strides[0]) == 1 and not (front or back or int(getattr(attrs, "output_padding", [0])[0]))


def common_fields(call: relax.Call) -> dict[str, Any]:
    """Return the fields of `Conv2d` that a convolution and a transposed one share: all but the output channels."""
    shape, kernel, attrs = static_shape(call.args[0]), static_shape(call.args[1])[2:], call.attrs
    n, c, h, w = as_images(shape)
    pads = all_sides(attrs.padding, len(kernel))
    return {
        "batch": n,
        "in_channels": c,
        "in_hw": (h, w),
        "kernel": plane_of(kernel),
        "stride": plane_of(attrs.strides),
        "padding": (0, pads[0], 0, pads[1]) if len(kernel) == 1 else (*pads[len(kernel) - 2 : len(kernel)], *pads[-2:]),
        "dilation": plane_of(attrs.dilation),
        "groups": int(attrs.groups),
        "dtype": dtype_of(call.args[0]),
    }


def has_integers(weight: np.ndarray) -> bool:
    """Return whether all weights are integers. A first look at a few of them is enough for most weights."""
    few = weight.ravel()[:LANES]
    return bool(np.array_equal(few, np.rint(few)) and np.array_equal(weight, np.rint(weight)))


def _bytes_of(data: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> tuple[relax.Expr, int] | None:
    """Return the tensor of 8 bits that an expression converts to floats, with the zero point that it subtracts first.

    float32(int32(x) - zero)      ->      x, zero
    """

    def value_of(expr: relax.Expr) -> Any:
        return bound.get(expr) if isinstance(expr, relax.Var) else expr

    value, zero = value_of(data), 0
    if op_name(value) != "relax.astype":
        return None
    inner = value_of(value.args[0])
    if op_name(inner) == "relax.subtract" and dtype_of(inner) == "int32":
        point = value_of(inner.args[1])
        if not is_constant(point) or point.value.numpy().size != 1:
            return None
        zero, inner = int(point.value.numpy().item()), value_of(inner.args[0])
    while op_name(inner) == "relax.astype" and dtype_of(inner) == "int32":
        if dtype_of(inner.args[0]) in ("int8", "uint8"):
            return inner.args[0], zero
        inner = value_of(inner.args[0])
    return None


def integer_type(weight: np.ndarray) -> tuple[str, int]:
    """Return the smallest type that holds integers, with what has to be added to them. No type if 16 bits are too few.

    Zeros fill up the texels of a packed weight, so the type has to hold a zero, too.
    """
    low, high = min(int(weight.min(initial=0)), 0), max(int(weight.max(initial=0)), 0)
    if low >= -128 and high <= 127:
        return "int8", 0
    if high - low <= 255:
        return "uint8", -low
    return ("int16", 0) if low >= -(2**15) and high < 2**15 else ("", 0)


def plane_of(settings: Sequence[int]) -> tuple[int, int]:
    """Return the last two of the settings of all spatial axes. A 1-D convolution has a height of 1."""
    h, w = [1, *map(int, settings)][-2:]
    return h, w


def all_sides(padding: Sequence[int], axes: int) -> tuple[int, ...]:
    """Return a padding for the beginnings of all spatial axes, then for their ends.

    padding: one number for all axes, one for each axis, or one for each side.
    """
    pads = [int(pad) for pad in padding]
    return tuple(pads * (2 * axes // len(pads)))


def four_sides(padding: Sequence[int]) -> tuple[int, int, int, int]:
    """Return (top, left, bottom, right) of a padding that is given for both axes, each axis, or each side."""
    top, left, bottom, right = all_sides(padding, 2)
    return top, left, bottom, right


def convolve(w: Conv2d, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Convolve x (n, ic, ih, iw) with weight (oc, ic / groups, kh, kw) in NumPy, tap by tap: (n, oc, oh, ow)."""
    (oh, ow), (sh, sw), (dh, dw), (top, left, bottom, right) = w.out_hw, w.stride, w.dilation, w.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    total = np.zeros((w.batch, w.groups, w.out_channels // w.groups, oh, ow), x.dtype)
    for kh, kw in np.ndindex(w.kernel):
        window = padded[:, :, kh * dh :, kw * dw :][:, :, : (oh - 1) * sh + 1 : sh, : (ow - 1) * sw + 1 : sw]
        taps = weight[:, :, kh, kw].reshape(w.groups, -1, w.in_channels // w.groups)
        total += (taps @ window.reshape(w.batch, w.groups, -1, oh * ow)).reshape(total.shape)
    return total.reshape(w.batch, w.out_channels, oh, ow)
