"""Default configs of products whose operands are staged in local memory, for large GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.knobs import ITERATION
from romou.compiler.operators.contraction.occupancy import candidates, work_groups
from romou.compiler.tir.primitives import LANES, MemoryKind

# tile_o, tile_w, wg_o, wg_w and local of kernels, each with fewer outputs in a group than the one before. Tuned kernels
# of matrix products are these or like them (`romou.base.preset.StagedProducts`).
_KERNELS = ((2, 8, 16, 8, 4), (2, 3, 8, 8, 8), (1, 3, 8, 8, 16), (1, 2, 8, 8, 16))


def staged_products(space: Space, c: Contraction, config: Config, limits: Limits) -> Config:
    """Return the largest kernel with local memory that keeps all cores busy and computes little padding.

    Return `config` if there is none, for windows, whose data has reuse already, and for phones, which stage nothing.
    """
    _, *window, _ = c.reduce.values()
    is_in_buffers = config["data"] == MemoryKind.BUFFER.value and "arrangement" in space.knobs
    if not is_in_buffers or math.prod(window) > 1 or limits.warp_size == 1 or limits.is_mobile:
        return config
    whole = config.replace(tile_h=1, split_k=1)
    costs, cores = limits.preset.staged_products, limits.cores
    for tile_o, tile_w, wg_o, wg_w, local in _KERNELS:
        sides: dict[str, Sequence[Any]] = {
            "tile_o": [tile_o],
            "tile_w": [tile_w],
            "wg_o": [wg_o],
            "wg_w": [wg_w],
            # A short sum has fewer texels to stage.
            "local": [local // shorter for shorter in (1, 2, 4) if local >= shorter],
            "arrangement": ["striped", "blocked"],
            "unroll": [ITERATION, "lanes"],
            "vector_width": [LANES, 2, 1],
            "local_buffers": [2, 1],
        }
        candidate = next(candidates(space, whole, sides), None)
        if candidate is None:
            continue
        groups = work_groups(c, candidate)
        padding = groups * wg_o * wg_w * tile_o * tile_w / math.prod(c.extents)
        is_last = (tile_o, tile_w, wg_o, wg_w, local) == _KERNELS[-1]
        least = costs.last_groups_of_core if is_last else costs.groups_of_core
        if groups >= least * cores and padding <= costs.most_padding:
            return candidate
    return config
