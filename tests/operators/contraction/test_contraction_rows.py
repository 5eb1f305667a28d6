"""Work groups of several rows of work-items, on a device whose warps are wide."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from romou.base.space import Config
from romou.compiler.operators.contraction.occupancy import computed, warp_of
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from romou.tuner.pruning.tasks import pruned_space
from support.kernels.operators import conv, error_of, random_arrays, reference, run, task_of

SEED = 36
# Its kernels run on the CPU, too.
ADRENO = Target("opencl -device=adreno640 -half=storage")
SAME = (1, 1, 1, 1)
WORKS = [
    conv(10, (13, 11), 18, (3, 3), padding=SAME),
    conv(24, (14, 14), 20, (1, 1), batch=2),
    conv(8, (17, 9), 8, (3, 3), padding=SAME, groups=8, stride=(2, 2)),
    conv(16, (9, 10), 16, (3, 3), padding=SAME, groups=4),
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_groups_of_several_rows_are_right(work: Conv2d, opencl_device: tvm.runtime.Device) -> None:
    """Rows and pixels of these layers do not fill the groups."""
    task = task_of(work).with_free_images()
    space = task.space(ADRENO)
    where = {"wg_h": 4} | ({"algorithm": "direct"} if "algorithm" in space.knobs else {})
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(task, arrays)
    for config in space.sample(np.random.default_rng(SEED), 3, where=where):
        assert config["wg_h"] == 4
        assert error_of(run(task, config, arrays, ADRENO, opencl_device), expected) < 1e-5, config


@pytest.mark.parametrize(
    ("work", "most"),
    [
        (conv(24, (56, 56), 72, (1, 1)), 1.15),
        (conv(72, (28, 28), 40, (1, 1)), 1.15),
        (conv(32, (80, 80), 64, (1, 1)), 1.0),
        (conv(3, (320, 320), 16, (3, 3), padding=(0, 0, 1, 1), stride=(2, 2)), 1.0),
        (conv(72, (56, 56), 72, (5, 5), padding=(1, 1, 2, 2), stride=(2, 2), groups=72), 1.15),
    ],
    ids=["24_72", "72_40", "width_80", "first_layer", "depthwise"],
)
def test_defaults_leave_few_lanes_idle(work: Conv2d, most: float) -> None:
    """With one row of work-items, these layers computed 1.2 to 1.83 texels for each needed one."""
    task = task_of(work).with_free_images()
    config = task.default_config(ADRENO)
    contraction = task.template.contraction(flat=False)
    o, h, w = contraction.extents
    assert computed(contraction, config, warp_of(ADRENO.limits)) / (o * h * w) <= most


def test_a_config_of_before_has_one_row() -> None:
    task = task_of(WORKS[0]).with_free_images()
    space = task.space(ADRENO)
    config = task.default_config(ADRENO).replace(wg_h=1)
    before = {name: value for name, value in config.items() if name != "wg_h"}
    assert space.knows(before)
    assert space.is_valid(Config(before))
    assert space.index_of(before) == space.index_of(config)
    assert pruned_space(task, ADRENO).is_valid(Config(before)) == pruned_space(task, ADRENO).is_valid(config)
    assert "wg_h" not in task.space(Target("opencl -device=mali_g76")).knobs
