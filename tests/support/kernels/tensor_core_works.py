"""Operators in fp16 for tensor cores and cooperative matrices. The tests of both use the same shapes and configs."""

from __future__ import annotations

from romou.base.space import Config
from romou.compiler.operators.families.dense import Dense
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels.operators import conv

HALF = {"dtype": "float16"}
PLAIN = conv(32, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1), **HALF)
# No size is divisible by a tile or a warp, the window exceeds the map on some sides, and the last texel is partial.
ODD = conv(48, (9, 10), 37, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0), batch=3, **HALF)
POINTWISE = conv(64, (7, 5), 130, (1, 1), batch=2, **HALF)
DENSE = Dense(m=61, k=256, n=70, **HALF)
# The texels do not fill whole groups: zeros fill the last one.
FILLED = conv(528, (7, 9), 37, (1, 1), batch=2, **HALF)
# Fewer texels than a group has: the window's taps are the texels.
FIRST = conv(3, (30, 30), 37, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3), batch=2, **HALF)


def warp_config(task: TunableTask, target: Target, **knobs: int | str) -> Config:
    """Return a config of one warp without local memory, with one output tile except for `knobs`."""
    warp = {
        "tile_o": 1,
        "tile_h": 1,
        "wg_o": 8,
        "wg_w": 4,
        "split_k": 1,
        "local": 0,
        "unroll": "lanes",
        "steps": 1,
        "vector_width": 4,
    }
    config = task.default_config(target).replace(**{**warp, **knobs})
    assert task.space(target).is_valid(config), config
    return config
