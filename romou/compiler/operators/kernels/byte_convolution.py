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

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.ir import TensorLoad

from romou.base.space import Config
from romou.compiler.operators.kernels.quantized.integer_matrix import byte_of
from romou.compiler.operators.workload import Conv2d
from romou.compiler.scheduling.blocks import axes_of, loads_of
from romou.compiler.scheduling.kernel_builder import KernelBuilder
from romou.compiler.tir.primitives import LANES, MULTIPLY_ADD, broadcast_scalars
from romou.compiler.tir.traversal import has_var, rewriting, substitute
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
    reads = [load for load in loads_of(value) if any(has_var(index, var) for index in load.indices for var in (y, x))]
    operands = [load for load in reads if not load.source.same_as(product)]

    def is_usable(load: TensorLoad) -> bool:
        has_shape = [int(extent) for extent in load.source.shape] == [int(extent) for extent in output.shape]
        is_in_place = all(a.same_as(b) for a, b in zip(load.indices, axes, strict=False))
        is_same = load.source.same_as(operands[0].source)
        return has_shape and is_in_place and is_same and str(load.source.dtype) in BYTE_TYPES

    rest = rewriting((TensorLoad, lambda load, _mutator: tirx.const(0, load.ty)))(value)
    is_plain = not any(has_var(rest, var) for var in (y, x))
    is_stored = str(output.dtype) in BYTE_TYPES or (is_flat(work) and str(output.dtype) in ("int32", "float32"))
    return is_plain and is_stored and all(map(is_usable, operands))


def staged_floats(weight: tirx.Buffer, texels: int) -> int:
    """Return the numbers of a weight that a work-item of `texels` output texels keeps in local memory."""
    return math.prod(int(extent) for extent in weight.shape[:-2]) * LANES * texels


