"""AutoTVM's configs for Adreno GPUs in the words of Romou's knobs.

| AutoTVM splits            | into                                    | Romou's knobs               |
|---------------------------|-----------------------------------------|-----------------------------|
| output channels / 4       | groups, vthreads, work-items (, pixels) | tile_o, wg_o                |
| rows of pixels            | the same                                | tile_h, wg_h                |
| pixels of a row           | the same                                | tile_w, wg_w                |
| channels, window          | outer and inner loops                   | unroll, by what is unrolled |

The outputs of a work-item are a group apart by vthreads (`arrangement`: striped), and neighbours by a fourth number
(blocked). Winograd's products have positions and output channels in place of channels, and tiles in place of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from romou.base.knob import Choice
from romou.base.space import Config, Space
from romou.compiler.operators.algorithms.algorithm import DIRECT
from romou.compiler.operators.costs.features import Loops
from romou.compiler.operators.families.dense import Dense
from romou.compiler.tir.primitives import LANES, MemoryKind
from romou.tuner.records.autotvm import AutotvmTask

NOT_FOR_IMAGES = "the template is not for Adreno's images"
# Splits of the templates for direct sums, and for Winograd's algorithm.
_SPLITS = ({"tile_fc", "tile_y", "tile_x"}, {"tile_y", "tile_x"})


class _Axis(NamedTuple):
    """The split of one axis: results and work-items of a group, and how the results of a work-item are arranged."""

    tile: int
    items: int
    has_vthreads: bool
    has_neighbours: bool


@dataclass(frozen=True, kw_only=True)
class ForeignKernel:
    """The kernel of a config of AutoTVM.

    knobs: Romou's knobs that say the same. The values may be no choices
    unrolled: steps of the reduction that TVM unrolls, without the four lanes of a channel
    loops: loops of the reduction in the kernel's text. None: those of Romou's kernel
    differs: why Romou has no such kernel, without regard to the choices of its knobs. Empty if it may have one
    """

    knobs: Mapping[str, Choice]
    unrolled: int
    differs: str
    loops: Loops | None = None


def kernel_of(task: AutotvmTask, knobs: Mapping[str, Any]) -> ForeignKernel | None:
    """Return the kernel of a config in Romou's words. None if the template stages or sums in another way."""
    is_winograd = task.algorithm != DIRECT
    if not task.reads_images or isinstance(task.work, Dense) or not _SPLITS[is_winograd] <= knobs.keys():
        return None
    if is_winograd:
        return _winograd_kernel(task, knobs)
    o, h, w = (_axis(knobs[name]) for name in ("tile_fc", "tile_y", "tile_x"))
    window = task.task.template.workload.kernel  # type: ignore[union-attr]
    tile = o.tile * h.tile * w.tile
    steps = _unrolled(task, knobs, tile)
    taps = math.prod(window)
    # A depthwise convolution of Romou always unrolls a row of the window, and has no other choice.
    has_window = not task.is_depthwise and 1 < taps <= steps
    is_pointwise = taps == 1 and not task.is_depthwise
    kernel: dict[str, Choice] = {
        "weight": (MemoryKind.IMAGE if is_pointwise or "tpack" in task.template else MemoryKind.BUFFER).value,
        "tile_o": o.tile,
        "tile_h": h.tile,
        "tile_w": w.tile,
        "wg_o": o.items,
        "wg_h": h.items,
        "wg_w": w.items,
        "arrangement": _arrangement(o, w),
        "unroll": "window" if has_window else "lanes",
    }
    differs = (
        _mixed(o, w)
        or ("rows of a work-item are a group apart" if h.has_vthreads else "")
        or ("a part of the reduction is unrolled" if steps not in (1, window[1] if task.is_depthwise else taps) else "")
        or ("channels are summed inside of the window" if _sums_channels_first(knobs, taps) else "")
    )
    inner = [int(knobs[name][-1]) if name in knobs else 1 for name in ("tile_rcc", "tile_ry", "tile_rx")]
    loops = Loops(bool(knobs.get("unroll_explicit", 0)), steps, *inner)
    return ForeignKernel(knobs=_kernel(task, kernel), unrolled=steps, differs=differs, loops=loops)


