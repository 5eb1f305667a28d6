"""Convolutions with channels packed by four, a moving window, and a weight that is packed by one string.

data    (n, ceil(ic / 4), ih, iw, 4)      output  (n, ceil(oc / 4), oh, ow, 4)

Rows are images of one row, and frames of a volume images of a batch. `WEIGHTS` has the axes of the packed weights:

    conv2d          groups of whole texels. fp32: no lanes for missing input channels
    depthwise       each lane has its own window, and channels are not summed
    group_conv2d    groups that cut through texels: neighbouring output channels may read different input channels, so
                    lanes are loaded one by one
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnx
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction.schedule import PACKED
from romou.compiler.operators.families.bases.contraction import ContractionFamily
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.workload import Conv2d, Convolution, Expr
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import (
    FLOATS,
    Shape,
    dtype_of,
    extents_of,
    is_constant,
    is_one,
    shape_of,
    static_shape,
    zero_unless,
)
from romou.compiler.tir.images import as_images
from romou.compiler.tir.primitives import LANES

C = TypeVar("C", bound=Convolution)

# Kind of groups -> axes of the packed weight. The axes before `oc` are summed; `ky` counts rows of all frames.
WEIGHTS = {"conv2d": "ic:ky:kx:ilane:oc:lane", "depthwise": "ky:kx:oc:lane", "group_conv2d": "ic:ky:kx:oc:lane"}


def groups_of(w: Convolution) -> str:
    """Return the kind of a convolution's groups, a key of `WEIGHTS`."""
    inputs, outputs = w.in_channels // w.groups, w.out_channels // w.groups
    if w.groups == 1 or inputs % LANES == outputs % LANES == 0:
        return "conv2d"
    return "depthwise" if inputs == outputs == 1 else "group_conv2d"


def by_onnx(operator: str, x: np.ndarray, weight: np.ndarray, **attributes: Any) -> np.ndarray:
    """Return the output of ONNX's `Conv` or `ConvTranspose`, of arrays of any type, by its reference implementation."""
    from onnx.reference import ReferenceEvaluator  # here, because it imports every operator

    node = onnx.helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    output: np.ndarray = ReferenceEvaluator(node).run(None, {"x": x, "w": weight})[0]  # type: ignore[index]
    return output


def convolve(w: Convolution, x: np.ndarray, weight: np.ndarray, by: Callable[..., np.ndarray] = by_onnx) -> np.ndarray:
    """Convolve x (n, ic, *extents) with weight (oc, ic / groups, *kernel): (n, oc, *out_extents).

    by: an implementation of ONNX's operators.
    """
    return by("Conv", x, weight, strides=w.stride, pads=w.padding, dilations=w.dilation, group=w.groups)


