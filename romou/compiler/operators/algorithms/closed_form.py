"""The form of contractions: formulas over knobs for the kernels of a whole space, a million configs in under a second.

The formulas follow `compiler/operators/contraction`. The tests compare them with counts from one config's TIR
(`tests/support/kernels/kernel_usage.py`). Columns of knobs are NumPy arrays that broadcast: columns from `Space.blocks`
have an axis for each knob. A formula over three knobs then costs the product of these three, and only the last "and" of
the verdicts runs over all configs.

Bytes, sizes, local memory, widths and padding are equal to the TIR's. Registers are a lower bound: the registers for
addresses and epilogue are only known after lowering. So the formula rejects nothing that the exact pass would keep.
Depthwise windows that read a buffer are the exception: in 4 of 100 random configs the formula is above the lowered
kernel's number, by up to 2.8 times. It counts all rows of the window, which phones' compilers load ahead although the
kernel's text may keep the loop: with the kernel's own count, the estimate ranks recorded depthwise kernels worse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.algorithms.algorithm import DIRECT, Algorithm, DirectAlgorithm
from romou.compiler.operators.analysis.form import Form, combinations, loads_of_one, tabulate
from romou.compiler.operators.analysis.registers import (
    RegisterEstimate,
    address_registers,
    is_kept_on_mali,
    is_unrolled,
)
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.data_reads import DataReads, Pixels, Steps
from romou.compiler.operators.contraction.knobs import FP32, MIXED, local_bytes, number_bytes
from romou.compiler.tir.primitives import LANES, MemoryKind

# Banks of a GPU's local memory that serve work-items at the same time, and bytes of a bank's vector.
SERVED, _VECTOR_BYTES = 8, 16
_REGISTER_BYTES, _FP16_BYTES = 4, 2
# Share of a depthwise window's data that a compiler holds before it is summed up, at least. Fitted to lowered kernels.
_LOADED_AHEAD = 0.4
# Fixed knobs of the contraction inside another algorithm.
_INSIDE = {
    "data": "buffer",
    "output": "buffer",
    "pixels": "rows",
    "wg_h": 1,
    "tile_h": 1,
    "unroll": "lanes",
    "multiply_add": "fma",
    "steps": 1,
}
_IN_WORKSPACES = {name: np.asarray(value) for name, value in _INSIDE.items()}


class ClosedForm(Form):
    """The formulas of one operator that sums products.

    algorithms: choice of the knob `algorithm` -> algorithm.
    number_bytes: bytes of a number of "data", "weight" and "output" in memory.
    """

    def __init__(
        self,
        algorithms: Mapping[str, Algorithm],
        limits: Limits,
        number_bytes: Mapping[str, int],
        algorithm: str = DIRECT,
    ) -> None:
        # Formulas of the contractions inside other algorithms.
        self._others = {
            name: ClosedForm(algorithms, limits, number_bytes, name)
            for name, other in algorithms.items()
            if algorithm == DIRECT and not isinstance(other, DirectAlgorithm)
        }
        self._is_direct, own = algorithm == DIRECT, algorithms[algorithm]
        self._transforms = own.transform_bytes, own.transform_registers
        self._forms = {name: own.contraction(flat=name == "flat") for name in ("flat", "rows")}
        self._element_bytes = number_bytes["output"]
        # Other algorithms transform the operands, in floats.
        self._data_bytes, self._weight_bytes = (
            number_bytes[role if self._is_direct else "output"] for role in ("data", "weight")
        )
        form = self._forms["flat"]
        self._varies = form.lhs_varies
        self._rhs_vector = form.rhs_vector
        self._has_lhs_vectors = form.lhs_vector
        # Columns of the weight in memory. These are all lanes if the last texel is full or padded with zeros.
        self._columns = form.columns or form.extents[0] * LANES
        # In CUDA a scalar needs no copy into lanes.
        self._may_copy = limits.has_vector_arithmetic and form.lhs_varies != "by lane"
        self._reads = DataReads(self._forms)

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return distinct steps and data of a group and of one work-item, and bank conflict rounds of staged data."""
        names = self._algorithms_of(columns)
        by_algorithm = {name: form._counts(columns) for name, form in names.items()}
        first, *others = by_algorithm.values()
        for name, other in zip(list(names)[1:], others, strict=True):
            first = {key: np.where(columns["algorithm"] == name, other[key], count) for key, count in first.items()}
        return first

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        (_, form), *others = self._algorithms_of(columns).items()
        usage = form._usage(columns, counts)
        for name, form in others:
            usage = _either(columns["algorithm"] == name, form._usage(columns, counts), usage)
        return usage

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        tile = columns["tile_o"] * columns["tile_h"] * columns["tile_w"]
        steps = usage.multiply_adds / (tile * LANES)
        # Staged weights are distributed over the work-items along the pixels, which read the same weights.
        weights = columns["tile_o"] * steps * LANES / usage.access_width / np.where(usage.is_staged, columns["wg_w"], 1)
        return tile, np.maximum(loads_of_one(usage) - weights, 0), weights, *self.lines(columns, warp_size, line_bytes)

    def lines(self, columns: Columns, warp_size: int, line_bytes: int) -> tuple[Any, Any]:
        """Return the cache lines that a warp touches by one load of the data, and by one of the weight.

        Neighbours of a warp are ordered by pixels, then channels, then pieces of the split. Staged loads are coalesced.
        """
        lines = self._lines(columns, warp_size, line_bytes)
        # With tensor cores for fp16, an operator has no other algorithms.
        for name, form in self._others.items() if "algorithm" in columns else ():
            inside = form._lines({**columns, **_IN_WORKSPACES}, warp_size, line_bytes)
            data, weight = (np.where(columns["algorithm"] == name, *pair) for pair in zip(inside, lines, strict=True))
            lines = data, weight
        return lines

    def _algorithms_of(self, columns: Columns) -> dict[str, ClosedForm]:
        """Return algorithm -> formulas, for the algorithms in the columns. Direct ones share the first formulas."""
        names = {str(name) for name in np.unique(columns["algorithm"])} if "algorithm" in columns else {DIRECT}
        others = {name: form for name, form in self._others.items() if name in names}
        return others if names == set(others) else {DIRECT: self, **others}

    def _inside(self, columns: Columns) -> Columns:
        """Return the knobs of the contraction, which other algorithms run between transforms."""
        return columns if self._is_direct else {**columns, **_IN_WORKSPACES}

    def _counts(self, columns: Columns) -> dict[str, np.ndarray]:
        columns = self._inside(columns)
        reads, get, phases = self._reads, columns.__getitem__, self._phases(columns)
        axis = (phases.on_tensor_cores, phases.first, phases.pieces, phases.together)
        # Tensor cores read one pixel of each pair for a work-item.
        apart = np.where(phases.on_tensor_cores, tensor_core.PAIR, 1) * phases.spacing_w
        channels: Any = 1 if self._varies == "never" else get("wg_o") * get("tile_o")
        tap = (
            np.where(phases.ahead > 0, tabulate(reads.middle_tap, phases.first, phases.together, phases.ahead), -1)
            if np.any(phases.ahead)
            else -1
        )
        gives_zeros = (get("data") == MemoryKind.IMAGE) & reads.is_padded
        row = (columns.get("pixels", "flat"), gives_zeros, phases.has_window, tap)
        tile_h = get("tile_h")

        def distinct(rows: Any, width: Any, stride: Any, group_o: Any, is_one: bool) -> np.ndarray:
            pixel_values, where = combinations(*row, rows, width, stride)
            pixels = [Pixels(*values) for values in pixel_values]
            step_values, when = combinations(*axis, phases.ahead, is_one)
            steps = [Steps(*values) for values in step_values]
            return tabulate(lambda i, k, o: reads.distinct(pixels[i], steps[k], o), where, when, group_o)

        # Texels of neighbours are adjacent, or a tile apart.
        size, is_striped = number_bytes(columns), get("arrangement") == "striped"
        step_o, step_w = (np.where(is_striped, 1, get(tile)) for tile in ("tile_o", "tile_w"))
        along = reads.last if self._rhs_vector == "reduction" else 1
        return {
            "steps": tabulate(lambda *values: reads.distinct_steps(Steps(*values)), *axis, 0, False),
            "steps_of_one": tabulate(lambda *values: reads.distinct_steps(Steps(*values)), *axis, 0, True),
            "data": distinct(_rows(columns) * tile_h, get("wg_w") * get("tile_w"), 1, channels, False),
            "data_of_one": distinct(tile_h, get("tile_w") * phases.spacing_w, apart, 1, True),
            "rounds_of_data": tabulate(_rounds, True, get("wg_o"), get("wg_w"), step_w * reads.texel * size),
            "rounds_of_weights": tabulate(_rounds, False, get("wg_o"), get("wg_w"), step_o * LANES * along * size),
        }

    def _usage(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        images = {name: columns[name] == MemoryKind.IMAGE for name in ("data", "weight", "output")}
        return replace(self._contraction_usage(self._inside(columns), counts), images=images)

    def _phases(self, columns: Columns) -> _Phases:
        get, reads = columns.__getitem__, self._reads
        is_staged, on_tensor_cores = get("local") > 0, tensor_core.fills_warps(columns)
        # Tensor cores stage tap by tap, prefetched by some iterations.
        is_ahead = is_staged & on_tensor_cores
        return _Phases(
            is_staged=is_staged,
            on_tensor_cores=on_tensor_cores,
            is_ahead=is_ahead,
            ahead=np.where(is_ahead, columns.get("steps", 1), 0),
            has_window=(is_staged & np.logical_not(is_ahead)) | (get("unroll") == "window"),
            first=np.where(on_tensor_cores, tensor_core.padded(reads.texels, columns), reads.first),
            pieces=np.where(is_staged, 1, get("split_k")),
            together=np.where(is_staged, get("local"), tensor_core.together(columns)),
            spacing_w=np.where(
                get("arrangement") == "striped", get("wg_w"), np.where(on_tensor_cores, tensor_core.WARP_W, 1)
            ),
        )

    def _contraction_usage(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        get, phases, reads = columns.__getitem__, self._phases(columns), self._reads
        extents = o, h, w = self._extents(columns)
        group = group_o, group_h, group_w = (
            get("wg_o") * get("tile_o"),
            _rows(columns) * get("tile_h"),
            get("wg_w") * get("tile_w"),
        )
        size = get("wg_o") * _rows(columns) * get("wg_w") * get("split_k")
        window = np.where(phases.on_tensor_cores, reads.taps_of_texel, reads.window)
        taps = np.where(phases.has_window, window, 1) * reads.last
        loads = self._loads_of(columns, counts, phases, taps, size)
        is_prefetched = get("local_buffers") > 1
        # The next iteration's share, on its way to local memory.
        carried = is_prefetched * self._carried_bytes(columns, loads) // _REGISTER_BYTES
        work_groups = math.prod(-(-extent // tile) for extent, tile in zip(extents, group, strict=True))
        iterations = phases.first // (phases.pieces * phases.together) * np.where(phases.has_window, 1, window)
        of_own_taps = self._forms["flat"].of_own_taps
        multiply_adds = (
            get("tile_h") * get("tile_w") * LANES * phases.together * of_own_taps(columns, get("tile_o") * taps)
        )
        # Texels of the weight and of the data.
        texels = (get("tile_o") + get("tile_h") * get("tile_w") / reads.last) * taps * phases.together
        accesses = np.where(phases.is_staged | np.asarray(self._varies == "by lane"), 0, texels)
        is_carried = is_kept_on_mali(
            iterations, multiply_adds // LANES, accesses, is_fused=get("multiply_add") == "fma"
        )
        registers = self._registers(columns, taps, phases, carried, counts["data_of_one"] // LANES, is_carried)
        return KernelUsage(
            registers=registers.live,
            needed_registers=registers.needed,
            registers_as_written=registers.as_written,
            access_width=self._access_width(columns, phases.is_staged),
            output_bytes=math.prod(self._forms["flat"].extents) * LANES * self._element_bytes,
            iterations=iterations - phases.ahead,
            multiply_adds=multiply_adds,
            local_loads=self._local_loads(columns, counts),
            work_group_size=size,
            work_groups=work_groups,
            local_memory_bytes=local_bytes(columns, self._forms["flat"]),
            is_staged=phases.is_staged,
            images={name: get(name) == MemoryKind.IMAGE for name in ("data", "weight", "output")},
            has_copies=np.logical_not(get("autobroadcast")) & (get("vector_width") > 1) & np.asarray(self._may_copy),
            padding=work_groups * group_o * group_h * group_w / (o * h * w) - 1,
            on_tensor_cores=phases.on_tensor_cores,
            matrix_instructions=tensor_core.instructions(columns),
            multiplies_fp16=columns["accumulate"] != FP32,
            iterations_ahead=phases.ahead,
            element_bytes=self._element_bytes,
            transform_bytes=self._transforms[0],
            transform_registers=self._transforms[1],
            is_prefetched=is_prefetched,
            is_data_shared=self._varies != "by lane",
            **self._traffic(columns, loads, size),
        )

    def _carried_bytes(self, columns: Columns, loads: _IterationLoads) -> Any:
        """Return the bytes of registers on the way to local memory, at least (`passes/double_buffers.py`)."""
        operands = {
            "data": (loads.data_of_one, self._data_bytes),
            "weight": (loads.weights_of_one, self._weight_bytes),
        }
        of_arithmetic = number_bytes(columns)
        return sum(
            numbers * np.where((columns[name] == MemoryKind.BUFFER) & (size == _FP16_BYTES), size, of_arithmetic)
            for name, (numbers, size) in operands.items()
        )

    def _extents(self, columns: Columns) -> tuple[Any, ...]:
        """Return the extents (o, h, w) of the output in texels and pixels."""
        return tuple(self._of_forms(columns, lambda form, axis=axis: form.extents[axis]) for axis in range(3))

    def _of_forms(self, columns: Columns, value: Callable[..., Any]) -> Any:
        """Return a value of each config's contraction, which has pixels in rows or flat."""
        is_rows = columns.get("pixels", np.asarray("flat")) == "rows"
        return np.where(is_rows, value(self._forms["rows"]), value(self._forms["flat"]))

    def _loads_of(
        self, columns: Columns, counts: Mapping[str, Any], phases: _Phases, taps: Any, size: Any
    ) -> _IterationLoads:
        get, reads, o = columns.__getitem__, self._reads, self._extents(columns)[0]
        tile_o, group_o, group_w = get("tile_o"), get("wg_o") * get("tile_o"), get("wg_w") * get("tile_w")
        weights = np.minimum(np.minimum(group_o, o) * LANES, self._columns) * taps * counts["steps"]
        spacing_o = np.where(get("arrangement") == "striped", get("wg_o"), 1)
        # Past the last channel, that channel is read again.
        texels_of_one = np.minimum(tile_o, -(-o // spacing_o) + ((o - 1) % spacing_o > 0))
        has_last = (tile_o - 1) * spacing_o >= o - 1
        channels_of_one = texels_of_one * LANES - has_last * (o * LANES - self._columns)
        weights_of_one = channels_of_one * taps * counts["steps_of_one"]
        # Staged: the group's share is distributed over the work-items texel by texel.
        steps = get("local") * np.where(phases.is_ahead, 1, reads.window)
        pair = self._of_forms(columns, lambda form: tensor_core.pair_of_pixels(columns, form))
        staged = -(-(steps * get("tile_h") * group_w) // (size * pair)) * pair
        if self._forms["flat"].lhs_neighbours == "reduction":
            # Rows of a matrix are copied along memory. Past the last row of a buffer, that row is read again.
            w, apart = self._extents(columns)[2], np.maximum(size // np.maximum(steps, 1), 1)
            rows = -(-w // apart) + ((w - 1) % apart > 0)
            staged = np.where(phases.is_ahead, np.minimum(staged, rows * np.maximum(steps // size, 1)), staged)
        staged_data = staged * reads.texel
        is_reduction = self._rhs_vector == "reduction"
        along, across = (reads.last, LANES) if is_reduction else (min(LANES, self._columns), reads.last)
        pair = tensor_core.pair_of_weights(columns, self._forms["flat"].extents[0])
        staged_weights = -(-(steps * across * group_o) // (size * pair)) * pair * along
        weights, weights_of_one = (
            self._forms["flat"].of_own_taps(columns, count) for count in (weights, weights_of_one)
        )
        return _IterationLoads(
            data=counts["data"],
            weights=weights,
            data_of_one=np.where(phases.is_staged, staged_data, counts["data_of_one"]),
            weights_of_one=np.where(phases.is_staged, staged_weights, weights_of_one),
        )

    def _traffic(self, columns: Columns, loads: _IterationLoads, size: Any) -> dict[str, Any]:
        """Return the bytes that one iteration loads from buffers and from images, as fields of `KernelUsage`."""
        fields_of = {
            "": (loads.data, loads.weights),
            "unshared_": (loads.data_of_one * size, loads.weights_of_one * size),
            "reread_": (loads.data * (self._reads.window > 1), 0),
        }
        traffic: dict[str, Any] = {}
        for prefix, (data, weights) in fields_of.items():
            of_data, of_weights = data * self._data_bytes, weights * self._weight_bytes
            in_images = of_data * (columns["data"] == MemoryKind.IMAGE)
            in_images = in_images + of_weights * (columns["weight"] == MemoryKind.IMAGE)
            traffic[f"{prefix}buffer_bytes"] = of_data + of_weights - in_images
            traffic[f"{prefix}image_bytes"] = in_images
        return traffic

    def _lines(self, columns: Columns, warp_size: int, line_bytes: int) -> tuple[Any, Any]:
        get = columns.__getitem__
        along_w = np.minimum(get("wg_w"), warp_size)
        along_o = np.minimum(get("wg_o"), np.maximum(warp_size // along_w, 1))
        is_striped = get("arrangement") == "striped"
        step_w, step_o = np.where(is_striped, 1, get("tile_w")), np.where(is_striped, 1, get("tile_o"))
        pieces = np.minimum(get("split_k"), np.maximum(warp_size // (along_w * along_o), 1))
        texels = max(line_bytes // (LANES * self._element_bytes), 1)
        channels = np.where(np.asarray(self._varies != "never"), along_o, 1)
        data = tabulate(
            self._reads.lines,
            columns.get("pixels", np.asarray("flat")),
            step_w,
            along_w,
            channels,
            np.asarray(texels * LANES),
        )
        weight = np.where(step_o < texels, -(-along_o * step_o // texels), along_o)
        rows = np.minimum(_rows(columns), np.maximum(warp_size // (along_w * along_o), 1))
        in_order = -(-np.minimum(get("wg_w") * get("wg_o"), warp_size) // texels)
        is_staged = get("local") > 0
        return np.where(is_staged, in_order, pieces * rows * data), np.where(is_staged, in_order, pieces * weight)

    def _access_width(self, columns: Columns, is_staged: Any) -> Any:
        if self._varies == "by lane":
            return columns["vector_width"]
        if self._rhs_vector != "lanes":
            return np.asarray(self._reads.last if self._rhs_vector == "reduction" else 1)
        if not self._has_lhs_vectors:
            return np.asarray(1)
        # Data and staged weights are loaded by texels.
        return np.minimum(self._reads.texel, np.where(is_staged, LANES, columns["vector_width"]))

    def _local_loads(self, columns: Columns, counts: Mapping[str, Any]) -> Any:
        """Return the bytes that a work-item reads from local memory in one iteration, bank conflicts included."""
        get = columns.__getitem__
        size = number_bytes(columns)
        of_data = counts["rounds_of_data"] * get("tile_h") * get("tile_w") * self._reads.texel
        by_itself = of_data + counts["rounds_of_weights"] * get("tile_o") * LANES * self._reads.last
        # A warp shares its reads: one pixel of each pair, and one of four input texels.
        shared = (get("tile_w") // tensor_core.PAIR + get("tile_o") * LANES) * LANES // tensor_core.GROUP
        on_tensor_cores = tensor_core.fills_warps(columns)
        numbers = get("local") * np.where(on_tensor_cores, shared, self._reads.window * by_itself)
        return numbers * np.where(tensor_core.takes_fp16(columns) & on_tensor_cores, 2, size)

    def _registers(
        self, columns: Columns, taps: Any, phases: _Phases, carried: Any, texels_of_one: Any, is_carried: Any
    ) -> RegisterEstimate:
        """Return a lower bound of the registers of a work-item.

        It counts the sums, the tile of data, the registers `carried` to local memory, and the addresses of one
        iteration's weights, which a compiler computes ahead.

        is_carried: whether a loop that Mesa's compiler for Mali keeps carries the sums
        """
        reads, pixels = self._reads, columns["tile_h"] * columns["tile_w"]
        # Registers of four numbers. fp16 arithmetic packs two into one.
        vector = LANES - LANES // 2 * (columns["accumulate"] != FP32)
        # A reduction without a loop is done pixel by pixel.
        vectors = columns["tile_o"] * pixels * (reads.first * reads.window > 1)
        in_fp32 = LANES * (columns["accumulate"] == MIXED)
        sums = (vector + in_fp32) * vectors
        is_guarded = np.where(columns["data"] == MemoryKind.BUFFER, reads.is_guarded(False), reads.is_guarded(True))
        # Mesa's compilers for Mali split an fp16 vector that a loop carries. A block of mixed sums may be unrolled.
        written_sums = np.where(is_carried & (in_fp32 == 0), LANES * vectors, sums)
        if self._varies == "by lane":
            return self._window_registers(columns, sums, phases, is_guarded, texels_of_one, written_sums)
        data = vector * reads.texel // LANES * pixels * columns["tile_o"] ** (self._varies == "by texel")
        # Guarded reads separate the weights of the taps. Without guards, the weights of all taps are loaded ahead.
        of_all_taps = self._forms["flat"].of_own_taps(columns, columns["tile_o"] * taps)
        loads = np.where(phases.is_staged, 0, np.where(is_guarded, columns["tile_o"] * reads.last, of_all_taps))
        ahead = data + address_registers(loads, is_image=columns["weight"] == MemoryKind.IMAGE)
        # A texel of weights takes two registers in fp16, four in fp32.
        weights = (
            np.where(tensor_core.takes_fp16(columns), 2, 4)
            * np.minimum(columns["tile_o"], tensor_core.PAIR)
            * reads.last
        )
        # The whole tile of data, then the first texel of weights.
        as_written = written_sums + np.where(tensor_core.fills_warps(columns), 0, data + vector)
        return RegisterEstimate(
            sums + carried + np.where(tensor_core.fills_warps(columns), weights, ahead), as_written=as_written
        )

    def _window_registers(
        self, columns: Columns, sums: Any, phases: _Phases, is_guarded: Any, texels_of_one: Any, written_sums: Any
    ) -> RegisterEstimate:
        """Return a lower bound of the registers of a work-item that sums up depthwise windows.

        Each pixel has its own data, which is loaded ahead with its addresses. Guards keep the loads apart. With an
        operand in a buffer it is no bound (see this file's first lines).

        texels_of_one: texels of the data of a pixel tile in one iteration, which sums up a row of the window
        """
        get, rows, taps = columns.__getitem__, self._reads.first * self._reads.window, self._reads.last
        # Each lane may be a load of the data and one of the weight.
        lanes = LANES * taps * get("tile_o") * get("tile_h") * get("tile_w")
        has_all_rows = is_unrolled(rows, lanes, 2 * lanes / get("vector_width")) & np.logical_not(phases.has_window)
        # Pixels that are apart share no data, so theirs is held for a shorter time.
        row = np.minimum(texels_of_one, get("tile_h") * ((get("tile_w") - 1) * self._forms["flat"].stride + taps))
        texels = get("tile_o") * row * np.where(has_all_rows, 1 + (rows - 1) / get("tile_h"), 1)
        texel = LANES * self._element_bytes / _REGISTER_BYTES
        ahead = _LOADED_AHEAD * texel * texels + address_registers(texels, is_image=get("data") == MemoryKind.IMAGE)
        return RegisterEstimate(sums + np.where(is_guarded, 0, ahead), as_written=written_sums)


@dataclass(frozen=True, kw_only=True)
class _Phases:
    """The loop over the reduction, as columns.

    first: extent of the first axis
    pieces, together: pieces of the split, and adjacent steps of one iteration
    ahead: number of iterations that loads are prefetched ahead
    spacing_w: distance of two pixels of a work-item: 1, or the stride between work-items that alternate
    """

    is_staged: Any
    on_tensor_cores: Any
    is_ahead: Any
    ahead: Any
    has_window: Any
    first: Any
    pieces: Any
    together: Any
    spacing_w: Any


@dataclass(frozen=True, kw_only=True)
class _IterationLoads:
    """Columns of the numbers that one iteration loads.

    They count the distinct numbers of a work group and the numbers of one work-item.
    """

    data: Any
    weights: Any
    data_of_one: Any
    weights_of_one: Any


def _either(condition: Any, usage: KernelUsage, other: KernelUsage) -> KernelUsage:
    """Select between two usages elementwise. Their images are the same."""
    names = (field.name for field in fields(KernelUsage) if field.name != "images")
    return KernelUsage(
        images=usage.images, **{name: np.where(condition, getattr(usage, name), getattr(other, name)) for name in names}
    )


def _rows(columns: Columns) -> Any:
    """Return the work-items of a group along the rows of pixels."""
    return columns.get("wg_h", np.asarray(1))


@functools.cache
def _rounds(is_data: bool, high: int, wide: int, step_bytes: int) -> int:
    """Return `bank_conflict_rounds` of the first work-items of a group of `high` rows with `wide` work-items each.

    is_data: each work-item of a row reads another pixel. Otherwise each row reads other weights.
    """
    items = np.arange(min(SERVED, high * wide))
    return bank_conflict_rounds((items % wide if is_data else items // wide) * step_bytes)


def bank_conflict_rounds(places: np.ndarray) -> int:
    """Return the number of serialized local-memory accesses of neighbouring work-items. Equal addresses are broadcast.

    places: byte address of each work-item's load
    """
    words = np.unique((places - places.min()) // _VECTOR_BYTES)
    return int(np.bincount(words % SERVED).max())