def equivalent(kernel: ForeignKernel | None, space: Space) -> Config | str:
    """Return the config of `space` with the same kernel, or the reason why there is none.

    space: of the task. Knobs that say nothing about tiles, groups, memory and unrolling have their first choice.
    """
    if kernel is None:
        return NOT_FOR_IMAGES
    if kernel.differs:
        return kernel.differs
    values: dict[str, Choice] = {name: choices[0] for name, choices in space.knobs.items()}
    for name, value in kernel.knobs.items():
        if name not in space.knobs:
            continue
        if value not in space.knobs[name]:
            return f"{name} has no such choice"
        values[name] = value
    config = Config(values)
    return config if space.is_valid(config) else "the space's constraints exclude it"


def _kernel(task: AutotvmTask, own: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return all knobs that AutoTVM's templates fix, and those of one config."""
    fixed: dict[str, Choice] = {
        "algorithm": task.algorithm,
        "data": MemoryKind.IMAGE.value,
        "output": MemoryKind.BUFFER.value,
        "pixels": "rows",
        "accumulate": task.sums,
        "split_k": 1,
        "local": 0,
        "vector_width": LANES,
        "local_buffers": 1,
    }
    return {**fixed, **own}


def _winograd_kernel(task: AutotvmTask, knobs: Mapping[str, Any]) -> ForeignKernel:
    o, w = _axis(knobs["tile_y"]), _axis(knobs["tile_x"])
    # Older templates split the positions of a tile as well.
    positions = _axis(knobs["tile_b"]) if "tile_b" in knobs else _Axis(1, 1, False, False)
    tile_o, items = positions.tile * o.tile, positions.items * o.items
    kernel: dict[str, Choice] = {
        "weight": MemoryKind.IMAGE.value,
        "tile_o": tile_o,
        "tile_h": 1,
        "tile_w": w.tile,
        "wg_o": items,
        "wg_h": 1,
        "wg_w": w.items,
        "arrangement": _arrangement(o, w),
        "unroll": "lanes",
    }
    differs = "Winograd's workspaces are in images"
    loops = Loops(bool(knobs.get("unroll_explicit", 0)), 1, 1, 1, 1)
    return ForeignKernel(knobs=_kernel(task, kernel), unrolled=1, differs=differs, loops=loops)


def _axis(sizes: Sequence[int]) -> _Axis:
    _groups, vthreads, items, *neighbours = sizes
    inner = math.prod(neighbours)
    return _Axis(vthreads * inner, items, vthreads > 1 and items > 1, inner > 1 and items > 1)


def _arrangement(*axes: _Axis) -> str:
    return "striped" if any(axis.has_vthreads for axis in axes) else "blocked"


def _mixed(*axes: _Axis) -> str:
    is_mixed = any(axis.has_vthreads for axis in axes) and any(axis.has_neighbours for axis in axes)
    return "some results of a work-item are neighbours, others a group apart" if is_mixed else ""


def _sums_channels_first(knobs: Mapping[str, Any], taps: int) -> bool:
    """Return whether several channels are summed up for one part of the window before its next part."""
    inner = math.prod(knobs[name][-1] for name in ("tile_ry", "tile_rx"))
    return "tile_rcc" in knobs and inner < taps and knobs["tile_rcc"][-1] > 1


def _unrolled(task: AutotvmTask, knobs: Mapping[str, Any], tile: int) -> int:
    """Return the steps of the reduction that TVM's pass UnrollLoop unrolls, from the innermost loop outwards.

    Without `unroll_explicit`, the pass only marks the loops, and TVM's code generator for OpenCL ignores the mark.
    """
    if not knobs.get("unroll_explicit", 0):
        return 1
    work = task.task.template.workload  # type: ignore[union-attr]
    channels = 1 if task.is_depthwise else -(-work.in_channels // LANES)
    axes = [("tile_rx", work.kernel[1]), ("tile_ry", work.kernel[0]), ("tile_rcc", channels)]
    inner = [(knobs[name][-1], extent) for name, extent in axes if name in knobs]
    loops = [size for size, _ in inner] + [-(-extent // size) for size, extent in inner]
    statements, steps = tile * (1 if task.is_depthwise else LANES), 1
    for extent in loops:
        if statements * steps * extent > knobs.get("auto_unroll_max_step", 0):
            break
        steps *= extent
    return int(steps)
