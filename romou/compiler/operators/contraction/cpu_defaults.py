"""Default register tiles and work groups for CPUs."""

from __future__ import annotations

from romou.base.knob import nearest
from romou.base.limits import Limits
from romou.base.preset import VectorTiles
from romou.base.space import Config, Space
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.occupancy import candidates, computed, largest
from romou.compiler.tir.primitives import LANES


def vector_tile(space: Space, c: Contraction, config: Config, limits: Limits, tiles: VectorTiles) -> Config:
    """Return `config` with the register tile and the group that take the fewest instructions on a CPU.

    The sums and the texels of the weight fit into vector registers. A step loads each texel of the weight, and spreads
    each number of the data over a vector. Both count as much as a multiply-add of a texel. The work-items of a group
    run one after another, so those of a group are neighbours along the pixels, which read the same weights.

    A single pixel reads each weight once, in whole lines of the cache. In OpenCL its sum has two pieces, which takes
    0.37 to 1.13 times as long as one (four products, PoCL and Intel's OpenCL on two cores of an EPYC). On lavapipe it
    takes 1.5 to 1.9 times as long.

    Return `config` if channels do not share the data.
    """
    if c.lhs_varies != "never":
        return config

    def instructions(tile: Config) -> float:
        loads = (tile["tile_o"] + tile["tile_w"]) / (tile["tile_o"] * tile["tile_w"])
        return float((1 + loads) * computed(c, tile, warp_size=1))

    spelled = nearest(space.knobs["multiply_add"], tiles.multiply_add)
    plain = config.replace(wg_o=1, wg_w=1, multiply_add=spelled)
    # Tiles and groups along the pixels are powers of two. Kernels for sizes at run time are compared at sizes that no
    # such group divides (`generic_sizes`).
    sides = {"tile_o": space.knobs["tile_o"], "tile_w": (1, 2, LANES)}
    fitting = [t for t in candidates(space, plain, sides) if t["tile_o"] * (1 + t["tile_w"]) <= tiles.registers]
    if not fitting:
        return config
    tile = min(fitting, key=instructions)
    powers = [1 << power for power in range(tiles.group.bit_length())]
    pieces, side = ((2, 1), "wg_o") if c.extents[2] == 1 and limits.vector_lanes > LANES else ((1,), "wg_w")
    groups = (list(candidates(space, tile, {"split_k": [count], side: powers})) for count in pieces)
    return next((group for each in groups if (group := largest(each, c, warp_size=1))), tile)