class WordKernel(KernelBuilder):
    """The kernel of one config.

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
        super().__init__()
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
        self.channel_group = self.axis("blockIdx.y", "channel_group", work.out_texels // self.texels)
        self.group = self.axis("blockIdx.x", "group", work.batch * self.image_groups)
        self.axis("threadIdx.x", "item", 1)
        # Iterations whose bodies are written.
        self.vector = self.ic = self.ky = self.constant(0)
        steps = staged_floats(self.weight, 1) // LANES
        self.staged = self.array("staged", steps, self.channels, scope="shared")
        self.words, self.stored = (self.array(name, PIXELS, dtype="uint32") for name in ("words", "stored"))
        self.floats = self.array("numbers", PIXELS)
        self.sums = [self.array(f"sums_{channel}", PIXELS) for channel in range(self.channels)]

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        self._stage_weight()
        count = self.rows * self.row_vectors
        with (
            self.loop("vector", self.vectors) as self.vector,
            self.when(self._vector_of_image < count if count % self.vectors else None),
        ):
            for sums in self.sums:
                sums.fill(0.0)
            self._sum_up()
            for texel in range(self.texels):
                self._store_texel(texel)
        return self.launched(self.func)

    # Sums

    def _stage_weight(self) -> None:
        """Make floats of the weight of the work-item's channels, in the order of the weight."""
        rows = [int(extent) for extent in self.weight.shape[:-2]]
        with self.loop("step", self.staged.shape[0]) as step:
            index = [step // math.prod(rows[axis + 1 :]) % rows[axis] for axis in range(len(rows))]
            for texel in range(self.texels):
                with self.lanes() as lane:
                    stored = self.read(self.weight, *index, self._texel(texel), lane)
                    self.staged[step, texel * LANES + lane] = self.work.weight_number(stored)

    def _sum_up(self) -> None:
        """Add the products of 16 pixels."""
        (kh, kw), (top, _left, bottom, _right) = self.work.kernel, self.work.padding
        multiply_add = None if self._multiply_add == "plain" else ir.StringImm(self._multiply_add)
        with (
            self.mark(MULTIPLY_ADD, multiply_add),
            self.inside(broadcast_scalars),
            self.loop("ic", self.in_texels) as self.ic,
            self.loop("ky", kh) as self.ky,
            self.when(*([self._in_y >= 0, self._in_y < self.work.in_hw[0]] if top or bottom else [])),
        ):
            for kx in range(kw):
                self._add_tap(kx)

    def _add_tap(self, kx: int) -> None:
        """Add the products of one input texel at one tap."""
        if not self.is_depthwise:
            self._load_tap(kx, self.ic)
            for lane in range(self.in_lanes):
                self._add_byte(kx, lane, range(self.channels))
            return
        # The texels of a depthwise convolution are channels of the output.
        for texel in range(self.texels):
            self._load_tap(kx, self._texel(texel))
            for lane in range(LANES):
                self._add_byte(kx, lane, [texel * LANES + lane])

    def _load_tap(self, kx: int, texel: tirx.Expr) -> None:
        """Load the words of the pixels under a tap. In the padding they are the zero point."""
        (_, stride), (_, dilation), (_, left, _, _) = self.work.stride, self.work.dilation, self.work.padding
        (_, width), is_signed = self.work.in_hw, str(self.data.dtype) == "int8"
        offset = kx * dilation - left
        first = self._x * stride + offset
        pixel = first if is_flat(self.work) else self._in_y * width + first
        self._load_words(self.data, texel, pixel, stride)
        # The last vector of a row shorter than it has pixels beyond the row, which are not stored.
        is_before, is_beyond = offset < 0, (self.work.out_hw[1] - 1) * stride + offset >= width
        if not is_signed and (is_flat(self.work) or not (is_before or is_beyond)):
            return
        zero = tirx.const((self.work.data_zero & 255) * 0x01010101, "uint32")
        with self.lanes(PIXELS) as at:
            value, x = self.words[at], first + at * stride
            if is_before:
                value = tirx.Select(x >= 0, value, zero)
            if is_beyond:
                value = tirx.Select(x < width, value, zero)
            self.words[at] = value ^ tirx.const(_FLIP, "uint32") if is_signed else value

    def _add_byte(self, kx: int, lane: int, channels: Sequence[int]) -> None:
        """Add the products of one byte of all words with the weights of channels."""
        zero = self.work.data_zero + (_MOVED if str(self.data.dtype) == "int8" else 0)
        step = ((self.ic * self.work.kernel[0] + self.ky) * self.work.kernel[1] + kx) * self.in_lanes
        step = step if self.is_depthwise else step + lane
        with self.lanes(PIXELS) as at:
            value = byte_of(self.words[at], lane, is_signed=False).astype("float32")
            self.floats[at] = value - tirx.const(float(zero), "float32") if zero else value
        for channel in channels:
            with self.lanes(PIXELS) as at:
                self.sums[channel][at] += self.floats[at] * self.staged[step, channel]

    # Results

    def _store_texel(self, texel: int) -> None:
        """Store four output channels."""
        output, pixel = self.epilogue.body.buffer, self._y * self.row + self._x
        operands = [load.source for load in loads_of(self.epilogue.body.value) if self._is_of_words(load)]
        if operands:
            self._load_words(operands[0], self._texel(texel), pixel, 1)
        for lane in range(LANES):
            with self.lanes(PIXELS) as at:
                value = self._value(texel, lane, at)
                if str(output.dtype) in BYTE_TYPES:
                    byte = value.astype("int32").astype("uint32") & tirx.const(255, "uint32")
                    self.stored[at] = self.stored[at] | byte << tirx.const(8 * lane, "uint32") if lane else byte
                else:
                    self.write(output, [self._image, self._texel(texel), 0, pixel + at, lane], value)
        if str(output.dtype) in BYTE_TYPES:
            self._store_words(output, self._texel(texel), pixel)

    def _store_words(self, output: tirx.Buffer, texel: tirx.Expr, pixel: tirx.Expr) -> None:
        """Store the words of a vector, or of its pixels that no vector before has."""
        first, at = self._first_byte(output), self._word(output, texel, pixel)
        whole = store_words(self.stored[:], first, at)
        rest = self.row % PIXELS
        if not rest:
            self.emit(whole)
            return
        own = range(rest) if self.row < PIXELS else range(PIXELS - rest, PIXELS)
        if self.row > PIXELS:
            with self.when(self._vector_of_row < self.row_vectors - 1):
                self.emit(whole)
        with self.otherwise() if self.row > PIXELS else self.when():
            for lane in own:
                self.emit(store_words(self.stored[lane], first, at + lane))

    def _value(self, texel: int, lane: int, at: tirx.Expr) -> tirx.Expr:
        """Return an element of the output."""

        def load(access: TensorLoad, _mutator: Any) -> tirx.Expr:
            if access.source.same_as(self.product):
                return self.sums[texel * LANES + lane][at]
            if not self._is_of_words(access):
                return access
            dtype = str(access.source.dtype)
            return byte_of(self.words[at], lane, is_signed=dtype == "int8").astype(dtype)

        # Nothing but the sums and words differs between pixels.
        none = tirx.const(0, "int32")
        place = [self._image, self._texel(texel), none, none, tirx.const(lane, "int32")]
        value = rewriting((TensorLoad, load))(self.epilogue.body.value)
        return substitute(value, dict(zip(axes_of(self.epilogue), place, strict=True)))

    def _is_of_words(self, load: TensorLoad) -> bool:
        """Return whether the epilogue loads bytes that differ between pixels."""
        return not load.source.same_as(self.product) and has_var(load.indices[-2], list(axes_of(self.epilogue))[-2])

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
        return self.read(buffer, *[0] * len(buffer.shape))

    def _load_words(self, source: tirx.Buffer, texel: tirx.Expr, pixel: tirx.Expr, stride: int) -> None:
        count = math.prod(int(extent) for extent in source.shape[:-1])
        self.words[:] = load_words(self._first_byte(source), self._word(source, texel, pixel), count, PIXELS, stride)
