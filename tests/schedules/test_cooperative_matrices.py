"""Contractions on tensor cores that take whole matrices: their numbers, by kernels whose matrices are emulated; who is offered them; what they use."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from emulated_matrices import emulation
from exhaustive import few
from operators import conv, device_tensor, error_of, random_arrays, reference, task_of

from romou.core.space import Config
from romou.schedules.contraction.tensor_core import COOPMAT
from romou.schedules.families.dense import Dense
from romou.schedules.workload import Conv2d
from romou.target import Target
from romou.tasks.build import build_task
from romou.tasks.tunable import TunableTask

TARGET, HERE = Target("vulkan -device=nvidia_h200"), Target("vulkan")
SEED = 20
HALF = {"dtype": "float16"}
PLAIN = conv(32, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1), **HALF)
# Nothing that a tile or a warp divides, a window that hangs over on some sides, channels that fill no whole texel.
ODD = conv(48, (9, 10), 37, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0), batch=3, **HALF)
SHAPES = [
    PLAIN,
    ODD,
    conv(64, (7, 5), 130, (1, 1), batch=2, **HALF),
    Dense(m=61, k=256, n=70, **HALF),
    # No whole groups of texels: zeros fill the last one; fewer texels than a group has: the window's taps are the texels.
    conv(528, (7, 9), 37, (1, 1), batch=2, **HALF),
    conv(3, (30, 30), 37, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3), batch=2, **HALF),
]


def matrix_config(task: TunableTask, **knobs: int | str) -> Config:
    """The smallest tile of one warp, and what `knobs` change of it."""
    warp = {"multiply_add": COOPMAT, "tile_o": 1, "tile_h": 1, "tile_w": 4, "wg_o": 8, "wg_w": 4, "split_k": 1, "local": 0, "unroll": "lanes", "steps": 1}
    config = task.default_config(TARGET).replace(**{**warp, "vector_width": 4, **knobs})
    assert task.space(TARGET).is_valid(config), config
    return config


def emulated_error(task: TunableTask, config: Config, change: tuple[str, str] | None = None) -> float:
    arrays = random_arrays(task, np.random.default_rng(SEED))
    with emulation(change):
        module = build_task(task, config, TARGET)
    tensors = [device_tensor(array, HERE.backend.device(), "global") for array in task.arguments(arrays, config)]
    module["main"](*tensors)
    return error_of(tensors[-1].numpy().astype(np.float64), reference(task, arrays))


@pytest.mark.parametrize(
    ("work", "knobs"),
    few(
        [
            (PLAIN, {"tile_o": 2, "split_k": 2, "wg_w": 8}),
            (PLAIN, {"steps": 2, "unroll": "window", "pixels": "rows"}),
            (ODD, {"wg_w": 16}),
            (ODD, {"unroll": "taps", "split_k": 2, "tile_w": 8}),
            (SHAPES[2], {"split_k": 4, "tile_o": 4, "wg_o": 8}),
            (SHAPES[3], {"split_k": 8}),
            (SHAPES[3], {"steps": 4, "tile_o": 2, "tile_w": 8, "split_k": 2}),
            (SHAPES[4], {"tile_w": 8, "split_k": 2, "steps": 2}),
            (SHAPES[5], {"tile_o": 2, "split_k": 4}),
        ],
        0,
        1,
        3,
        6,
        8,
    ),
    ids=str,
)
def test_numbers(work: Conv2d | Dense, knobs: dict[str, int | str]) -> None:
    """Every output is written, by the work-item that the nest gives it to."""
    task = task_of(work)
    assert emulated_error(task, matrix_config(task, **knobs)) < 1e-3