class ConvolutionFamily(ContractionFamily[C]):
    """A family of convolutions.

    kernel_layout: of the weight in the graph, as in 2-D.
    has_frames: whether windows span several frames of a volume.
    build, reference: of a case, for as many axes as the window has.
    """

    is_packed = True
    works_in_texels = True
    operators = frozenset({"relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"})
    kernel_layout, build = "OIHW", "conv{}d"
    has_frames = False
    reference: Callable[..., np.ndarray] = staticmethod(convolve)

    def match(self, call: relax.Call) -> C | None:
        """Match a float convolution in NCHW, NCW or NCDHW."""
        if not is_channels_first(call, self.kernel_layout) or is_of_images(call) == self.has_frames:
            return None
        work = self.work_of(call)
        return work if self.is_mine(work) else None

    def work_of(self, call: relax.Call) -> C:
        """Return the workload of a convolution that this family matches."""
        weight, fields = call.args[1], common_fields(call, self.has_frames)
        if is_constant(weight) and not self.has_frames and has_integers(weight.value.numpy()):
            fields["has_integers"] = True
            if fields["dtype"] == "float32":
                fields["weight_type"], fields["weight_zero"] = integer_type(weight.value.numpy())
        workload: Callable[..., C] = self.workload
        return workload(out_channels=static_shape(weight)[0], **fields)

    def stored_data(self, w: C, data: relax.Expr, graph: Graph) -> tuple[C, relax.Expr]:
        source = _bytes_of(data, graph.bound) if w.weight_type else None
        if source is None:
            return w, data
        assert isinstance(w, Conv2d), "only these keep integers"
        return replace(w, data_type=dtype_of(source[0]), data_zero=source[1]), source[0]

    def stored_weight(self, w: C, weight: np.ndarray) -> np.ndarray:
        packed = self.pack_weight(w, weight)
        return (packed + w.weight_zero).astype(w.weight_type) if w.weight_type else packed

    def plain(self, w: C) -> Convolution:
        """Return the convolution that a kernel computes, whose weight is packed."""
        return w

    def output_texel(self, w: C, o: Expr) -> Expr:
        """Return the texel of output channels of a texel of `plain`'s, which reads the same inputs."""
        return o

    def weight_axes(self, w: C) -> dict[str, int]:
        """Return name -> extent of the packed weight's axes.

        ilane: lanes of an input texel that are multiplied. fp32: the lanes that hold channels, three in the first layer
        of most networks. fp16: all four, because matrix units take whole texels.
        """
        plain, layout = self.plain(w), WEIGHTS[groups_of(w)].split(":")
        inputs = plain.in_channels // plain.groups
        extents = {
            "ic": -(-inputs // LANES) if "ilane" in layout else inputs,
            "ky": math.prod(plain.kernel[:-1]),
            "kx": plain.kernel[-1],
            "ilane": min(inputs, LANES) if w.dtype == "float32" else LANES,
            "oc": plain.out_texels,
            "lane": LANES,
        }
        return {name: extents[name] for name in layout}

    def pack_weight(self, w: C, weight: np.ndarray) -> np.ndarray:
        """Pack (oc, ic / groups, ky, kx) by four output channels, and four input channels if they have lanes."""
        axes, (_, _, rows, columns) = self.weight_axes(w), weight.shape
        lanes = LANES if "ilane" in axes else 1
        sides = [(0, -extent % by) for extent, by in zip(weight.shape, (LANES, lanes), strict=False)]
        full = np.pad(weight, [*sides, (0, 0), (0, 0)]).reshape(axes["oc"], LANES, -1, lanes, rows, columns)
        names = ("oc", "lane", "ic", "ilane", "ky", "kx")
        unused = [at for at, name in enumerate(names) if name not in axes]
        packed = full.transpose(*map(names.index, axes), *unused).reshape([full.shape[names.index(a)] for a in axes])
        return np.ascontiguousarray(packed[tuple(map(slice, axes.values()))])

    def taken_weights(self, w: C) -> np.ndarray | None:
        """Return ones where the packed weight has numbers of the model. Winograd's phases read no other input lanes."""
        axes, inputs = self.weight_axes(w), w.in_channels // w.groups
        if w.weight_type or axes.get("ic", 1) * axes.get("ilane", 1) == inputs:
            return None
        ones = np.ones((w.out_channels, inputs, math.prod(w.kernel[:-1]), w.kernel[-1]), np.int8)
        return self.pack_weight(w, ones)

    def pack_at_run_time(self, w: C, weight: te.Tensor) -> te.Tensor:
        axes = self.weight_axes(w)

        def element(*index: Expr) -> tirx.Expr:
            at = dict(zip(axes, index, strict=True))
            i = at["ic"] * LANES + at["ilane"] if "ilane" in at else at.get("ic", 0)
            return self.weight_at(w, weight, at["oc"] * LANES + at["lane"], i, at["ky"], at["kx"])

        return te.compute(tuple(axes.values()), element, name=PACKED)

    def weight_at(self, w: C, weight: te.Tensor, o: Expr, i: Expr, ky: Expr, kx: Expr) -> tirx.Expr:
        """Return the unpacked weight at a tap, or zero if there is no such channel."""
        return zero_unless(w.dtype, weight[o, i, ky, kx], o < w.out_channels, i < w.in_channels // w.groups)

    def kernel_shape(self, w: C, shape: Shape) -> Shape:
        return *shape[:2], math.prod(w.kernel[:-1]), w.kernel[-1]

    def operands(self, w: C) -> Mapping[str, Shape]:
        return {"data": w.data_shape, "weight": tuple(self.weight_axes(w).values())}

    def bias(self, w: C) -> tuple[Shape, Callable[..., tuple[tirx.Expr | int, ...]]]:
        return (1, w.out_texels, 1, 1, LANES), lambda n, o, y, x, lane: (0, o, 0, 0, lane)

    def contraction(
        self, w: C, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        plain, groups, axes = self.plain(w), groups_of(w), self.weight_axes(w)
        extents, pixel, output = plain.pixels(flat)
        depth, frames = plain.extents[:-2], math.prod(plain.out_extents[:-2])
        taps = dict(zip(("kz", "ky", "kx")[-len(plain.kernel) :], plain.kernel, strict=True))
        reduce: dict[str, int] = {}
        for name in list(axes)[:-2]:
            reduce |= {} if name == "kx" else taps if name == "ky" else {name: axes[name]}

        def lhs(is_image: bool, o: Expr, h: Expr, x: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
            at, (image, *pixels) = dict(zip(reduce, r, strict=True)), pixel(h, x)
            volume, frame = (image // frames, image % frames) if not is_one(plain.batch) else (0, image)
            texel, ilane = _input_of(w, self.output_texel(w, o), lane, at)

            def load(*place: Expr) -> tirx.Expr:
                image_of_data = volume * depth[0] + place[0] if depth else image
                return plain.data_number(data[(image_of_data, texel, *place[-2:], ilane)])

            windows = [*([frame] if depth else []), *pixels]
            return plain.under_window(windows, [at[name] for name in taps], load, is_zero_outside=is_image)

        def rhs(o: Expr, lane: Expr, *r: Expr) -> tirx.Expr:
            at: dict[str, Any] = dict(zip(reduce, r, strict=True))
            if depth:
                at["ky"] = at["kz"] * taps["ky"] + at["ky"]
            return plain.weight_number(weight[(*(at[name] for name in list(axes)[:-2]), o, lane)])

        is_whole = groups == "conv2d"
        return Contraction(
            inputs=[data, weight],
            extents=extents,
            reduce=reduce,
            lhs=partial(lhs, is_zero_outside),
            lhs_of_image=partial(lhs, True) if depth else None,
            rhs=rhs,
            output=output,
            output_shape=w.output_shape,
            axes=plain.pixel_names(flat),
            layouts=() if depth else (f"n:{'ic' if 'ic' in axes else 'oc'}:y:x:lane", WEIGHTS[groups], "n:oc:y:x:lane"),
            is_image=is_zero_outside,
            # An expression of sizes at run time may be any number.
            is_padded=any(not isinstance(n, int) or n for axis in plain.axes[-2:] for n in (axis.before, axis.after)),
            stride=plain.stride[-1],
            texel=LANES if is_whole else None,
            vector=groups != "group_conv2d",
            lhs_varies="by lane" if not is_whole else "by texel" if plain.groups > 1 else "never",
        )

    def pixel_rows(self, w: C) -> int | None:
        return self.plain(w).out_hw[0]

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: C, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output (n, o, y, x, lane) as loops (o, h, w, lane), with pixels as the knob `pixels` says."""
        # The nest's own extents: TVM does not prove that other expressions of a size equal them.
        _, _, oh, ow, _ = extents_of(sch.get(loop).extent for loop in sch.get_loops(output))
        if config["pixels"] == "flat":
            sch.transform_block_layout(output, lambda n, o, y, x, lane: (o, (n * oh + y) * ow + x, lane))
            o, x, lane = sch.get_loops(output)
            return sch, (o, sch.add_unit_loop(x), x, lane)
        sch.transform_block_layout(output, lambda n, o, y, x, lane: (o, n * oh + y, x, lane))
        return sch, sch.get_loops(output)

    def case(self, w: C) -> Case:
        build = getattr(relax.op.nn, self.build.format(len(w.kernel)))
        outer, inner = (
            (w.out_channels, w.in_channels) if self.kernel_layout == "OIHW" else (w.in_channels, w.out_channels)
        )
        return Case(
            name=w.name,
            inputs=[(w.batch, w.in_channels, *w.extents)],
            weights=[(outer, inner // w.groups, *w.kernel)],
            build=lambda x, weight: build(x, weight, **attributes(w)),
            compute=partial(self.reference, w),
        )


def _input_of(w: Convolution, o: Expr, lane: Expr, at: Mapping[str, Any]) -> tuple[Expr, Expr]:
    """Return texel and lane of the input channel that an output channel reads, at a place of the reduction."""
    inputs, outputs = w.in_channels // w.groups, w.out_channels // w.groups
    if "ic" not in at:
        return o, lane
    if "ilane" in at:
        first = o // (w.out_texels // w.groups) * (inputs // LANES) if w.groups > 1 else None
        return at["ic"] if first is None else first + at["ic"], at["ilane"]
    # Lanes that pad the last texel belong to no group. Their weights are zero, so they may read any channel.
    channel = te.min(o * LANES + lane, w.out_channels - 1) // outputs * inputs + at["ic"]
    return channel // LANES, channel % LANES


def attributes(w: Convolution) -> dict[str, Any]:
    """Return the attributes of the Relax operator of a convolution."""
    return {
        "strides": list(w.stride),
        "padding": list(w.padding),
        "dilation": list(w.dilation),
        "groups": w.groups,
        **({"output_padding": list(more)} if (more := getattr(w, "output_padding", None)) else {}),
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


def common_fields(call: relax.Call, has_frames: bool = False) -> dict[str, Any]:
    """Return the fields of a workload that convolutions and transposed ones share: all but the output channels.

    has_frames: whether the workload is of volumes, not of images.
    """
    shape, kernel, attrs, rank = static_shape(call.args[0]), static_shape(call.args[1])[2:], call.attrs, 2 + has_frames
    n, c, *extents = shape if has_frames else as_images(shape)
    pads = all_sides(attrs.padding, len(kernel))
    return {
        "batch": n,
        "in_channels": c,
        "in_dhw" if has_frames else "in_hw": tuple(extents),
        "kernel": innermost(kernel, 1, rank),
        "stride": innermost(attrs.strides, 1, rank),
        "padding": (*innermost(pads[: len(kernel)], 0, rank), *innermost(pads[len(kernel) :], 0, rank)),
        "dilation": innermost(attrs.dilation, 1, rank),
        "groups": int(attrs.groups),
        "dtype": dtype_of(call.args[0]),
        **({"output_padding": innermost(attrs.output_padding, 0)} if hasattr(attrs, "output_padding") else {}),
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


def innermost(settings: Sequence[int], missing: int, axes: int = 2) -> tuple[int, ...]:
    """Return the settings of the last axes. A 1-D convolution lacks the rows' setting."""
    return tuple([missing, *map(int, settings)][-axes:])


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
