"""Operators and random configs with the knob `wave`, for Qualcomm's OpenCL."""

from __future__ import annotations

import numpy as np

from romou.base.space import Config
from romou.compiler.operators.families.dense import Dense
from romou.compiler.task import TunableTask
from romou.devices.backends.launch import COPIED, UNIFORM
from romou.devices.targets import Target
from support.kernels.operators import conv

TARGET = Target("opencl -device=adreno740 -waves=search")
# Operators whose weights are whole units of 16 bytes. All other sizes are odd.
COPIED_WORKS = {
    "1x1": conv(13, (5, 7), 16, (1, 1)),
    "3x3": conv(7, (7, 9), 8, (3, 3)),
    "product": Dense(m=5, k=37, n=24),
}


def drawn(task: TunableTask, wave: str, count: int) -> list[Config]:
    """Return random configs of direct sums with a choice of the knob, and small tiles, which compile in a second."""
    space = task.space(TARGET)
    forced = {"wave": wave} | ({"weight": "buffer", "wg_o": 1, "local": 0} if wave in (UNIFORM, COPIED) else {})
    changed = [config.replace(**forced) for config in space.sample(np.random.default_rng(5), 600)]
    found = [
        config
        for config in changed
        if config.get("algorithm", "direct") == "direct"
        and config["tile_o"] * config["tile_h"] * config["tile_w"] <= 4
        and space.knows(config)
        and space.is_valid(config)
    ]
    assert found
    return found[:count]
