"""What the kernels of a whole space use, by formulas over its knobs: a million configs are judged in well under a second.

The formulas follow `schedules/contraction`; `usage.py` reads the same numbers off one config's TIR, and a property test holds the two
together. Columns of knobs are NumPy arrays that broadcast: those of `Space.mesh` have an axis for each knob, so a formula over three knobs
costs the product of these three, and only the last "and" of the verdicts runs over all configs.

Bytes, sizes, local memory, widths and padding are equal to those of the TIR. Registers are a lower bound: what a kernel holds for addresses and
epilogue is known only when it is lowered, so the formula rejects nothing that the exact pass would keep.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.analysis.evaluate import count_distinct, evaluate
from romou.analysis.registers import RegisterUse, address_registers
from romou.analysis.usage import SERVED, KernelUsage, bank_rounds
from romou.core.errors import BuildError
from romou.core.limits import Limits
from romou.core.space import Columns
from romou.pruning.form import Form, loads_of_one
from romou.schedules.algorithms import DIRECT
from romou.schedules.contraction import tensor_core
from romou.schedules.contraction.knobs import local_bytes, number_bytes
from romou.schedules.template import ContractionTemplate
from romou.tir.calls import op_name
from romou.tir.primitives import LANES

# Criteria that look at registers: a formula keeps what the kernel itself may turn out to exceed.
BOUNDED = frozenset({"registers", "occupancy"})
# Pixels of an image lie this far apart from row to row and from layer to layer, so that columns outside of it fall on no other row.
_PITCH = 1 << 20
# Pixels of a row come in stretches of so many, of which shorter ones are parts.
_STRETCH = 1024
# Knobs of the contraction inside of another algorithm that are what they are, whatever the operator's say.
_IN_WORKSPACES = {"data": "buffer", "output": "buffer", "pixels": "rows", "tile_h": 1, "unroll": "lanes", "multiply_add": "fma", "steps": 1}


class Place(NamedTuple):
    """Pixels of the first work group: those of one turn that count, each `stride` from the next in a row of `width`, in `tile_h` rows. `tap`: of the window,
    the one that counts, in order; -1: the one in the middle, or where there is a window (`has_window`) all of them."""

    pixels: str
    is_image: bool
    has_window: bool
    tap: int
    tile_h: int
    width: int
    stride: int


class Turn(NamedTuple):
    """Steps of the first axis of the reduction, of extent `first`, in a turn in the middle: pieces of a split lie a share apart, what is taken together
    lies side by side. `ahead`: turns that its loads run ahead, where these go tap by tap.   `is_one`: those of the first work-item, which takes one place of
    each group on tensor cores, and one alone without."""

    on_tensor_cores: bool
    first: int
    pieces: int
    together: int
    ahead: int
    is_one: bool


class ClosedForm(Form):
    """The formulas of one operator. Arrays in, arrays out."""

    def __init__(self, template: ContractionTemplate, limits: Limits, algorithm: str = DIRECT) -> None:
        # Those of the contractions that other algorithms have inside.
        self._others = {name: ClosedForm(template, limits, name) for name in template.algorithms if algorithm == DIRECT != name}
        self._is_direct = algorithm == DIRECT
        self._transforms = template.transform_bytes({"algorithm": algorithm}), template.transform_registers({"algorithm": algorithm})
        self._forms = {name: template.contraction(flat=name == "flat", algorithm=algorithm) for name in ("flat", "rows")}
        self._element_bytes = template.element_bytes
        form = self._forms["flat"]
        self._varies = form.lhs_varies
        self._rhs_vector = form.rhs_vector
        # Of the weight in memory; where its last texel is full, or filled up with zeros, all of the texels.
        self._columns = form.columns or form.extents[0] * LANES
        # In CUDA a lane of a copy is the scalar itself.
        self._may_copy = limits.has_vector_arithmetic and form.lhs_varies != "by lane"
        # An image of weights has a row for each step of the first axis; what lies between it and the channel is side by side in that row.
        self._has_taps_in_columns = len(form.inputs[1].shape) > 3 and template.weight_scope(limits, algorithm) == "global.texture-weight"
        self._reduce = dict(form.reduce)
        # The first axis is a loop, or dealt out; the middle ones are the window; the last one is always unrolled.
        self._first, *middle, self._last = self._reduce.values()
        self._window = math.prod(middle)
        # The axes as tensor cores take them.
        self._warp_forms = {name: tensor_core.flatten(form) for name, form in self._forms.items()}
        self._texels, *middle, _ = self._warp_forms["flat"].reduce.values()
        self._taps_of_texel = math.prod(middle)
        self._texel = form.texel or self._last
        self._read = functools.cache(self._make_read)
        self._numbers = functools.cache(self._distinct)
        self._stretch = functools.cache(self._make_stretch)
        self._pixels = functools.cache(self._make_pixels)
        self._reach = functools.cache(self._make_reach)
        self._channels = functools.cache(self._make_channels)

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        """As `Form.counts`: distinct steps and data of a group and of one work-item, and how often what is staged is read by turns."""
        names = self._algorithms_of(columns)
        found = {name: form._counts(columns) for name, form in names.items()}
        first, *others = found.values()
        for name, other in zip(list(names)[1:], others, strict=True):
            first = {key: np.where(columns["algorithm"] == name, other[key], count) for key, count in first.items()}
        return first

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        """As `Form.usage_with`."""
        (_, form), *others = self._algorithms_of(columns).items()
        usage = form._usage(columns, counts)
        for name, form in others:
            usage = _either(columns["algorithm"] == name, form._usage(columns, counts), usage)
        return usage

    def _algorithms_of(self, columns: Columns) -> dict[str, ClosedForm]:
        """The algorithms that the columns have, each with its formulas."""
        known = {DIRECT: self, **self._others}
        return {str(name): known[str(name)] for name in np.unique(columns["algorithm"])} if "algorithm" in columns else {DIRECT: self}

    def _counts(self, columns: Columns) -> dict[str, np.ndarray]:
        columns = self._inside(columns)
        get, phases = columns.__getitem__, self._phases(columns)
        turn = (phases.on_tensor_cores, phases.first, phases.pieces, phases.together)
        # Of every pair of pixels, tensor cores take one of each work-item.
        apart = np.where(phases.on_tensor_cores, tensor_core.PAIR, 1) * phases.turns_w
        channels: Any = 1 if self._varies == "never" else get("wg_o") * get("tile_o")
        tap = np.where(phases.ahead > 0, tabulate(self._tap, phases.first, phases.together, phases.ahead), -1) if np.any(phases.ahead) else -1
        place = (columns.get("pixels", "flat"), get("data") == "image", phases.has_window, tap, get("tile_h"))

        def distinct(width: Any, stride: Any, group_o: Any, is_one: bool) -> np.ndarray:
            found, where = combinations(*place, width, stride)
            places = [Place(*values) for values in found]
            found, when = combinations(*turn, phases.ahead, is_one)
            turns = [Turn(*values) for values in found]
            return tabulate(lambda i, k, o: self._numbers(places[i], turns[k], o), where, when, group_o)

        # Neighbours read texels side by side, or a tile apart.
        size, is_striped = number_bytes(columns), get("arrangement") == "striped"
        step_o, step_w = (np.where(is_striped, 1, get(tile)) for tile in ("tile_o", "tile_w"))
        along = self._last if self._rhs_vector == "reduction" else 1
        return {
            "steps": tabulate(lambda *values: self._distinct_steps(Turn(*values)), *turn, 0, False),
            "steps_of_one": tabulate(lambda *values: self._distinct_steps(Turn(*values)), *turn, 0, True),
            "data": distinct(get("wg_w") * get("tile_w"), 1, channels, False),
            "data_of_one": distinct(get("tile_w") * phases.turns_w, apart, 1, True),
            "rounds_of_data": tabulate(_rounds, True, get("wg_o"), get("wg_w"), step_w * self._lane_axis * size),
            "rounds_of_weights": tabulate(_rounds, False, get("wg_o"), get("wg_w"), step_o * LANES * along * size),
        }

    def _usage(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        images = {name: columns[name] == "image" for name in ("data", "weight", "output")}
        usage = self._contraction_usage(self._inside(columns), counts)
        return replace(usage, images=images)

    def _inside(self, columns: Columns) -> Columns:
        """The knobs of the contraction, which other algorithms have inside of transforms."""
        return columns if self._is_direct else {**columns, **_workspace_columns()}

    def _phases(self, columns: Columns) -> _Phases:
        get = columns.__getitem__
        is_staged, on_tensor_cores = get("local") > 0, tensor_core.fills_warps(columns)
        # Tensor cores stage tap by tap, some turns ahead.
        is_ahead = is_staged & on_tensor_cores
        # What a work-item has for itself lies side by side, or takes turns with what the others have.
        turns_w = np.where(get("arrangement") == "striped", get("wg_w"), np.where(on_tensor_cores, tensor_core.WARP_W, 1))
        return _Phases(
            is_staged=is_staged,
            on_tensor_cores=on_tensor_cores,
            is_ahead=is_ahead,
            ahead=np.where(is_ahead, columns.get("steps", 1), 0),
            has_window=(is_staged & np.logical_not(is_ahead)) | (get("unroll") == "window"),
            # Steps of the first axis in one turn: those that are staged together, or for each piece of the split one, or what tensor cores take together.
            first=np.where(on_tensor_cores, tensor_core.padded(self._texels, columns), self._first),
            pieces=np.where(is_staged, 1, get("split_k")),
            together=np.where(is_staged, get("local"), tensor_core.together(columns)),
            turns_w=turns_w,
        )

    def _contraction_usage(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        get, phases = columns.__getitem__, self._phases(columns)
        is_staged, on_tensor_cores, ahead, has_window = phases.is_staged, phases.on_tensor_cores, phases.ahead, phases.has_window
        pixels = columns.get("pixels", np.asarray("flat"))
        is_rows = pixels == "rows"
        o, h, w = (np.where(is_rows, *(self._forms[name].extents[axis] for name in ("rows", "flat"))) for axis in range(3))
        tile_o, tile_h, tile_w, split, local = (get(name) for name in ("tile_o", "tile_h", "tile_w", "split_k", "local"))
        pixels_of_one = tile_h * tile_w
        group_o, group_w = get("wg_o") * tile_o, get("wg_w") * tile_w
        size = get("wg_o") * get("wg_w") * split
        images = {name: get(name) == "image" for name in ("data", "weight", "output")}
        staged_window = np.where(phases.is_ahead, 1, self._window)
        window = np.where(on_tensor_cores, self._taps_of_texel, self._window)
        taps = np.where(has_window, window, 1) * self._last
        steps = phases.pieces * phases.together

        weights = self._weights(group_o, o, taps, counts["steps"], images["weight"])
        turns_o = np.where(get("arrangement") == "striped", get("wg_o"), 1)
        # Beyond the last channel it is read again.
        texels_of_one = np.minimum(tile_o, -(-o // turns_o) + ((o - 1) % turns_o > 0))
        has_last = (tile_o - 1) * turns_o >= o - 1
        channels_of_one = np.where(images["weight"], tile_o * LANES, texels_of_one * LANES - has_last * (o * LANES - self._columns))
        weights_of_one = channels_of_one * taps * counts["steps_of_one"]
        # Staged: the group's share is dealt out to the work-items, texel by texel.
        staged_texels = local * staged_window * tile_h * group_w
        data, data_of_one = counts["data"], np.where(is_staged, -(-staged_texels // size) * self._lane_axis, counts["data_of_one"])
        along, across = (self._last, LANES) if self._rhs_vector == "reduction" else (min(LANES, self._columns), self._last)
        weights_of_one = np.where(is_staged, -(-(local * staged_window * across * group_o) // size) * along, weights_of_one)

        def by_place(of_data: Any, of_weights: Any) -> tuple[Any, Any]:
            in_images = of_data * images["data"] + of_weights * images["weight"]
            return (of_data + of_weights - in_images) * self._element_bytes, in_images * self._element_bytes

        buffer_bytes, image_bytes = by_place(data, weights)
        literal_buffer_bytes, literal_image_bytes = by_place(data_of_one * size, weights_of_one * size)
        # The next turn's share, on its way to local memory.
        carried = (get("local_buffers") > 1) * (data_of_one + weights_of_one) * number_bytes(columns) // 4
        registers = self._registers(columns, taps, is_staged, carried)
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
            turns=phases.first // steps * np.where(has_window, 1, window) - ahead,
            multiply_adds=pixels_of_one * tile_o * LANES * taps * phases.together,
            local_loads=self._local_loads(columns, counts),
            work_group_size=size,
            work_groups=math.prod(tiles),
            local_memory_bytes=local_bytes(columns, self._forms["flat"]),
            is_staged=is_staged,
            images=images,
            has_copies=np.logical_not(get("autobroadcast")) & (get("vector_width") > 1) & np.asarray(self._may_copy),
            padding=math.prod(tiles) * group_o * tile_h * group_w / (o * h * w) - 1,
            on_tensor_cores=on_tensor_cores,
            turns_ahead=ahead,
            transform_bytes=self._transforms[0],
            transform_registers=self._transforms[1],
            is_prefetched=get("local_buffers") > 1,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """As `Form.loads`."""
        tile = columns["tile_o"] * columns["tile_h"] * columns["tile_w"]
        steps = usage.multiply_adds / (tile * LANES)
        # What is staged is dealt out to the work-items along the pixels, which read the same weights.
        weights = columns["tile_o"] * steps * LANES / usage.access_width / np.where(usage.is_staged, columns["wg_w"], 1)
        return tile, np.maximum(loads_of_one(usage) - weights, 0), weights, *self.lines(columns, warp_size, line_bytes)

    def lines(self, columns: Columns, warp_size: int, line_bytes: int) -> tuple[Any, Any]:
        """Cache lines that work-items in step touch by one load of the data, and by one of the weight.

        Neighbours of a warp lie along the row of pixels first, then along the channels, then along the split. What is staged is loaded in order.
        """
        found = self._lines(columns, warp_size, line_bytes)
        # Where halfs have tensor cores, an operator has no other algorithms for its knob.
        for name, form in self._others.items() if "algorithm" in columns else ():
            inside = form._lines({**columns, **_workspace_columns()}, warp_size, line_bytes)
            data, weight = (np.where(columns["algorithm"] == name, *pair) for pair in zip(inside, found, strict=True))
            found = data, weight
        return found

    def _lines(self, columns: Columns, warp_size: int, line_bytes: int) -> tuple[Any, Any]:
        get = columns.__getitem__
        along_w = np.minimum(get("wg_w"), warp_size)
        along_o = np.minimum(get("wg_o"), np.maximum(warp_size // along_w, 1))
        is_striped = get("arrangement") == "striped"
        step_w, step_o = np.where(is_striped, 1, get("tile_w")), np.where(is_striped, 1, get("tile_o"))
        pieces = np.minimum(get("split_k"), np.maximum(warp_size // (along_w * along_o), 1))
        texels = max(line_bytes // (LANES * self._element_bytes), 1)
        channels = np.where(np.asarray(self._varies != "never"), along_o, 1)
        data = tabulate(self._read_lines, columns.get("pixels", np.asarray("flat")), step_w, along_w, channels, np.asarray(texels * LANES))
        weight = np.where(step_o < texels, -(-along_o * step_o // texels), along_o)
        in_order = -(-np.minimum(get("wg_w") * get("wg_o"), warp_size) // texels)
        is_staged = get("local") > 0
        return np.where(is_staged, in_order, pieces * data), np.where(is_staged, in_order, pieces * weight)

    @property
    def _lane_axis(self) -> int:
        """Numbers that a texel of data holds: the lanes of a reduction axis, where there is one."""
        return 1 if self._varies == "by lane" else self._texel

    def _access_width(self, columns: Columns, is_staged: Any) -> Any:
        if self._varies == "by lane":
            return columns["vector_width"]
        if self._rhs_vector != "lanes":
            return np.asarray(self._last if self._rhs_vector == "reduction" else 1)
        # The data is loaded a texel at a time, and so is what is staged.
        return np.minimum(self._texel, np.where(is_staged, LANES, columns["vector_width"]))

    def _weights(self, group_o: Any, o: Any, taps: Any, steps: Any, is_image: Any) -> Any:
        """Distinct numbers of the weight; beyond the last channel buffers read the last one again, and images the row's next columns."""
        in_buffer = np.minimum(np.minimum(group_o, o) * LANES, self._columns) * taps
        in_image = group_o * taps - (np.maximum(group_o - o, 0) * (taps - 1) if self._has_taps_in_columns else 0)
        return np.where(is_image, in_image * LANES, in_buffer) * steps

    def _local_loads(self, columns: Columns, counts: Mapping[str, Any]) -> Any:
        """Bytes that a work-item reads of what is staged, in one turn, each as often as local memory is asked for it."""
        get = columns.__getitem__
        size = number_bytes(columns)
        of_data = counts["rounds_of_data"] * get("tile_h") * get("tile_w") * self._lane_axis
        by_itself = of_data + counts["rounds_of_weights"] * get("tile_o") * LANES * self._last
        # A warp shares what it reads: one pixel of each pair, and of four input texels one.
        shared = (get("tile_w") // tensor_core.PAIR + get("tile_o") * LANES) * LANES // tensor_core.GROUP
        on_tensor_cores = tensor_core.fills_warps(columns)
        numbers = get("local") * np.where(on_tensor_cores, shared, self._window * by_itself)
        return numbers * np.where(tensor_core.takes_halfs(columns) & on_tensor_cores, 2, size)

    def _registers(self, columns: Columns, taps: Any, is_staged: Any, carried: Any) -> RegisterUse:
        """At least these: the sums, the tile of data, what is `carried` to local memory, and the addresses of one turn's weights, which a compiler computes
        ahead."""
        pixels = columns["tile_h"] * columns["tile_w"]
        # Of four numbers; with half arithmetic they lie two by two.
        vector = LANES - LANES // 2 * (columns["accumulate"] == "float16")
        # What is summed up at one go is done pixel by pixel.
        sums = vector * columns["tile_o"] * pixels * (self._first * self._window > 1)
        on_tensor_cores = tensor_core.fills_warps(columns)
        if self._varies == "by lane":
            return RegisterUse(sums)
        data = vector * self._texel // LANES * pixels * columns["tile_o"] ** (self._varies == "by texel")
        # Between two reads under a condition stand the weights of one tap; without conditions, those of all.
        is_guarded = (columns["data"] == "buffer") & any(self._read(name, False).condition is not None for name in self._forms)
        loads = np.where(is_staged, 0, columns["tile_o"] * np.where(is_guarded, self._last, taps))
        ahead = data + address_registers(loads, is_image=columns["weight"] == "image")
        # Of halfs as they are, a texel is two registers: of the weights of a pair of output texels. Of floats it is four.
        weights = np.where(tensor_core.takes_halfs(columns), 2, 4) * np.minimum(columns["tile_o"], tensor_core.PAIR) * self._last
        return RegisterUse(sums + carried + np.where(on_tensor_cores, weights, ahead))

    # Distinct numbers of the data in one turn of the first work group. An address is the sum of what the pixel and what the channel add to it.

    def _distinct(self, place: Place, turn: Turn, group_o: int) -> int:
        """Of the first work group, in the middle of the loops."""
        if turn.on_tensor_cores and self._warp_forms[place.pixels] is not self._forms[place.pixels]:
            return self._distinct_taps(place, self._steps(turn))
        count, reach, lanes = self._reach(place)
        if not count:
            return 0
        size, gap, parts = self._channels(place.pixels, place.is_image, group_o, turn, lanes)
        # Pixels of channels that lie further apart than all of them never meet. Tensor cores take whole texels of other channels, which are other texels
        # wherever they lie: what is below takes long where batches overlap.
        if gap > reach or turn.on_tensor_cores:
            return count * size * self._lane_axis
        places = self._addresses(place)
        return sum(count_distinct(places[:, None] + mine) for mine in parts) * self._lane_axis

    def _read_lines(self, pixels: str, step: int, along_w: int, along_o: int, numbers: int) -> int:
        """Lines of so many numbers that the first pixels of work-items side by side lie in, in a buffer and in the middle of the loops."""
        read = self._read(pixels, False)
        o, w = np.ix_(_as_read(np.arange(along_o), read.extents[0], False), _as_read(np.arange(along_w) * step, read.extents[2], False))
        return count_distinct(read.address(o, 0, w, 0, *(extent // 2 for extent in self._reduce.values())) // numbers)

    def _tap(self, first: int, together: int, ahead: int) -> int:
        """Where loads are some turns ahead, the tap of the window that the middle one is for; see `_steps`."""
        return self._middle(first, together, ahead)[1]

    def _middle(self, first: int, together: int, ahead: int) -> tuple[int, int]:
        """Turns go through the taps of a window for some texels, then for the next ones."""
        return divmod((first // together * self._window - ahead) // 2 + ahead, self._window)

    def _steps(self, turn: Turn) -> np.ndarray:
        if turn.ahead:
            return self._middle(turn.first, turn.together, turn.ahead)[0] * turn.together + np.arange(turn.together)
        share = turn.first // turn.pieces
        middle = share // turn.together // 2 * turn.together
        if turn.is_one:
            return middle + np.arange(0, turn.together, tensor_core.GROUP if turn.on_tensor_cores else turn.together)
        return (np.arange(turn.pieces)[:, None] * share + middle + np.arange(turn.together)).ravel()

    def _distinct_steps(self, turn: Turn) -> int:
        """Beyond the end, weights of the last place are read again."""
        return count_distinct(np.minimum(self._steps(turn), self._texels - 1 if turn.on_tensor_cores else turn.first))

    def _distinct_taps(self, place: Place, steps: np.ndarray) -> int:
        """`_distinct` where the window is part of the first axis: what a tap adds to an address depends on the pixel."""
        read = self._read(place.pixels, False, True)
        grid = np.ix_(_as_read(np.arange(0, place.width, place.stride), read.extents[2], False), steps[steps < self._texels])
        at = (0, 0, grid[0], 0, grid[1], 0)
        places = np.broadcast_to(read.address(*at), np.broadcast_shapes(*(axis.shape for axis in grid)))
        if read.condition is not None:
            places = places[np.broadcast_to(read.value(read.condition, *at), places.shape)]
        return count_distinct(places) * self._lane_axis

    def _make_reach(self, place: Place) -> tuple[int, int, int]:
        """Of the addresses of the pixels how many there are, how far apart the outermost lie, and, where all are whole texels apart so that lanes never
        meet, the lanes; else 1."""
        _, begins, lowest, highest, is_uneven = self._pixels(_whole_stretches(place))
        count = int(np.searchsorted(begins, -(-place.width // place.stride)))
        return (count, int(highest[count - 1] - lowest[count - 1]), 1 if is_uneven[count - 1] else LANES) if count else (0, 0, 1)

    def _addresses(self, place: Place) -> np.ndarray:
        """Where the pixels are: what the channel adds is left out."""
        return self._pixels(_whole_stretches(place))[0][: self._reach(place)[0]]

    def _make_pixels(self, place: Place) -> tuple[np.ndarray, ...]:
        """Addresses in the order of the first pixels of a row that read them; these; and up to each address the lowest, the highest, and whether some are
        not whole texels apart."""
        found, is_inside = (part[:: place.stride] for part in self._stretch(place._replace(stride=1)))
        places, which = np.unique(found[is_inside], return_index=True)
        begins = np.nonzero(is_inside)[0][which]
        order = np.argsort(begins, kind="stable")
        places = places[order]
        is_uneven = np.logical_or.accumulate((places - places[:1]) % LANES != 0)
        return places, begins[order], np.minimum.accumulate(places), np.maximum.accumulate(places), is_uneven

    def _make_stretch(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """What each pixel of a row reads, in shape (width, tile_h * taps), and which of it is no padding."""
        read = self._read(place.pixels, place.is_image)
        h, w = (_as_read(np.arange(extent), read.extents[axis], place.is_image) for axis, extent in ((1, place.tile_h), (2, place.width)))
        first, *middle, last = self._reduce.values()
        if place.tap < 0:
            taps = [np.arange(extent) if place.has_window else np.asarray([extent // 2]) for extent in middle]
        else:
            taps = [np.asarray([tap]) for tap in np.unravel_index(place.tap, middle or [1])[: len(middle)]]
        # Lanes of an input texel are neighbours: one stands for all.
        taps.append(np.arange(last if self._varies == "by lane" else 1))
        grid = np.ix_(w, h, *taps)
        at = (0, grid[1], grid[0], 0, first // 2, *grid[2:])
        shape = (len(w), len(h), *map(len, taps))
        is_inside = True if read.condition is None else read.value(read.condition, *at)
        addresses, inside = (np.broadcast_to(part, shape).reshape(len(w), -1) for part in (read.address(*at), is_inside))
        return addresses, inside

    def _make_channels(self, pixels: str, is_image: bool, group_o: int, turn: Turn, lanes: int) -> tuple[int, float, list[np.ndarray]]:
        """What the channels add to addresses: how many numbers, the smallest distance between two of the same remainder on division by `lanes`, and those of
        each remainder."""
        read = self._read(pixels, is_image)
        o = _as_read(np.arange(group_o), read.extents[0], is_image)
        lane = np.arange(LANES if self._varies == "by lane" else 1)
        steps = self._steps(turn)
        grid = np.ix_(o, lane, steps[steps < self._first])
        zeros = [0] * (len(self._reduce) - 1)
        found = np.unique(read.address(grid[0], 0, 0, grid[1], grid[2], *zeros) - read.address(0, 0, 0, 0, 0, *zeros))
        parts = [found[found % lanes == remainder] for remainder in range(lanes)]
        return len(found), min((int(np.diff(part).min()) for part in parts if len(part) > 1), default=math.inf), parts

    def _make_read(self, pixels: str, is_image: bool, on_tensor_cores: bool = False) -> _Read:
        form = (self._warp_forms if on_tensor_cores else self._forms)[pixels]
        variables = [tirx.Var(name, "int32") for name in ("o", "h", "w", "lane", *form.reduce)]
        expr = form.lhs(*variables)
        shape = [int(extent) for extent in form.inputs[0].shape]
        pitches = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if is_image:
            *_, channels, _, _, lanes = shape
            pitches = [channels * _PITCH * _PITCH * lanes, _PITCH * _PITCH * lanes, _PITCH * lanes, lanes, 1]
        is_guarded = getattr(getattr(expr, "op", None), "name", "") == "prim.if_then_else"
        return _Read(form.extents, variables, _read_indices(expr), pitches, expr.args[0] if is_guarded and not is_image else None)


@dataclass(frozen=True, kw_only=True)
class _Phases:
    """How configs go through the reduction, as columns; see `Turn`. `turns_w`: pixels that lie between two of a work-item's."""

    is_staged: Any
    on_tensor_cores: Any
    is_ahead: Any
    ahead: Any
    has_window: Any
    first: Any
    pieces: Any
    together: Any
    turns_w: Any


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


def _either(condition: Any, one: KernelUsage, other: KernelUsage) -> KernelUsage:
    """Where `condition` holds the one, elsewhere the other; the images of both are the same."""
    names = (field.name for field in fields(KernelUsage) if field.name != "images")
    return KernelUsage(images=one.images, **{name: np.where(condition, getattr(one, name), getattr(other, name)) for name in names})


def _read_indices(expr: tirx.Expr) -> list[tirx.Expr]:
    """Indices of the one read of a tensor in an expression of TVM's te."""
    found: list[tvm.ir.Call] = []
    structural_walk(expr, (tvm.ir.Call, lambda call: found.append(call) if op_name(call) == "te.tensor_load" else None))
    if len(found) != 1:
        raise BuildError(f"expected one read of the data, found {len(found)}")
    return list(found[0].args[1:])


@functools.cache
def _rounds(is_data: bool, high: int, wide: int, step_bytes: int) -> int:
    """`bank_rounds` of the first work-items of a group of `high` rows of `wide`, which read data from pixel to pixel, weights from row to row."""
    items = np.arange(min(SERVED, high * wide))
    return bank_rounds((items % wide if is_data else items // wide) * step_bytes)


def _workspace_columns() -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in _IN_WORKSPACES.items()}


def _whole_stretches(place: Place) -> Place:
    return place._replace(width=-(-place.width // _STRETCH) * _STRETCH)


def _as_read(position: np.ndarray, extent: int, is_image: bool) -> np.ndarray:
    """Positions as a template reads them: beyond the last one again the last one, but for images."""
    return position if is_image else np.minimum(position, extent - 1)


def tabulate(function: Callable[..., int], *columns: Any) -> np.ndarray:
    """`function` of each distinct combination of the columns' values, put where the combination stands."""
    found, places = combinations(*columns)
    return np.asarray([function(*values) for values in found], dtype=np.int64)[places]


def combinations(*columns: Any) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """The distinct combinations of the columns' values, and which of them stands where."""
    values, key = [], np.asarray(0)
    for column in columns:
        distinct, codes = np.unique(np.asarray(column), return_inverse=True)
        values.append(distinct)
        key = key * len(distinct) + codes.reshape(np.shape(column))
    keys, places = np.unique(key, return_inverse=True)
    rows = np.unravel_index(keys, [len(v) for v in values])
    return list(zip(*(v[row].tolist() for v, row in zip(values, rows, strict=True)), strict=True)), places.reshape(np.shape(key))


def columns_of(configs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Configs as columns of knobs, one row a config."""
    return {name: np.asarray([config[name] for config in configs]) for name in (configs[0] if configs else ())}
