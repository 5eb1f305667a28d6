"""Counts of the data that the first work group of a contraction reads in one iteration, from the index expressions.

An address is the sum of an offset of the pixel and an offset of the channel. The two are computed separately.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import tirx

from romou.base.errors import BuildError
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.tir.calls import is_conditional, op_name
from romou.compiler.tir.evaluate import count_distinct, evaluate
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.traversal import nodes_in

# Address difference between rows and between layers of an image, so that columns outside of it do not alias other rows.
PITCH = 1 << 20
# Rows are computed in multiples of this many pixels. Shorter rows are prefixes.
_STRETCH = 1024


class Pixels(NamedTuple):
    """Pixels of the first work group in one iteration: every `stride`-th of a row of `width`, in `tile_h` rows.

    order: order of the pixels, "flat" or "rows"
    tap: tap of the window. -1 is the middle tap, or all taps if `has_window`
    """

    order: str
    is_image: bool
    has_window: bool
    tap: int
    tile_h: int
    width: int
    stride: int


class Steps(NamedTuple):
    """Steps of the first reduction axis, of extent `first`, in the middle iteration.

    Pieces of a split are far apart. The `together` steps of one iteration are adjacent.

    ahead: number of iterations that loads are prefetched ahead, if these go tap by tap
    is_one: whether only the first work-item counts: one step of each group on tensor cores, else a single step
    """

    on_tensor_cores: bool
    first: int
    pieces: int
    together: int
    ahead: int
    is_one: bool


class DataReads:
    """Counts of reads of one operator.

    The first reduction axis is a loop or distributed. The middle axes are the window. The last one is always unrolled.

    forms: order of the pixels -> contraction
    """

    def __init__(self, forms: Mapping[str, Contraction]) -> None:
        self._forms = forms
        form = forms["flat"]
        self._reduce = dict(form.reduce)
        self.first, *middle, self.last = self._reduce.values()
        self.window = math.prod(middle)
        # The axes flattened as tensor cores read them.
        self._warp_forms = {name: tensor_core.flatten(form) for name, form in forms.items()}
        self.texels, *middle, _ = self._warp_forms["flat"].reduce.values()
        self.taps_of_texel = math.prod(middle)
        self._is_by_lane = form.lhs_varies == "by lane"
        # Whether taps may be outside of the data. An image gives zeros there.
        self.is_padded = form.is_padded
        # Numbers in a texel of data: lanes of a reduction axis, if there is one.
        self.texel = 1 if self._is_by_lane else form.texel or self.last
        self._read = functools.cache(self._make_read)
        self.distinct = functools.cache(self._distinct)
        self._stretch = functools.cache(self._make_stretch)
        self._addresses = functools.cache(self._make_addresses)
        self._reach = functools.cache(self._make_reach)
        self._channels = functools.cache(self._make_channels)

    def is_guarded(self, is_image: bool) -> bool:
        """Return whether reads of a buffer, or of an image, are guarded because of padding."""
        if is_image and self._forms["flat"].lhs_of_image is None:
            return False
        return any(self._read(order, is_image).condition is not None for order in self._forms)

    def lines(self, order: str, step: int, along_w: int, along_o: int, numbers: int) -> int:
        """Return the number of cache lines that neighbouring work-items touch by one load, in the middle iteration.

        numbers: count of numbers in one cache line
        """
        read = self._read(order, False)
        o, w = np.ix_(
            _as_read(np.arange(along_o), read.extents[0], False),
            _as_read(np.arange(along_w) * step, read.extents[2], False),
        )
        return count_distinct(read.address(o, 0, w, 0, *(extent // 2 for extent in self._reduce.values())) // numbers)

    def middle_tap(self, first: int, together: int, ahead: int) -> int:
        """Return the tap of the window that the middle iteration prefetches."""
        return self._middle(first, together, ahead)[1]

    def distinct_steps(self, steps: Steps) -> int:
        """Return the number of distinct steps of the weight. Past the end the last weights are read again."""
        return count_distinct(
            np.minimum(self._places_of(steps), self.texels - 1 if steps.on_tensor_cores else steps.first)
        )

    def _distinct(self, pixels: Pixels, steps: Steps, group_o: int) -> int:
        """Return the number of distinct elements of data that the first work group reads in the middle iteration."""
        if steps.on_tensor_cores and self._warp_forms[pixels.order] is not self._forms[pixels.order]:
            return self._distinct_taps(pixels, self._places_of(steps))
        count, reach, lanes = self._reach(pixels)
        if not count:
            return 0
        size, gap, parts = self._channels(pixels.order, pixels.is_image, group_o, steps, lanes)
        # Channels further apart than all pixels do not overlap. Tensor cores read whole texels, which differ for each
        # channel. The count below would take long for overlapping batches.
        if gap > reach or steps.on_tensor_cores:
            return count * size * self.texel
        addresses = self._addresses(_whole_stretches(pixels))[0][:count]
        return sum(count_distinct(addresses[:, None] + mine) for mine in parts) * self.texel

    def _distinct_taps(self, pixels: Pixels, steps: np.ndarray) -> int:
        """Return `_distinct` for a window in the first axis: the offset of a tap depends on the pixel."""
        read = self._read(pixels.order, False, True)
        grid = np.ix_(
            _as_read(np.arange(0, pixels.width, pixels.stride), read.extents[2], False), steps[steps < self.texels]
        )
        at = (0, 0, grid[0], 0, grid[1], 0)
        addresses = np.broadcast_to(read.address(*at), np.broadcast_shapes(*(axis.shape for axis in grid)))
        if read.condition is not None:
            addresses = addresses[np.broadcast_to(read.value(read.condition, *at), addresses.shape)]
        return count_distinct(addresses) * self.texel

    def _middle(self, first: int, together: int, ahead: int) -> tuple[int, int]:
        """Return texel and tap of the middle iteration. The taps are the inner loop."""
        return divmod((first // together * self.window - ahead) // 2 + ahead, self.window)

    def _places_of(self, steps: Steps) -> np.ndarray:
        if steps.ahead:
            return self._middle(steps.first, steps.together, steps.ahead)[0] * steps.together + np.arange(
                steps.together
            )
        share = steps.first // steps.pieces
        middle = share // steps.together // 2 * steps.together
        if steps.is_one:
            return middle + np.arange(0, steps.together, tensor_core.GROUP if steps.on_tensor_cores else steps.together)
        return (np.arange(steps.pieces)[:, None] * share + middle + np.arange(steps.together)).ravel()

    def _make_reach(self, pixels: Pixels) -> tuple[int, int, int]:
        """Return number and range of the pixels' addresses, and LANES if all are whole texels apart, else 1."""
        _, begins, lowest, highest, is_uneven = self._addresses(_whole_stretches(pixels))
        count = int(np.searchsorted(begins, -(-pixels.width // pixels.stride)))
        return (
            (count, int(highest[count - 1] - lowest[count - 1]), 1 if is_uneven[count - 1] else LANES)
            if count
            else (0, 0, 1)
        )

    def _make_addresses(self, pixels: Pixels) -> tuple[np.ndarray, ...]:
        """Return the distinct addresses without the channel's offset, and arrays that describe them.

        The addresses are in the order of the first pixels that read them. The second array has these pixels. The others
        have, for each prefix, the lowest address, the highest address, and whether some are not whole texels apart.
        """
        read_addresses, is_inside = (part[:: pixels.stride] for part in self._stretch(pixels._replace(stride=1)))
        addresses, which = np.unique(read_addresses[is_inside], return_index=True)
        begins = np.nonzero(is_inside)[0][which]
        order = np.argsort(begins, kind="stable")
        addresses = addresses[order]
        is_uneven = np.logical_or.accumulate((addresses - addresses[:1]) % LANES != 0)
        return addresses, begins[order], np.minimum.accumulate(addresses), np.maximum.accumulate(addresses), is_uneven

    def _make_stretch(self, pixels: Pixels) -> tuple[np.ndarray, np.ndarray]:
        """Return the addresses that each pixel of a row reads, and a mask that is false in the padding.

        The addresses have the shape (width, tile_h * taps).
        """
        read = self._read(pixels.order, pixels.is_image)
        h, w = (
            _as_read(np.arange(extent), read.extents[axis], pixels.is_image)
            for axis, extent in ((1, pixels.tile_h), (2, pixels.width))
        )
        first, *middle, last = self._reduce.values()
        if pixels.tap < 0:
            taps = [np.arange(extent) if pixels.has_window else np.asarray([extent // 2]) for extent in middle]
        else:
            taps = [np.asarray([tap]) for tap in np.unravel_index(pixels.tap, middle or [1])[: len(middle)]]
        # Lanes of a texel are adjacent, so one lane represents all.
        taps.append(np.arange(last if self._is_by_lane else 1))
        grid = np.ix_(w, h, *taps)
        at = (0, grid[1], grid[0], 0, first // 2, *grid[2:])
        shape = (len(w), len(h), *map(len, taps))
        is_inside = True if read.condition is None else read.value(read.condition, *at)
        addresses, inside = (
            np.broadcast_to(part, shape).reshape(len(w), -1) for part in (read.address(*at), is_inside)
        )
        return addresses, inside

    def _make_channels(
        self, order: str, is_image: bool, group_o: int, steps: Steps, lanes: int
    ) -> tuple[int, float, list[np.ndarray]]:
        """Return the number of the channels' offsets, their smallest gap, and the offsets of each remainder.

        The gap is between two offsets equal modulo `lanes`.
        """
        read = self._read(order, is_image)
        o = _as_read(np.arange(group_o), read.extents[0], is_image)
        lane = np.arange(LANES if self._is_by_lane else 1)
        places = self._places_of(steps)
        grid = np.ix_(o, lane, places[places < self.first])
        zeros = [0] * (len(self._reduce) - 1)
        offsets = np.unique(read.address(grid[0], 0, 0, grid[1], grid[2], *zeros) - read.address(0, 0, 0, 0, 0, *zeros))
        parts = [offsets[offsets % lanes == remainder] for remainder in range(lanes)]
        return len(offsets), min((int(np.diff(part).min()) for part in parts if len(part) > 1), default=math.inf), parts

    def _make_read(self, order: str, is_image: bool, on_tensor_cores: bool = False) -> _Read:
        form = (self._warp_forms if on_tensor_cores else self._forms)[order]
        variables = [tirx.Var(name, "int32") for name in ("o", "h", "w", "lane", *form.reduce)]
        expr = (form.lhs_of_image or form.lhs)(*variables) if is_image else form.lhs(*variables)
        shape = [int(extent) for extent in form.inputs[0].shape]
        pitches = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if is_image:
            *_, channels, _, _, lanes = shape
            pitches = [channels * PITCH * PITCH * lanes, PITCH * PITCH * lanes, PITCH * lanes, lanes, 1]
        is_guarded = is_conditional(expr) and (form.lhs_of_image is not None or not is_image)
        return _Read(form.extents, variables, _read_indices(expr), pitches, expr.args[0] if is_guarded else None)


@dataclass(frozen=True)
class _Read:
    """The read of the data in a contraction.

    indices: expressions over (o, h, w, lane, reduction)
    pitches: address difference of a step of each index
    condition: true for reads inside the padding. None if there is no check
    """

    extents: tuple[int, int, int]
    variables: Sequence[tirx.Var]
    indices: Sequence[tirx.Expr]
    pitches: Sequence[int]
    condition: tirx.Expr | None

    def value(self, expr: tirx.Expr | None, *at: Any) -> Any:
        return evaluate(expr, dict(zip(self.variables, at, strict=True)))

    def address(self, *at: Any) -> Any:
        """Return the address in numbers from the data's start."""
        return sum(
            np.asarray(self.value(index, *at), dtype=np.int64) * pitch
            for index, pitch in zip(self.indices, self.pitches, strict=True)
        )


def _read_indices(expr: tirx.Expr) -> list[tirx.Expr]:
    """Return the indices of the only tensor read in an expression."""
    reads = [call for call in nodes_in(expr, tvm.ir.Call) if op_name(call) == "te.tensor_load"]
    if len(reads) != 1:
        raise BuildError(f"expected one read of the data, found {len(reads)}")
    return list(reads[0].args[1:])


def _whole_stretches(pixels: Pixels) -> Pixels:
    return pixels._replace(width=-(-pixels.width // _STRETCH) * _STRETCH)


def _as_read(position: np.ndarray, extent: int, is_image: bool) -> np.ndarray:
    """Return positions as a template reads them: clamped to the last one, except for images."""
    return position if is_image else np.minimum(position, extent - 1)
