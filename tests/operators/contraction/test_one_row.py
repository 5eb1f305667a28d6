"""Convolutions with one row of output pixels: their kernels are right, and divide no place by the length of the row."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import conv, error_of, random_arrays, reference, run, task_of

SEED = 5
ADRENO = Target("opencl -device=adreno690")
PAD = (0, 1, 0, 1)
WORKS = [
    conv(10, (1, 37), 18, (1, 3), padding=PAD),
    conv(12, (1, 37), 20, (1, 1)),
    conv(8, (3, 29), 12, (3, 3), padding=PAD, stride=(1, 2)),
    conv(8, (1, 37), 8, (1, 3), padding=PAD, groups=8),
    conv(16, (1, 19), 16, (1, 3), padding=PAD, groups=4),
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
@pytest.mark.parametrize("is_image", [False, True], ids=["buffer", "image"])
def test_tiles_beyond_the_end_of_the_row_are_right(
    work: Conv2d, is_image: bool, opencl_device: tvm.runtime.Device
) -> None:
    task = task_of(work).with_free_images() if is_image else task_of(work)
    space = task.space(ADRENO)
    where = {"tile_w": 4} | ({"algorithm": "direct"} if "algorithm" in space.knobs else {})
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(task, arrays)
    for config in [task.default_config(ADRENO), *space.sample(np.random.default_rng(SEED), 3, where=where)]:
        assert error_of(run(task, config, arrays, ADRENO, opencl_device), expected) < 1e-5, config


def test_places_are_not_divided() -> None:
    """Seven quotients and their remainders, of a tile's pixels, would take registers that a tile of 2x7 needs."""
    task = task_of(conv(80, (1, 300), 256, (1, 3), padding=PAD)).with_free_images()
    config = task.default_config(ADRENO).replace(tile_o=2, tile_w=7, wg_o=4, wg_w=8)
    (kernel,) = inspect_function(task.schedule(config, ADRENO)["main"], ADRENO, config=config)
    body = kernel.source[kernel.source.index("__kernel") :]
    assert "* 300" not in body
    # Shifts by two bits compare four columns at once with the end of the row.
    assert body.count(">>") == body.count(">> 2)")
