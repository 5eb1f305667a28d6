"""Default configs of a single pixel on phones fill the lanes of a warp, and their kernels are right."""

from __future__ import annotations

import numpy as np
import pytest

from romou.compiler.operators.families.dense import Dense
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, conv, random_arrays, reference, task_of

PHONES = ("adreno640", "adreno740", "mali_g76", "mali_g710")
WORKS = (
    conv(480, (1, 1), 20, (1, 1)),
    conv(144, (1, 1), 6, (1, 1)),
    conv(96, (1, 1), 24, (1, 1), "float16"),
    conv(24, (1, 1), 72, (1, 1)),
    conv(88, (1, 1), 24, (1, 1)),
    conv(13, (1, 1), 11, (1, 1)),
    Dense(m=1, k=48, n=61),
)


@pytest.mark.parametrize("device", PHONES)
@pytest.mark.parametrize("work", WORKS, ids=str)
def test_they_are_right(work: object, device: str) -> None:
    target = Target(f"opencl -device={device} -half=storage")
    task = task_of(work).with_free_images()
    arrays = random_arrays(task, np.random.default_rng(7))
    assert_agrees(target, task, task.default_config(target), arrays, reference(task, arrays), 1e-3)


@pytest.mark.parametrize("device", PHONES)
@pytest.mark.parametrize(("work", "texels"), [(WORKS[0], 5), (WORKS[2], 6)], ids=str)
def test_they_leave_at_most_half_of_the_lanes_idle(work: object, texels: int, device: str) -> None:
    target = Target(f"opencl -device={device}")
    config = task_of(work).with_free_images().default_config(target)
    tiles = -(-texels // config["tile_o"])
    groups = -(-tiles // config["wg_o"])
    warps = groups * -(-config["wg_o"] * config["split_k"] // target.limits.warp_size)
    # A pixel of 24 texels has pieces of at least one step.
    assert 2 * tiles * config["split_k"] >= warps * target.limits.warp_size, config


@pytest.mark.parametrize("device", ["adreno640", "adreno740", "mali_g715"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_of_few_channels_have_a_default_config_of_their_space(groups: int, device: str) -> None:
    target = Target(f"opencl -device={device}")
    task = task_of(conv(groups, (1, 1), 2 * groups, (1, 1), groups=groups))
    config = task.default_config(target)
    assert task.space(target).knows(config)
    assert task.space(target).is_valid(config)


@pytest.mark.parametrize("device", ["mali_g57", "mali_g77", "mali_g710", "mali_g715", "mali_g76", "adreno740"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_arms_gpus_from_valhall_on_read_fp16_weights_of_a_pixel_from_buffers(device: str, dtype: str) -> None:
    target = Target(f"opencl -device={device} -images=prefer")
    memory = {
        pixels: task_of(Dense(m=pixels, k=640, n=1000, dtype=dtype)).default_config(target)["weight"]
        for pixels in (1, 8)
    }
    is_buffer = dtype == "float16" and target.limits.preset.name == "mali_valhall"
    assert memory == {1: "buffer" if is_buffer else "image", 8: "image"}
