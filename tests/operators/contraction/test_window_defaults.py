"""Default groups of depthwise convolutions and of first layers on GPUs of hundreds of thousands of work-items."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from romou.compiler.single_operator import conv
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, random_arrays, reference, task_of

GPU = "opencl -device=nvidia_h200"


def depthwise(channels: int, height: int, window: int, stride: int = 1) -> TunableTask:
    padding = (window // 2,) * 4
    sizes = (height, height), channels, (window, window)
    return task_of(conv(channels, *sizes, stride=(stride, stride), padding=padding, groups=channels))


def first_layer(channels: int, height: int, outputs: int, window: int) -> TunableTask:
    return task_of(conv(channels, (height, height), outputs, (window, window), stride=(2, 2), padding=(1, 1, 1, 1)))


@pytest.mark.parametrize(
    ("sizes", "group"),
    [((120, 14, 5), (1, 32)), ((240, 28, 5, 2), (2, 16)), ((72, 56, 3), (2, 64)), ((960, 7, 5), (8, 4))],
)
def test_a_depthwise_group_is_a_warp_or_two_wide_rows(sizes: tuple[int, ...], group: tuple[int, int]) -> None:
    config = depthwise(*sizes).default_config(Target(GPU))
    assert (config["wg_o"], config["wg_w"]) == group


@pytest.mark.parametrize(("channels", "local"), [(1, 1), (3, 1), (4, 1), (5, 0), (64, 0)])
def test_a_first_layer_keeps_its_weights_in_local_memory(channels: int, local: int) -> None:
    task, target = first_layer(channels, 57, 24, 3), Target(GPU)
    config = next(start for start in task.starts(target) if start["algorithm"] == "direct")
    assert config["local"] == local


@pytest.mark.parametrize("target", ["opencl -device=adreno640", "opencl -device=mali_g76", "opencl -device=host"])
def test_phones_and_cpus_copy_no_weights(target: str) -> None:
    assert first_layer(3, 57, 24, 3).default_config(Target(target))["local"] == 0


@pytest.mark.parametrize(
    "task",
    [depthwise(23, 17, 5, 2), depthwise(131, 7, 3), depthwise(61, 111, 3), first_layer(3, 37, 22, 3)],
    ids=lambda task: task.name,
)
def test_odd_sizes_are_right(task: TunableTask, opencl_device: tvm.runtime.Device) -> None:
    target = Target(GPU)
    arrays = random_arrays(task, np.random.default_rng(3))
    assert_agrees(target, task, task.default_config(target), arrays, reference(task, arrays), 1e-5)
