"""Default configs of matrix products on GPUs of hundreds of thousands of work-items, and on others."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from romou.compiler.operators.families.dense import Dense
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, random_arrays, reference, task_of

GPU = "opencl -device=nvidia_h200"


def product(m: int, k: int, n: int) -> TunableTask:
    return task_of(Dense(m=m, k=k, n=n))


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((1500, 512, 2048), (2, 8)),
        ((1500, 2048, 512), (2, 3)),
        ((197, 768, 768), (1, 3)),
        ((196, 1536, 384), (1, 2)),
    ],
)
def test_fewer_outputs_have_smaller_tiles(sizes: tuple[int, int, int], tile: tuple[int, int]) -> None:
    task, target = product(*sizes), Target(GPU)
    config = task.default_config(target)
    assert (config["tile_o"], config["tile_w"]) == tile
    assert (config["local"] > 0, config["split_k"], config["local_buffers"]) == (True, 1, 2)


@pytest.mark.parametrize("sizes", [(1, 768, 1000), (8, 64, 64)])
def test_too_few_outputs_share_sums_instead(sizes: tuple[int, int, int]) -> None:
    config = product(*sizes).default_config(Target(GPU))
    assert (config["local"], config["split_k"] > 1) == (0, True)


@pytest.mark.parametrize("target", ["opencl -device=adreno640", "opencl -device=mali_g76", "opencl -device=host"])
def test_phones_and_cpus_stage_nothing(target: str) -> None:
    assert product(1500, 512, 512).default_config(Target(target))["local"] == 0


@pytest.mark.parametrize("sizes", [(1500, 6, 1500), (197, 383, 1535), (509, 96, 1022)])
def test_odd_sizes_have_a_valid_config_and_are_right(
    sizes: tuple[int, int, int], opencl_device: tvm.runtime.Device
) -> None:
    task, target = product(*sizes), Target(GPU)
    config = task.default_config(target)
    assert task.template.space(task.limits(target)).is_valid(config)
    arrays = random_arrays(task, np.random.default_rng(3))
    assert_agrees(target, task, config, arrays, reference(task, arrays), 1e-5)
