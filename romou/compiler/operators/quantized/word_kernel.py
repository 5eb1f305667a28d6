"""The kernel of a convolution of bytes, in vectors of 16 pixels.

A texel of four bytes is a word. One load reads the words of 16 pixels. Each of their bytes becomes a vector of floats,
which meets one number of the weight after the other:

    weight of the work-item's channels -> floats in local memory
    for each of its vectors of pixels:
        for each input texel and tap of the window:
            words of 16 pixels                                      one load
            for each of the four bytes:
                sums of a channel += float(byte of 16 pixels) * weight of the channel
        bytes of four output channels -> words of 16 pixels         one store

In a depthwise convolution each byte meets the weight of its own channel.

Vectors are cut out of the whole image if each pixel reads its own place, else out of rows. The last one begins
earlier, so that it is whole. The pixels that it shares with the vector before are summed up again, and not stored
again: the output may take the memory of an operand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.ir import TensorLoad

from romou.base.space import Config
from romou.compiler.operators.quantized.integer_matrix import byte_of
from romou.compiler.operators.workload import Conv2d
from romou.compiler.scheduling.blocks import axes_of, loads_of, substitute
from romou.compiler.scheduling.kernel_writer import KernelWriter
from romou.compiler.scheduling.statements import guarded, launch, loop
from romou.compiler.tir.primitives import LANES, MULTIPLY_ADD, broadcast_scalars
from romou.compiler.tir.traversal import nodes_in, rewriting
from romou.devices.backends.dialect import load_words, store_words

# Pixels of a vector.
PIXELS = 16
BYTE_TYPES = ("int8", "uint8")
# Strides along x. `load_words` takes words apart in halves.
STRIDES = (1, 2)
# Fewest pixels of a row that are worth a vector.
_LEAST_ROW = 4
# What makes the signed bytes of a word unsigned, and how much more they are then.
_FLIP, _MOVED = 0x80808080, 128


def is_flat(work: Conv2d) -> bool:
    """Return whether each pixel of the output reads the pixel of the data at its own place, and no other."""
    return (*work.kernel, *work.stride) == (1, 1, 1, 1) and not any(work.padding)


def has_vectors(work: Conv2d) -> bool:
    """Return whether vectors of pixels have enough pixels, and the kernel multiplies such channels."""
    is_depthwise = work.groups == work.in_channels == work.out_channels
    is_long = math.prod(work.out_hw) >= PIXELS if is_flat(work) else work.out_hw[1] >= _LEAST_ROW
    return is_long and (work.groups == 1 or is_depthwise) and work.stride[1] in STRIDES


def is_of_words(work: Conv2d, epilogue: s_tir.SBlock, product: tirx.Buffer) -> bool:
    """Return whether an epilogue reads only bytes at its place, of one tensor, or what is the same for all pixels.

    product: the sums, which it reads, too.
    """
    _n, _o, y, x, _lane = axes = list(axes_of(epilogue))
    value, output = epilogue.body.value, epilogue.body.buffer
    reads = [load for load in loads_of(value) if any(_has(index, var) for index in load.indices for var in (y, x))]
    operands = [load for load in reads if not load.source.same_as(product)]

    def is_usable(load: TensorLoad) -> bool:
        has_shape = [int(extent) for extent in load.source.shape] == [int(extent) for extent in output.shape]
        is_in_place = all(a.same_as(b) for a, b in zip(load.indices, axes, strict=False))
        is_same = load.source.same_as(operands[0].source)
        return has_shape and is_in_place and is_same and str(load.source.dtype) in BYTE_TYPES

    rest = rewriting((TensorLoad, lambda load, _mutator: tirx.const(0, load.ty)))(value)
    is_plain = not any(_has(rest, var) for var in (y, x))
    is_stored = str(output.dtype) in BYTE_TYPES or (is_flat(work) and str(output.dtype) in ("int32", "float32"))
    return is_plain and is_stored and all(map(is_usable, operands))


def staged_floats(weight: tirx.Buffer, texels: int) -> int:
    """Return the numbers of a weight that a work-item of `texels` output texels keeps in local memory."""
    return math.prod(int(extent) for extent in weight.shape[:-2]) * LANES * texels


def _has(expr: tirx.Expr, var: tirx.Var) -> bool:
    return any(var.same_as(other) for other in nodes_in(expr, tirx.Var))


class WordKernel(KernelWriter):
    """The writer of one config's kernel.

    func: the function with its epilogue in one block.
    factors: data and weight. product: the buffer of the sums.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        work: Conv2d,
        factors: Sequence[tirx.Buffer],
        product: tirx.Buffer,
        epilogue: s_tir.SBlock,
        config: Config,
    ) -> None:
        self.func, self.work, self.product, self.epilogue = func, work, product, epilogue
        self.data, self.weight = factors
        self.texels, self.vectors = int(config["tile_o"]), int(config["tile_w"])
        self._multiply_add = str(config["multiply_add"])
        self.channels, self.is_depthwise = LANES * self.texels, work.groups > 1
        # Steps of a sum in the order of the weight: texels, taps, and bytes. A depthwise one has only taps.
        self.in_texels, self.in_lanes = (1, 1) if self.is_depthwise else (int(self.weight.shape[i]) for i in (0, 3))
        # A row of pixels: the whole image, or one of its rows.
        self.rows, self.row = (1, math.prod(work.out_hw)) if is_flat(work) else work.out_hw
        self.row_vectors = -(-self.row // PIXELS)
        self.image_groups = -(-self.rows * self.row_vectors // self.vectors)
        self.group, self.channel_group, self.item, self.vector, self.ic, self.ky, self.step = (
            tirx.Var(name, "int32") for name in ("group", "channel_group", "item", "vector", "ic", "ky", "step")
        )
        super().__init__()
        self.staged = self._buffer("staged", staged_floats(self.weight, self.texels), "float32", scope="shared")
        self.words, self.stored = (self._buffer(name, PIXELS, "uint32") for name in ("words", "stored"))
        self.numbers = self._buffer("numbers", PIXELS, "float32")
        self.sums = [self._buffer(f"sums_{channel}", PIXELS, "float32") for channel in range(self.channels)]

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        threads = {
            "blockIdx.y": (self.channel_group, self.work.out_texels // self.texels),
            "blockIdx.x": (self.group, self.work.batch * self.image_groups),
            "threadIdx.x": (self.item, 1),
        }
        count = self.rows * self.row_vectors
        inside = self._vector_of_image < count if count % self.vectors else None
        vectors = loop(self.vector, self.vectors, guarded(inside, self._vector_of_pixels()))
        return launch(self.func, threads, tirx.SeqStmt([self._stage_weight(), vectors]), self.buffers)["main"]

    # Sums

    def _stage_weight(self) -> tirx.Stmt:
        """Make floats of the weight of the work-item's channels, in the order of the weight."""
        steps = staged_floats(self.weight, 1) // LANES
        rows = [int(extent) for extent in self.weight.shape[:-2]]

        def put(lane: tirx.Expr, texel: int) -> tirx.Stmt:
            index = [self.step // math.prod(rows[axis + 1 :]) % rows[axis] for axis in range(len(rows))]
            stored = self._at(self.weight, *index, self._texel(texel), lane)
            return self._put(
                self.staged, self.step * self.channels + texel * LANES + lane, self.work.weight_number(stored)
            )

        texels = [self._in_lanes(functools.partial(put, texel=texel)) for texel in range(self.texels)]
        return loop(self.step, steps, tirx.SeqStmt(texels) if len(texels) > 1 else texels[0])

    def _vector_of_pixels(self) -> tirx.Stmt:
        """Sum up and store 16 pixels."""
        zero = tirx.const(0.0, "float32")
        zeros = [self._lanes(functools.partial(self._put, sums, value=zero)) for sums in self.sums]
        (kh, kw), (top, _left, bottom, _right) = self.work.kernel, self.work.padding
        taps: tirx.Stmt = tirx.SeqStmt([stmt for kx in range(kw) for stmt in self._add_tap(kx)])
        if top or bottom:
            taps = guarded(tirx.And(self._in_y >= 0, self._in_y < self.work.in_hw[0]), taps)
        sums = broadcast_scalars(loop(self.ic, self.in_texels, loop(self.ky, kh, taps)))
        if self._multiply_add != "plain":
            sums = tirx.AttrStmt(tirx.const(0, "int32"), MULTIPLY_ADD, ir.StringImm(self._multiply_add), sums)
        outputs = [stmt for texel in range(self.texels) for stmt in self._store_texel(texel)]
        return tirx.SeqStmt([*zeros, sums, *outputs])

    def _add_tap(self, kx: int) -> list[tirx.Stmt]:
        """Add the products of one input texel at one tap."""
        statements = []
        # The texels of a depthwise convolution are channels of the output.
        for texel in range(self.texels if self.is_depthwise else 1):
            statements += self._load_tap(kx, self._texel(texel) if self.is_depthwise else self.ic)
            for lane in range(LANES if self.is_depthwise else self.in_lanes):
                own = texel * LANES + lane
                statements += self._add_byte(kx, lane, [own] if self.is_depthwise else range(self.channels))
        return statements

    def _load_tap(self, kx: int, texel: tirx.Expr) -> list[tirx.Stmt]:
        """Load the words of the pixels under a tap. In the padding they are the zero point."""
        (_, stride), (_, dilation), (_, left, _, _) = self.work.stride, self.work.dilation, self.work.padding
        (_, width), is_signed = self.work.in_hw, str(self.data.dtype) == "int8"
        offset = kx * dilation - left
        first = self._x * stride + offset
        pixel = first if is_flat(self.work) else self._in_y * width + first
        statements = [self._load_words(self.data, texel, pixel, stride)]
        zero = tirx.const((self.work.data_zero & 255) * 0x01010101, "uint32")

        def number(at: tirx.Expr) -> tirx.Stmt:
            value, x = self._at(self.words, at), first + at * stride
            # The last vector of a row shorter than it has pixels beyond the row, which are not stored.
            if offset < 0:
                value = tirx.Select(x >= 0, value, zero)
            if (self.work.out_hw[1] - 1) * stride + offset >= width:
                value = tirx.Select(x < width, value, zero)
            return self._put(self.words, at, value ^ tirx.const(_FLIP, "uint32") if is_signed else value)

        is_padded = offset < 0 or (self.work.out_hw[1] - 1) * stride + offset >= width
        return [*statements, self._lanes(number)] if is_signed or (is_padded and not is_flat(self.work)) else statements

    def _add_byte(self, kx: int, lane: int, channels: Sequence[int]) -> list[tirx.Stmt]:
        """Add the products of one byte of all words with the weights of channels."""
        zero = self.work.data_zero + (_MOVED if str(self.data.dtype) == "int8" else 0)
        step = ((self.ic * self.work.kernel[0] + self.ky) * self.work.kernel[1] + kx) * self.in_lanes
        step = step if self.is_depthwise else step + lane

        def convert(at: tirx.Expr) -> tirx.Stmt:
            value = byte_of(self._at(self.words, at), lane, is_signed=False).astype("float32")
            return self._put(self.numbers, at, value - tirx.const(float(zero), "float32") if zero else value)

        def add(at: tirx.Expr, channel: int) -> tirx.Stmt:
            weight, sums = self._at(self.staged, step * self.channels + channel), self.sums[channel]
            return self._put(sums, at, self._at(sums, at) + self._at(self.numbers, at) * weight)

        return [self._lanes(convert), *(self._lanes(functools.partial(add, channel=channel)) for channel in channels)]

    # Results

    def _store_texel(self, texel: int) -> list[tirx.Stmt]:
        """Store four output channels."""
        output, pixel = self.epilogue.body.buffer, self._y * self.row + self._x
        operands = [load.source for load in loads_of(self.epilogue.body.value) if self._is_of_words(load)]
        reads = [self._load_words(source, self._texel(texel), pixel, 1) for source in operands[:1]]
        if str(output.dtype) not in BYTE_TYPES:

            def put_number(at: tirx.Expr, lane: int) -> tirx.Stmt:
                index = [self._image, self._texel(texel), tirx.const(0, "int32"), pixel + at, tirx.const(lane, "int32")]
                return tirx.BufferStore(output, self._value(texel, lane, at), index)

            return [*reads, *(self._lanes(functools.partial(put_number, lane=lane)) for lane in range(LANES))]

        def put(at: tirx.Expr, lane: int) -> tirx.Stmt:
            value = self._value(texel, lane, at).astype("int32").astype("uint32") & tirx.const(255, "uint32")
            shifted = value << tirx.const(8 * lane, "uint32") if lane else value
            return self._put(self.stored, at, self._at(self.stored, at) | shifted if lane else shifted)

        lanes = [self._lanes(functools.partial(put, lane=lane)) for lane in range(LANES)]
        return [*reads, *lanes, self._store_words(output, self._texel(texel), pixel)]

    def _store_words(self, output: tirx.Buffer, texel: tirx.Expr, pixel: tirx.Expr) -> tirx.Stmt:
        """Store the words of a vector, or of its pixels that no vector before has."""
        first, at = self._first_byte(output), self._word(output, texel, pixel)
        whole = store_words(tirx.BufferLoad(self.stored, [tirx.Ramp(0, 1, PIXELS)]), first, at)
        rest = self.row % PIXELS
        if not rest:
            return whole
        own = range(rest) if self.row < PIXELS else range(PIXELS - rest, PIXELS)
        parts = [store_words(self._at(self.stored, lane), first, at + lane) for lane in own]
        part = tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]
        is_whole = self._vector_of_row < self.row_vectors - 1
        return part if self.row < PIXELS else tirx.IfThenElse(is_whole, whole, part)

    def _value(self, texel: int, lane: int, at: tirx.Expr) -> tirx.Expr:
        """Return an element of the output."""

        def load(access: TensorLoad, _mutator: Any) -> tirx.Expr:
            if access.source.same_as(self.product):
                return self._at(self.sums[texel * LANES + lane], at)
            if not self._is_of_words(access):
                return access
            dtype = str(access.source.dtype)
            return byte_of(self._at(self.words, at), lane, is_signed=dtype == "int8").astype(dtype)

        # Nothing but the sums and words differs between pixels.
        none = tirx.const(0, "int32")
        place = [self._image, self._texel(texel), none, none, tirx.const(lane, "int32")]
        value = rewriting((TensorLoad, load))(self.epilogue.body.value)
        return substitute(value, dict(zip(axes_of(self.epilogue), place, strict=True)))

    def _is_of_words(self, load: TensorLoad) -> bool:
        """Return whether the epilogue loads bytes that differ between pixels."""
        return not load.source.same_as(self.product) and _has(load.indices[-2], list(axes_of(self.epilogue))[-2])

    # Places

    @property
    def _vector_of_image(self) -> tirx.Expr:
        group = self.group % self.image_groups if self.work.batch > 1 else self.group
        return group * self.vectors + self.vector

    @property
    def _vector_of_row(self) -> tirx.Expr:
        return self._vector_of_image % self.row_vectors if self.rows > 1 else self._vector_of_image

    @property
    def _y(self) -> tirx.Expr:
        return self._vector_of_image // self.row_vectors if self.rows > 1 else tirx.const(0, "int32")

    @property
    def _x(self) -> tirx.Expr:
        """The first pixel of the vector in its row."""
        first = self._vector_of_row * PIXELS
        return tirx.min(first, tirx.const(max(self.row - PIXELS, 0), "int32")) if self.row % PIXELS else first

    @property
    def _in_y(self) -> tirx.Expr:
        return self._y * self.work.stride[0] + self.ky * self.work.dilation[0] - self.work.padding[0]

    @property
    def _image(self) -> tirx.Expr:
        return self.group // self.image_groups if self.work.batch > 1 else tirx.const(0, "int32")

    def _texel(self, number: int) -> tirx.Expr:
        return self.channel_group * self.texels + number

    def _word(self, buffer: tirx.Buffer, texel: tirx.Expr, pixel: tirx.Expr) -> tirx.Expr:
        """Return the place of a texel of data or output."""
        _, texels, height, width, _ = (int(extent) for extent in buffer.shape)
        return (self._image * texels + texel) * (height * width) + pixel

    def _first_byte(self, buffer: tirx.Buffer) -> tirx.Expr:
        return self._at(buffer, *[0] * len(buffer.shape))

    # Statements

    def _load_words(self, source: tirx.Buffer, texel: tirx.Expr, pixel: tirx.Expr, stride: int) -> tirx.Stmt:
        count = math.prod(int(extent) for extent in source.shape[:-1])
        value = load_words(self._first_byte(source), self._word(source, texel, pixel), count, PIXELS, stride)
        return tirx.BufferStore(self.words, value, [tirx.Ramp(0, 1, PIXELS)])

    def _lanes(self, stmt: Callable[[tirx.Var], tirx.Stmt]) -> tirx.Stmt:
        return self._in_lanes(stmt, PIXELS)
