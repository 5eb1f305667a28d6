"""What the kernels of a whole space use, by formulas over its knobs: a million configs are judged in well under a second.

The formulas follow `schedules/contraction.py`; `usage.py` reads the same numbers off one config's TIR, and a property test holds the two
together. Columns of knobs are NumPy arrays that broadcast: those of `Space.mesh` have an axis for each knob, so a formula over three knobs
costs the product of these three, and only the last "and" of the verdicts runs over all configs.

Bytes, sizes, local memory, widths and padding are equal to those of the TIR. Registers are a lower bound: what a kernel holds for addresses and
epilogue is known only when it is lowered, so the formula rejects nothing that the exact pass would keep.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.calls import op_name
from romou.errors import BuildError
from romou.inspection.estimates import RegisterUse, registers_ahead
from romou.pruning.evaluate import evaluate
from romou.pruning.form import Form
from romou.pruning.usage import KernelUsage
from romou.schedules.contraction import LANES, Limits, local_bytes
from romou.schedules.template import ContractionTemplate
from romou.space import Columns

# Criteria that look at registers: a formula keeps what the kernel itself may turn out to exceed.
BOUNDED = frozenset({"registers", "occupancy"})
# Pixels of an image lie this far apart from row to row and from layer to layer, so that columns outside of it fall on no other row.
_PITCH = 1 << 20


class ClosedForm(Form):
    """The formulas of one operator. Arrays in, arrays out."""

    def __init__(self, template: ContractionTemplate, limits: Limits) -> None:
        self._forms = {"flat": template.contraction(flat=True), "rows": template.contraction(flat=False)}
        self._element_bytes = template.element_bytes
        form = self._forms["flat"]
        self._varies = form.lhs_varies
        # In CUDA a lane of a copy is the scalar itself.
        self._may_copy = limits.has_vector_arithmetic and form.lhs_varies != "by lane"
        # An image of weights has a row for each step of the first axis; what lies between it and the channel is side by side in that row.
        self._has_taps_in_columns = len(form.inputs[1].shape) > 3 and template.weight_scope(limits) == "global.texture-weight"
        self._reduce = dict(form.reduce)
        # The first axis is a loop, or dealt out; the middle ones are the window; the last one is always unrolled.
        self._first, *middle, self._last = self._reduce.values()
        self._window = math.prod(middle)
        self._read = functools.cache(self._make_read)
        self._pixels = functools.cache(self._make_pixels)
        self._channels = functools.cache(self._make_channels)

    def usage(self, columns: Columns) -> KernelUsage:
        """The usage of the configs that the columns of knobs stand for."""
        get = columns.__getitem__
        pixels = columns.get("pixels", np.asarray("flat"))
        is_rows = pixels == "rows"
        o, h, w = (np.where(is_rows, *(self._forms[name].extents[axis] for name in ("rows", "flat"))) for axis in range(3))
        tile_o, tile_h, tile_w, split, local = (get(name) for name in ("tile_o", "tile_h", "tile_w", "split_k", "local"))
        pixels_of_one = tile_h * tile_w
        group_o, group_w = get("wg_o") * tile_o, get("wg_w") * tile_w
        size = get("wg_o") * get("wg_w") * split
        images = {name: get(name) == "image" for name in ("data", "weight", "output")}
        is_staged = local > 0
        has_window = is_staged | (get("unroll") == "window")
        taps = np.where(has_window, self._window, 1) * self._last
        # Steps of the first axis in one turn: one for each piece of the split, or those that are staged together.
        steps = np.where(is_staged, local, split)

        weights = self._weights(group_o, o, taps, steps, images["weight"])
        weights_of_one = tile_o * LANES * taps
        group_channels = np.where(np.asarray(self._varies != "never"), group_o, 1)
        share = np.where(is_staged, local, -split)
        data = tabulate(self._distinct, pixels, images["data"], has_window, tile_h, group_w, group_channels, share)
        data_of_one = tabulate(self._distinct, pixels, images["data"], has_window, tile_h, tile_w, np.minimum(group_channels, 1), -1)
        # Staged: the group's share is dealt out to the work-items, texel by texel.
        staged_texels = local * self._window * tile_h * group_w
        data_of_one = np.where(is_staged, -(-staged_texels // size) * self._lane_axis, data_of_one)
        weights_of_one = np.where(is_staged, -(-(local * self._window * self._last * group_o) // size) * LANES, weights_of_one)

        def by_place(of_data: Any, of_weights: Any) -> tuple[Any, Any]:
            in_images = of_data * images["data"] + of_weights * images["weight"]
            return (of_data + of_weights - in_images) * self._element_bytes, in_images * self._element_bytes

        buffer_bytes, image_bytes = by_place(data, weights)
        literal_buffer_bytes, literal_image_bytes = by_place(data_of_one * size, weights_of_one * size)
        registers = self._registers(columns, taps, is_staged)
        tiles = [-(-extent // tile) for extent, tile in zip((o, h, w), (group_o, tile_h, group_w), strict=True)]
        return KernelUsage(
            registers=registers.allocated,
            needed_registers=registers.needed,
            buffer_bytes=buffer_bytes,
            image_bytes=image_bytes,
            literal_buffer_bytes=literal_buffer_bytes,
            literal_image_bytes=literal_image_bytes,
            access_width=self._access_width(columns, is_staged),
            output_bytes=math.prod(self._forms["flat"].extents) * LANES * self._element_bytes,
            turns=self._first // np.where(is_staged, local, split) * np.where(has_window, 1, self._window),
            multiply_adds=pixels_of_one * tile_o * LANES * taps * np.where(is_staged, local, 1),
            local_loads=local * self._window * self._last * (pixels_of_one + tile_o * LANES) * np.where(get("accumulate") == "float16", 2, 4),
            work_group_size=size,
            work_groups=math.prod(tiles),
            local_memory_bytes=local_bytes(columns, self._reduce),
            is_staged=is_staged,
            images=images,
            has_copies=np.logical_not(get("autobroadcast")) & (get("vector_width") > 1) & np.asarray(self._may_copy),
            padding=math.prod(tiles) * group_o * tile_h * group_w / (o * h * w) - 1,
        )

    @property
    def _lane_axis(self) -> int:
        """Numbers that a texel of data holds: the lanes of a reduction axis, where there is one."""
        return 1 if self._varies == "by lane" else self._last

    def _access_width(self, columns: Columns, is_staged: Any) -> Any:
        if self._varies == "by lane":
            return columns["vector_width"]
        # The data is loaded a texel at a time, and so is what is staged.
        return np.minimum(self._last, np.where(is_staged, LANES, columns["vector_width"]))

    def _weights(self, group_o: Any, o: Any, taps: Any, steps: Any, is_image: Any) -> Any:
        """Distinct numbers of the weight; beyond the last channel buffers read the last one again, and images the row's next columns."""
        in_buffer = np.minimum(group_o, o) * taps
        in_image = group_o * taps - (np.maximum(group_o - o, 0) * (taps - 1) if self._has_taps_in_columns else 0)
        return np.where(is_image, in_image, in_buffer) * LANES * steps

    def _registers(self, columns: Columns, taps: Any, is_staged: Any) -> RegisterUse:
        """At least these: the sums, the tile of data, and the weights of one turn that a compiler loads ahead."""
        pixels = columns["tile_h"] * columns["tile_w"]
        # Of four numbers; with half arithmetic they lie two by two.
        vector = LANES - LANES // 2 * (columns["accumulate"] == "float16")
        sums = vector * columns["tile_o"] * pixels
        if self._varies == "by lane":
            return RegisterUse(sums, 0)
        data = vector * self._last // LANES * pixels * columns["tile_o"] ** (self._varies == "by texel")
        # Between two reads under a condition stand the weights of one tap; without conditions, those of all.
        is_guarded = (columns["data"] == "buffer") & any(self._read(name, False).condition is not None for name in self._forms)
        loads = np.where(is_staged, 0, columns["tile_o"] * np.where(is_guarded, self._last, taps))
        return RegisterUse(sums + data, registers_ahead(loads, vector, is_image=columns["weight"] == "image"))

    # Distinct numbers of the data in one turn of the first work group. An address is the sum of what the pixel and what the channel add to it.

    def _distinct(self, pixels: str, is_image: bool, has_window: bool, tile_h: int, width: int, group_o: int, steps: int) -> int:
        """Of the first work group, in the middle of the loops."""
        places = self._pixels(pixels, is_image, has_window, tile_h, width)
        if not len(places):
            return 0
        channels = self._channels(pixels, is_image, group_o, steps)
        reach = int(places[-1] - places[0])
        # Where all pixels are whole texels apart, lanes never meet.
        step = LANES if not np.any((places - places[0]) % LANES) else 1
        total = 0
        for lane in range(step):
            mine = channels[channels % step == lane]
            if len(mine) and (len(mine) == 1 or int(np.diff(mine).min()) > reach):
                total += len(places) * len(mine)
            elif len(mine):
                total += len(np.unique(places[:, None] + mine))
        return total * self._lane_axis

    def _make_pixels(self, pixels: str, is_image: bool, has_window: bool, tile_h: int, width: int) -> np.ndarray:
        read = self._read(pixels, is_image)
        h, w = (_as_read(np.arange(n), extent, is_image) for n, extent in ((tile_h, read.extents[1]), (width, read.extents[2])))
        first, *middle, last = self._reduce.values()
        taps = [np.arange(extent) if has_window else np.asarray([extent // 2]) for extent in middle]
        # Lanes of an input texel are neighbours: one stands for all.
        taps.append(np.arange(last if self._varies == "by lane" else 1))
        grid = np.ix_(h, w, *taps)
        at = (0, grid[0], grid[1], 0, first // 2, *grid[2:])
        shape = (len(h), len(w), *map(len, taps))
        places = np.broadcast_to(read.address(*at), shape)
        if read.condition is not None:
            places = places[np.broadcast_to(read.value(read.condition, *at), shape)]
        return np.unique(places)

    def _make_channels(self, pixels: str, is_image: bool, group_o: int, steps: int) -> np.ndarray:
        read = self._read(pixels, is_image)
        o = _as_read(np.arange(group_o), read.extents[0], is_image)
        lanes = np.arange(LANES if self._varies == "by lane" else 1)
        # Pieces of a split lie a share apart; what is staged together lies side by side.
        first = np.arange(steps) if steps > 0 else np.arange(-steps) * (self._first // -steps)
        grid = np.ix_(o, lanes, first)
        zeros = [0] * (len(self._reduce) - 1)
        return np.unique(read.address(grid[0], 0, 0, grid[1], grid[2], *zeros) - read.address(0, 0, 0, 0, 0, *zeros))

    def _make_read(self, pixels: str, is_image: bool) -> _Read:
        form = self._forms[pixels]
        variables = [tirx.Var(name, "int32") for name in ("o", "h", "w", "lane", *form.reduce)]
        expr = form.lhs(*variables)
        shape = [int(extent) for extent in form.inputs[0].shape]
        pitches = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if is_image:
            *_, channels, _, _, lanes = shape
            pitches = [channels * _PITCH * _PITCH * lanes, _PITCH * _PITCH * lanes, _PITCH * lanes, lanes, 1]
        is_guarded = getattr(getattr(expr, "op", None), "name", "") == "prim.if_then_else"
        return _Read(form.extents, variables, _read_indices(expr), pitches, expr.args[0] if is_guarded and not is_image else None)


@dataclass(frozen=True)
class _Read:
    """How the contraction reads its data: index expressions over (o, h, w, lane, reduction), what a step of each index adds to the address, and
    the condition under which it is inside of the padding; None where nothing is checked."""

    extents: tuple[int, int, int]
    variables: Sequence[tirx.Var]
    indices: Sequence[tirx.Expr]
    pitches: Sequence[int]
    condition: tirx.Expr | None

    def value(self, expr: tirx.Expr | None, *at: Any) -> Any:
        """An expression at values of the variables."""
        return evaluate(expr, dict(zip(self.variables, at, strict=True)))

    def address(self, *at: Any) -> Any:
        """In numbers from the data's start."""
        return sum(np.asarray(self.value(index, *at), dtype=np.int64) * pitch for index, pitch in zip(self.indices, self.pitches, strict=True))


def _read_indices(expr: tirx.Expr) -> list[tirx.Expr]:
    """Indices of the one read of a tensor in an expression of TVM's te."""
    found: list[tvm.ir.Call] = []
    structural_walk(expr, (tvm.ir.Call, lambda call: found.append(call) if op_name(call) == "te.tensor_load" else None))
    if len(found) != 1:
        raise BuildError(f"expected one read of the data, found {len(found)}")
    return list(found[0].args[1:])


def _as_read(position: np.ndarray, extent: int, is_image: bool) -> np.ndarray:
    """Positions as a template reads them: beyond the last one again the last one, but for images."""
    return position if is_image else np.minimum(position, extent - 1)


def tabulate(function: Callable[..., int], *columns: Any) -> np.ndarray:
    """`function` of each distinct combination of the columns' values, put where the combination stands."""
    values, key = [], np.asarray(0)
    for column in columns:
        distinct, codes = np.unique(np.asarray(column), return_inverse=True)
        values.append(distinct)
        key = key * len(distinct) + codes.reshape(np.shape(column))
    keys, places = np.unique(key, return_inverse=True)
    rows = np.unravel_index(keys, [len(v) for v in values])
    found = [function(*(v[c].item() for v, c in zip(values, combination, strict=True))) for combination in zip(*rows, strict=True)]
    return np.asarray(found, dtype=np.int64)[places].reshape(np.shape(key))


def columns_of(configs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Configs as columns of knobs, one row a config."""
    return {name: np.asarray([config[name] for config in configs]) for name in (configs[0] if configs else ())}
