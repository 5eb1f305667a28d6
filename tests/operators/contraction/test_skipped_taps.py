"""Transposed convolutions on phones: a work-item computes all phases, and leaves out taps that a phase lacks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from romou.compiler.operators.analysis.executed import trip_loops
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose
from romou.compiler.tir.primitives import LANES
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, random_arrays, reference, task_of

# Padding that shifts the phases, none, a partial texel, two phases.
WORKS = (
    Conv2dTranspose.of(8, (5, 7), 12, (3, 3), stride=2, padding=1, output_padding=(1, 1)),
    Conv2dTranspose.of(6, (4, 5), 7, (3, 3), stride=2, batch=2),
    Conv2dTranspose.of(8, (6, 5), 8, (3, 2), stride=(2, 1), padding=(1, 0, 0, 1)),
)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("device", ["adreno640", "mali_g76"])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_default_configs_compute_the_needed_products_only(work: Conv2dTranspose, device: str, dtype: str) -> None:
    target = Target(f"opencl -device={device} -half=storage")
    task = task_of(Conv2dTranspose(**{**work.to_dict(), "dtype": dtype})).with_free_images()
    arrays = random_arrays(task, np.random.default_rng(3))
    config = task.default_config(target)
    assert config.get("algorithm", "direct") == "direct"
    assert config["tile_o"] == math.prod(work.stride)
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
    inputs = math.prod(task.template.contraction(flat=True).reduce.values()) // math.prod(work.phases.kernel)
    pixels = config["tile_h"] * config["tile_w"]
    products = LANES * math.prod(work.kernel) * inputs * pixels // config["split_k"]
    assert trip_loops(kernel.lowered).total == products
    assert_agrees(target, task, config, arrays, reference(task, arrays), 1e-3)


def test_other_windows_keep_their_phases_apart() -> None:
    for kernel, padding in ((1, 0), (2, 0), (4, 1), (5, 2)):
        work = Conv2dTranspose.of(8, (6, 6), 8, (kernel, kernel), stride=2, padding=padding)
        form = task_of(work).template.contraction(flat=True)
        assert (form.has_tap, form.windows) == (None, 1)


@pytest.mark.parametrize(("kernel", "extents"), [(3, (28, 28)), (5, (28, 28)), (2, (28, 28)), (4, (29, 29))])
def test_all_phases_begin_at_one_place_if_the_window_grows_by_no_tap(kernel: int, extents: tuple[int, int]) -> None:
    odd = kernel % 2
    work = Conv2dTranspose.of(
        8, (28, 28), 8, (kernel, kernel), stride=2, padding=(kernel - 1) // 2, output_padding=(odd, odd)
    )
    assert work.out_hw == (56, 56)
    assert work.phases.out_hw == extents
