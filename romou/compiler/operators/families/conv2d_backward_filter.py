"""The gradient of a convolution by its filter.

data      (n, ceil(ic / 4), ih, iw, 4)      the convolution's input
gradient  (n, ceil(oc / 4), oh, ow, 4)      of the convolution's output
output    (oc, ic / groups, kh, kw)

For each tap, the gradient is a sum over all pixels of the batch: output gradient times the input under the tap. As a
contraction, texels of output channels meet (tap, input channel), and the reduction takes four pixels at a time. There
are few outputs and hundreds of thousands of pixels, so the sum can be split into pieces
(`romou/compiler/operators/algorithms/split_sum.py`).

Source: BEAST's paper, section 6, which names this the slowest of the three training passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.algorithms.split_sum import PIECES, TOTAL
from romou.compiler.operators.algorithms.winograd.convolution import TILES, Winograd, algorithms
from romou.compiler.operators.algorithms.winograd.filter_gradient import WinogradFilter
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction.form import round_up
from romou.compiler.operators.contraction.stages import Stage
from romou.compiler.operators.families.bases.contraction import ContractionFamily
from romou.compiler.operators.families.bases.convolution import attributes, by_onnx, four_sides
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose, backward_input
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.workload import Conv2d, Convolution, Expr
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.scheduling.rewrites import GuardedIndex, as_module, renest
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import FLOATS, Shape, digits_of, dtype_of, number_of, shape_of
from romou.compiler.tir.primitives import LANES

# Most elements of the workspace of a sum in pieces, fewest texels of pixels in a piece, and the number of texels of
# pixels that divides a piece so that it can be staged.
_MOST_BETWEEN, _LEAST_OF_PIECE, _STEPS = 1 << 24, 64, 4
# Layouts of TVM's gradient of conv2d by its weight: it sums over the batch as if over channels.
_LAYOUTS = ("CNHW", "IOHW", "CNHW")


@dataclass(frozen=True, kw_only=True)
class Conv2dBackwardFilter(Conv2d):
    """The gradient of a 2-D convolution by its filter. All other fields are the convolution's."""

    gradient: str = "filter"

    @property
    def filter(self) -> tuple[int, int, int]:
        """Extents of the columns of a filter: taps, and then input channels, so neighbours are of one texel."""
        return *self.kernel, self.in_channels // self.groups

    @property
    def columns(self) -> int:
        """Elements of one filter."""
        return math.prod(self.filter)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.out_channels, self.in_channels // self.groups, *self.kernel)

    @property
    def pixels_of_batch(self) -> int:
        """Pixels of the output's gradient in the whole batch, the length of the sum."""
        return self.batch * math.prod(self.out_hw)

    def texels_of_piece(self, count: int) -> int:
        """Return the steps of four pixels in each of `count` pieces. The last piece may be partly empty."""
        texels = -(-self.pixels_of_batch // (LANES * count))
        return int(round_up(texels, _STEPS))


def backward_filter(w: Conv2d) -> Conv2dBackwardFilter:
    """Return the gradient of a convolution by its filter."""
    return Conv2dBackwardFilter(**w.to_dict())


def filter_gradient(
    w: Convolution, x: np.ndarray, gradient: np.ndarray, by: Callable[..., np.ndarray] = by_onnx
) -> np.ndarray:
    """Compute the gradient of a convolution by its weight: (oc, ic / groups, *kernel).

    The output's gradient is the window that moves over x, and the batch is summed as channels are.
    """
    parts = []
    for data, window in zip(np.split(x, w.groups, 1), np.split(gradient, w.groups, 1), strict=True):
        exchanged = data.swapaxes(0, 1), window.swapaxes(0, 1)
        taps = by("Conv", *exchanged, strides=w.dilation, pads=w.padding, dilations=w.stride)
        parts.append(taps[(slice(None), slice(None), *map(slice, w.kernel))].swapaxes(0, 1))
    return np.concatenate(parts)


class Conv2dBackwardFilterFamily(ContractionFamily[Conv2dBackwardFilter]):
    """Gradients by the filter, of convolutions of any stride, padding, dilation and groups."""

    name = "conv2d_backward_filter"
    workload = Conv2dBackwardFilter
    has_constant_weight = False
    operators = frozenset({"relax.nn.conv2d", "relax.strided_slice"})
    typical = (
        Conv2dBackwardFilter.of(8, (9, 7), 12, (3, 3), padding=1, batch=7),
        Conv2dBackwardFilter.of(3, (11, 10), 7, (5, 3), stride=(2, 3), padding=(2, 1, 1, 0)),
        Conv2dBackwardFilter.of(4, (9, 8), 16, (3, 2), padding=(2, 1, 2, 1), dilation=(2, 1), groups=2, batch=2),
        Conv2dBackwardFilter.of(6, (7, 6), 6, (3, 3), stride=2, padding=1, groups=6, batch=2),
        Conv2dBackwardFilter.of(6, (7, 6), 9, (3, 3), padding=1, groups=3),
    )

    def match(self, call: relax.Call) -> Conv2dBackwardFilter | None:
        """Match TVM's gradient of a convolution, not sliced."""
        return self._work_of(call, call)

    def _work_of(self, call: relax.Call, cut: relax.Call) -> Conv2dBackwardFilter | None:
        """Return the workload of a convolution that sums over the batch, sliced to `cut`.

        With a stride, TVM's result has more rows and columns than the filter.
        """
        attrs = call.attrs
        data, gradient, result = shape_of(call.args[0]), shape_of(call.args[1]), shape_of(cut)
        if (
            (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != _LAYOUTS
            or data is None
            or gradient is None
            or result is None
        ):
            return None
        if dtype_of(call) not in FLOATS or dtype_of(call.args[1]) != dtype_of(call.args[0]):
            return None
        groups = int(attrs.groups)
        return Conv2dBackwardFilter.of(
            data[1] * groups,
            data[2:],
            gradient[1],
            result[2:],
            batch=gradient[0],
            stride=tuple(map(int, attrs.dilation)),
            padding=four_sides(attrs.padding),
            dilation=tuple(map(int, attrs.strides)),
            groups=groups,
            dtype=dtype_of(call),
        )

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return the plain definition of a gradient, or of its slice for the filter."""
        conv = call if op_name(call) == "relax.nn.conv2d" else graph.bound.get(call.args[0])
        if not isinstance(conv, relax.Call) or op_name(conv) != "relax.nn.conv2d":
            return None
        work = self._work_of(conv, call)
        data = None if work is None else _ungrouped(conv.args[0], work, graph)
        if work is None or data is None or (conv is not call and not _is_head(call)):
            return None
        return self.emit_define(
            graph, lambda x, y: self.define(work, x, y), graph.packed_expr(data), graph.packed_expr(conv.args[1])
        )

    def operands(self, w: Conv2dBackwardFilter) -> Mapping[str, Shape]:
        return {"data": w.data_shape, "gradient": (w.batch, w.out_texels, *w.out_hw, LANES)}

    def bias(self, w: Conv2dBackwardFilter) -> tuple[Shape, Callable[..., tuple[tirx.Expr | int, ...]]]:
        return (w.out_channels,), lambda o, i, kh, kw: (o,)

    def contraction(
        self, w: Conv2dBackwardFilter, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        return self.in_pieces(w, data, weight, 1)

    def pieces(self, w: Conv2dBackwardFilter) -> Sequence[int]:
        most = min(_MOST_BETWEEN // (w.out_texels * LANES * w.columns), w.pixels_of_batch // (LANES * _LEAST_OF_PIECE))
        return [count for count in PIECES.values() if count <= most]

    def winograd(self, w: Conv2dBackwardFilter) -> dict[str, Winograd]:
        return {name: WinogradFilter(w, TILES[name]) for name in algorithms(w)}

    def in_pieces(self, w: Conv2dBackwardFilter, data: te.Tensor, weight: te.Tensor, count: int) -> Contraction:
        """Return a contraction with a row h for each piece of the sum. Its pixels are the columns of a filter."""
        inputs, outputs, share = w.in_channels // w.groups, w.out_channels // w.groups, w.texels_of_piece(count)
        is_whole_texels, is_depthwise = outputs % LANES == 0, w.groups > 1 and inputs == outputs == 1
        is_padded = share * count * LANES > w.pixels_of_batch

        def pixel(piece: Expr, texel: Expr, step: Expr) -> list[Expr]:
            k = (piece * share + texel) * LANES + step
            return [k, *digits_of(te.min(k, w.pixels_of_batch - 1) if is_padded else k, (w.batch, *w.out_hw))]

        def lhs(o: Expr, piece: Expr, column: Expr, lane: Expr, texel: Expr, step: Expr) -> tirx.Expr:
            (k, n, *at), (*tap, i) = pixel(piece, texel, step), digits_of(column, w.filter)
            # Lanes that pad the last texel belong to no group and are not stored.
            own = te.min(o * LANES + lane, w.out_channels - 1)
            group = o // (outputs // LANES) if is_whole_texels else own // outputs
            i = i + (group * inputs if w.groups > 1 else 0)
            channel = (o, lane) if is_depthwise else (i // LANES, i % LANES)
            is_pixel = k < w.pixels_of_batch if is_padded else True
            return w.under_window(at, tap, lambda y, x: data[n, channel[0], y, x, channel[1]], only_if=is_pixel)

        def rhs(o: Expr, lane: Expr, texel: Expr, step: Expr, piece: Expr) -> tirx.Expr:
            _, n, y, x = pixel(piece, texel, step)
            return weight[n, o, y, x, lane]

        varies: Literal["never", "by texel", "by lane"] = (
            "never" if w.groups == 1 else "by texel" if is_whole_texels else "by lane"
        )
        return Contraction(
            inputs=[data, weight],
            extents=(w.out_texels, count, w.columns),
            reduce={"texel": share, "step": LANES},
            lhs=lhs,
            rhs=rhs,
            output=lambda o, i, *tap: (o // LANES, 0, number_of((*tap, i), w.filter), o % LANES),
            output_shape=w.output_shape,
            lhs_varies=varies,
            # In a depthwise convolution, the lanes of both factors are the same channels.
            vector=varies != "by lane" or is_depthwise,
            lhs_vector=False,
            is_batched=True,
        )

    def has_whole_texels(self, w: Conv2dBackwardFilter) -> bool:
        """Return False: output channels are far apart in memory."""
        return False

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: Conv2dBackwardFilter, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output nest over (o, h, w, lane), in a new schedule."""

        def output_index(o: tirx.Expr, _: tirx.Expr, column: tirx.Expr, lane: tirx.Expr) -> GuardedIndex:
            channel, (*tap, i) = o * LANES + lane, digits_of(column, w.filter)
            return [channel, i, *tap], [channel < w.out_channels]

        sums = TOTAL if config.get("algorithm") in PIECES else Stage.TILE if config["split_k"] == 1 else Stage.ACC
        name = str(sch.get(output).name_hint)
        sch = s_tir.Schedule(
            as_module(renest(sch.mod["main"], name, sums, (w.out_texels, 1, w.columns, LANES), output_index))
        )
        return sch, sch.get_loops(sch.get_sblock(name))

    def case(self, w: Conv2dBackwardFilter) -> Case:
        return Case(
            name=w.name,
            inputs=[(w.batch, w.in_channels, *w.in_hw), (w.batch, w.out_channels, *w.out_hw)],
            build=lambda x, gradient: in_relax(w, x, gradient),
            compute=partial(filter_gradient, w),
        )


def in_relax(w: Conv2d, x: relax.Expr, gradient: relax.Expr) -> relax.Expr:
    """Build the gradient of convolution `w` by its filter from Relax operators, as TVM writes it.

    TVM uses a convolution that sums over the batch. With a stride, its result has extra rows and columns for inputs
    that no window reaches.
    """
    inputs = w.in_channels // w.groups
    if w.groups > 1:
        # The groups move before the batch, which becomes the channels.
        apart = relax.op.reshape(x, (w.batch, w.groups, inputs, *w.in_hw))
        x = relax.op.reshape(relax.op.permute_dims(apart, [1, 0, 2, 3, 4]), (w.batch * w.groups, inputs, *w.in_hw))
    names = ("data_layout", "kernel_layout", "out_layout")
    exchanged = {**attributes(w), "strides": w.dilation, "dilation": w.stride}
    whole = relax.op.nn.conv2d(x, gradient, **exchanged, **dict(zip(names, _LAYOUTS, strict=True)))
    reached = tuple((a.extent + a.before + a.after - (a.out - 1) * a.stride - 1) // a.dilation + 1 for a in w.axes)
    if reached == w.kernel:
        return whole
    return relax.op.strided_slice(whole, list(range(4)), [0] * 4, [w.out_channels, inputs, *w.kernel])


def _ungrouped(data: relax.Expr, w: Conv2d, graph: Graph) -> relax.Expr | None:
    """Return the convolution's input before TVM's gradient of a grouped convolution moved groups before the batch."""
    if w.groups == 1:
        return data
    shape = (w.batch, w.in_channels, *w.in_hw)
    for name in ("relax.reshape", "relax.permute_dims", "relax.reshape"):
        call = graph.bound.get(data)
        if shape_of(data) == shape:
            return data
        if not isinstance(call, relax.Call) or op_name(call) != name:
            return None
        data = call.args[0]
    return data if shape_of(data) == shape else None


def _is_head(call: relax.Call) -> bool:
    """Return whether a slice takes the first elements of every axis, with no steps."""
    axes, begin, *others = (
        [int(getattr(v, "value", v)) for v in argument.fields] for argument in (*call.args[1:3], *call.args[4:])
    )
    return (
        axes == list(range(len(axes))) and not any(begin) and all(step == 1 for strides in others for step in strides)
    )


def training_passes(work: Conv2d) -> tuple[Conv2d, Conv2dTranspose, Conv2dBackwardFilter]:
    """Return a convolution and its gradients by input and by filter: the three passes of BEAST's table 2."""
    return work, backward_input(work), backward_filter(work)


FAMILY = Conv2dBackwardFilterFamily()
