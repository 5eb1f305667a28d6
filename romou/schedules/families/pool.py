"""Reductions of a window that moves over its input; `romou/schedules/pool.py` has their template."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tvm import tirx
from tvm.relax import op

from romou.schedules import pool
from romou.schedules.family import Case, Family


class PoolFamily(Family):
    """Max and average pooling, with or without packed channels."""

    name = pool.FAMILY
    precedence = 10

    def template_of(self, func: tirx.PrimFunc) -> pool.Pool | None:
        return pool.template_of(func)

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="max pool",
                inputs=[(1, 5, 13, 11)],
                build=lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2)),
                compute=lambda x: sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2)),
            ),
            Case(
                name="average pool of texels",
                inputs=[(1, 3, 9, 10, 4)],
                build=lambda x: op.nn.avg_pool2d(x, (2, 3), (1, 1), layout="NCHW4c"),
                compute=lambda x: np.mean(sliding_window_view(x, (2, 3), (2, 3)), (-1, -2)),
            ),
        ]


FAMILY = PoolFamily()
