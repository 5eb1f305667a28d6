"""benchmarks/batch_innermost.py: kernels with the batch innermost are right, and the race compares the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

import batch_innermost
from batch_innermost import INNERMOST, PACKED
from romou.compiler.operators.families import families
from romou.compiler.operators.families.bases.convolution import convolve
from romou.devices.targets import Target
from support.kernels.operators import conv, run

WORKS = [
    conv(6, (7, 9), 10, (3, 3), padding=(1, 1, 1, 1), stride=(2, 1), batch=12),
    conv(3, (8, 6), 5, (2, 3), padding=(0, 1, 1, 0), batch=20),
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_kernels_of_both_layouts_are_right(work: batch_innermost.Conv2d, opencl_device: tvm.runtime.Device) -> None:
    rng, target = np.random.default_rng(0), Target("opencl -images=never")
    images = rng.standard_normal((work.batch, work.in_channels, *work.in_hw), dtype=np.float32)
    filters = rng.standard_normal((work.out_channels, work.in_channels, *work.kernel), dtype=np.float32)
    expected = convolve(work, images.astype(np.float64), filters.astype(np.float64))
    arrays = batch_innermost.arrays_of(work, images, filters)
    with batch_innermost.both_layouts():
        for layout, task in batch_innermost.tasks_of(work).items():
            configs = [task.direct_config(target)]
            configs += task.space(target).sample(rng, 1) if layout == INNERMOST else []
            for config in configs:
                output = run(task, config, arrays[layout], target, opencl_device)
                result = batch_innermost.unpacked(work, layout, output)
                np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4, err_msg=f"{layout} {config}")


def test_a_race_leaves_no_family_behind(opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    target = Target("opencl -images=never")
    sides, best, timed, difference = batch_innermost.race(WORKS[0], target, opencl_device, 1, 60.0, 3)
    assert [{*best[layout]} for layout in (PACKED, INNERMOST)] == [{*c} for s in sides.values() for c in s.seconds]
    assert len(timed) == 3
    assert difference < 1e-5
    assert batch_innermost.FAMILY not in families()
