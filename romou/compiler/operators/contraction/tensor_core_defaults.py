"""Default configs with tensor cores, by a rough count of cycles (`romou.base.preset.TensorCores`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from romou.base.limits import Limits
from romou.base.preset import Preset, SplitProducts, TensorCores
from romou.base.space import Config, Space
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.occupancy import candidates, work_groups
from romou.compiler.tir.primitives import LANES

# Partitions of a core that issue matrix instructions independently. The instruction set fixes them.
PARTITIONS = 4


def tensor_core_config(space: Space, c: Contraction, config: Config, limits: Limits) -> Config:
    """Return the config with tensor cores that takes fewest cycles, or `config` without any."""
    choice = _choice_of(space)
    if choice is None:
        return config
    preset, cores = limits.preset, limits.cores
    if choice == tensor_core.TF32X3:
        warp, sides = _of_warps(config, choice, local=0), {"wg_o": (8, 16), "wg_w": (4, 8, 16), "unroll": ("window",)}
        if _taps(c) == 1:
            sides = {"wg_o": (8,), "wg_w": (4,)}
        tiles = {"tile_o": (1, 2), "tile_w": (2, 4, 8), "split_k": space.knobs["split_k"]}
        found = [
            candidate
            for candidate in candidates(space, warp, {**tiles, **sides, "steps": (2, 1)})
            if candidate["split_k"] <= LANES * candidate["tile_o"] * candidate["tile_w"]
        ]
        return min(found, key=lambda candidate: split_cycles(c, candidate, preset, cores), default=config)
    # Staged TF32 was not timed beside operands in memory.
    kinds = (False, True) if choice == tensor_core.MMA else (False,)
    timed = (_fastest(space, c, config, limits, is_staged=is_staged) for is_staged in kinds)
    return min(filter(None, timed), key=lambda each: each[0], default=(0.0, config))[1]


def other_start(space: Space, c: Contraction, config: Config, limits: Limits) -> Config | None:
    """Return the fastest config with tensor cores that stages operands if `config` does not, or the other way round.

    None if there is none.
    """
    fastest = _fastest(space, c, config, limits, is_staged=config["local"] == 0)
    return None if fastest is None else fastest[1]


def _fastest(
    space: Space, c: Contraction, config: Config, limits: Limits, *, is_staged: bool
) -> tuple[float, Config] | None:
    """Return the fewest cycles, and their config, with staged operands or with operands in memory. None without any."""
    choice = _choice_of(space)
    if choice is None:
        return None
    # Of equal counts, kernels with more channels in a group and few steps are faster.
    sides: dict[str, Sequence[Any]] = {"wg_o": (16, 8), "wg_w": (4, 8, 16), "tile_o": (1, 2), "tile_w": (2, 4, 8)}
    if is_staged:
        warp, cycles = _of_warps(config, choice, split_k=1), _staged_cycles
        sides |= {"local": (8, 4, 16), "steps": (4, 2)}
    else:
        warp, cycles = _of_warps(config, choice, local=0), _cycles
        sides |= {"split_k": space.knobs["split_k"], "steps": (2, 1)}
    costs, cores = limits.preset.tensor_cores, limits.cores
    timed = ((cycles(c, candidate, costs, cores), candidate) for candidate in candidates(space, warp, sides))
    return min(timed, key=lambda each: each[0], default=None)


def _cycles(c: Contraction, config: Config, costs: TensorCores, cores: int) -> float:
    """Return the cycles of a kernel that reads its operands from memory.

    A load takes as long as the cache lines that a warp touches. A step waits for its loads while other groups on the
    core go on. Pieces of a sum are added up once.
    """
    tile_o, tile_w, split = config["tile_o"], config["tile_w"], config["split_k"]
    texels, *window, _ = tensor_core.flatten(c).reduce.values()
    groups, warps = work_groups(c, config), _warps(config) * split
    steps = tensor_core.padded(texels, config) // (tensor_core.GROUP * split) * math.prod(window)
    loads = costs.l1_line * (LANES * tile_o + tile_w // tensor_core.PAIR)
    products = costs.mma * tensor_core.instructions(config) * tile_o * tile_w
    busy = -(-groups // cores) * warps * steps * (loads + products)
    rounds = -(-groups // (cores * max(costs.max_warps // warps, 1)))
    pieces = _reduced(config, costs) + costs.piece * (split - 1) if split > 1 else 0
    return float(busy + rounds * steps * costs.load_latency + pieces)


def split_cycles(c: Contraction, config: Config, preset: Preset, cores: int) -> float:
    """Return the cycles of a kernel whose floats are split.

    The partitions of a core multiply for all its warps, and a warp waits for its loads. The slower of both hides most
    of the other. Staged operands are waited for in each of their iterations.
    """
    costs, tile_o, tile_w, split = preset.split_products, config["tile_o"], config["tile_w"], config["split_k"]
    texels, *_ = tensor_core.flatten(c).reduce.values()
    groups, warps = -(-work_groups(c, config) // cores), _warps(config) * split
    if config["local"]:
        return float(groups * -(-texels // tensor_core.GROUP) * _taps(c) * costs.staged_step)
    steps = tensor_core.padded(texels, config) // (tensor_core.GROUP * split) * _taps(c)
    pairs = tile_w / tensor_core.PAIR
    step = costs.pair * tile_o * pairs + costs.weight * tile_o + costs.line * (LANES * tile_o + pairs)
    resident = max(min(groups, preset.tensor_cores.max_warps // warps), 1)
    waiting = costs.load_latency / config["steps"] + step
    arithmetic = -(-resident * warps // PARTITIONS) * step
    of_round = steps * (max(arithmetic, waiting) + costs.not_hidden * min(arithmetic, waiting))
    if split > 1:
        of_round += _reduced(config, costs)
    return float(groups / resident * of_round)


def _staged_cycles(c: Contraction, config: Config, costs: TensorCores, cores: int) -> float:
    """Return the cycles of a kernel that copies its operands into local memory, some steps ahead.

    In an iteration a warp waits for the others, copies, loads its operands and multiplies, unless the second-level
    cache takes longer to deliver them.
    """
    tile_o, tile_w, local = config["tile_o"], config["tile_w"], config["local"]
    texels, *window, _ = c.reduce.values()
    groups, warps, number = -(-work_groups(c, config) // cores), _warps(config), tensor_core.number_bytes(config)
    depth, instructions = local // tensor_core.GROUP, tensor_core.instructions(config)
    products = costs.partition_mma * instructions * depth * tile_o * tile_w * -(-groups * warps // PARTITIONS)
    loads = costs.local_line * groups * warps * number * depth * (LANES * tile_o + tile_w // tensor_core.PAIR)
    pixels, channels = config["wg_w"] * tile_w, LANES * config["wg_o"] * tile_o
    pairs = tensor_core.pair_of_pixels(config, c), tensor_core.pair_of_weights(config, c.extents[0])
    copied = local * (pixels / pairs[0] + channels / pairs[1])
    copies = costs.copy * groups * copied / (tensor_core.WARP_O * tensor_core.WARP_W)
    waiting = costs.staged_latency + costs.copy_latency / config["steps"]
    delivered = groups * local * (pixels + channels) * number * LANES / costs.l2_bytes
    return float(texels // local * math.prod(window) * max(waiting + products + loads + copies, delivered))


def _reduced(config: Config, costs: TensorCores | SplitProducts) -> float:
    """Return the cycles for adding up the pieces of a group's sums."""
    return float(costs.reduction * config["tile_o"] * config["tile_w"] * math.log2(config["split_k"] + 1))


def _of_warps(config: Config, choice: str, **knobs: int) -> Config:
    """Return the config with tensor cores, of knobs that are the same for all configs with tensor cores."""
    return config.replace(
        multiply_add=choice,
        tile_h=1,
        vector_width=LANES,
        unroll="lanes",
        arrangement="blocked",
        local_buffers=1,
        **knobs,
    )


def _choice_of(space: Space) -> str | None:
    return next((choice for choice in tensor_core.CHOICES if choice in space.knobs["multiply_add"]), None)


def _taps(c: Contraction) -> int:
    """Return the positions of the window, 1 without a window."""
    _, *window, _ = c.reduce.values()
    return math.prod(window)


def _warps(config: Config) -> int:
    """Return the warps of a group, for one piece of the reduction."""
    return int(config["wg_o"] * config["wg_w"] // (tensor_core.WARP_O * tensor_core.WARP_W))
