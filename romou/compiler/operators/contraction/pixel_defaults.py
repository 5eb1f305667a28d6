"""Default tiles and splits of a single pixel on phones, as in squeeze-and-excite blocks."""

from __future__ import annotations

from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.occupancy import candidates, computed, min_work_items, warp_of, work_items
from romou.compiler.tir.primitives import LANES

# Instructions of a step of the sum for each texel of the tile, and for the pixel: 16 multiply-adds, loads, addresses.
_STEP_OF_TEXEL, _STEP_OF_PIXEL = 34, 5
# Instructions of the sum of the pieces: its barrier and addresses, and each piece.
_SPLIT, _PIECE = 40, 7
# Fewest work-items, as a fraction of those that leave the device idle.
_LEAST_ITEMS = 0.5
# Instructions that are worth fewer work-items, as a fraction of those of the split config.
_GAIN = 0.9


def fill_warps(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Config:
    """Return `config` of a single pixel with fewest instructions of all lanes if it leaves the device idle.

    There are fewer texels than lanes, so narrow tiles and short pieces of sums fill the warps. Splits have more
    work-items than a tile has texels. Work-items without a texel wait while the others add up the pieces.
    """
    model = limits.preset.registers
    is_idle = work_items(contraction, config) < min_work_items(limits, contraction, config)
    if not limits.is_mobile or model is None or contraction.extents[1:] != (1, 1) or not is_idle:
        return config
    sides = {"tile_o": space.knobs["tile_o"], "split_k": space.knobs["split_k"], "wg_o": space.knobs["wg_o"]}
    warp, items = warp_of(limits), work_items(contraction, config)
    most = min(2 * warp, limits.max_work_group_size, limits.most_with_local_memory or limits.max_work_group_size)
    fitting = [
        choice
        for choice in candidates(space, config.replace(wg_w=1), sides)
        if choice["wg_o"] * choice["split_k"] <= most
        and _LEAST_ITEMS * items <= work_items(contraction, choice)
        and not _loads_too_far_ahead(contraction, choice, model.max_loads_ahead, model.min_rolled_loads)
    ]

    def cost(choice: Config) -> float:
        return _lanes(contraction, choice, warp) * _instructions(contraction, choice)

    best = min(fitting, key=lambda c: (cost(c), -c["split_k"], c["wg_o"]), default=config)
    is_worse = _loads_too_far_ahead(contraction, config, model.max_loads_ahead, model.min_rolled_loads)
    return best if is_worse or cost(best) < _GAIN * cost(config) else config


def _lanes(contraction: Contraction, config: Config, warp: int) -> float:
    """Return the lanes of all warps."""
    return float(computed(contraction, config, warp) / config["tile_o"] * config["split_k"])


def _instructions(contraction: Contraction, config: Config) -> int:
    """Return about the instructions of a work-item."""
    steps, *_, lanes = contraction.reduce.values()
    split = config["split_k"]
    step = _STEP_OF_TEXEL * config["tile_o"] * lanes // LANES + _STEP_OF_PIXEL
    shared = -(-config["tile_o"] // split) * split * _PIECE + _SPLIT if split > 1 else 0
    return int(-(-steps // split) * step + shared)


def _loads_too_far_ahead(contraction: Contraction, config: Config, most: int | None, rolled: int | None) -> bool:
    """Return whether the loop of a piece is unrolled, and its loads do not fit into the registers."""
    if most is None or rolled is None:
        return False
    steps, *_, lanes = contraction.reduce.values()
    loads = steps // int(config["split_k"]) * (lanes * int(config["tile_o"]) + 1)
    return most < loads < rolled
