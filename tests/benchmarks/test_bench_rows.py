"""scripts/bench_rows.py: kernels of a line differ in how parts are added up alone; wrong numbers end it."""

from __future__ import annotations

import bench_rows
import pytest
import tvm

from romou.base.errors import DeviceError, UsageError
from romou.devices.targets import Target

ADRENO = Target("opencl -device=adreno730 -half=storage")


def test_ways_differ_in_how_parts_are_added_up_alone() -> None:
    task = bench_rows.task_of_rows("layer norm", 512, ADRENO)
    ways = bench_rows.ways(task, ADRENO, 32)
    assert [(c["threads"], c["rows"], c["combine"], c["sub_group"]) for c in ways.values()] == [
        (32, 2, "serial", 1),
        (32, 2, "serial", 64),
        (32, 2, "tree", 1),
    ]
    assert len({(c["keep"], c["vector_width"]) for c in ways.values()}) == 1
    # Two steps begin at 16 work-items; Mali shares no sub-group between rows.
    assert "tree" not in bench_rows.ways(task, ADRENO, 8)
    assert bench_rows.ways(task, Target("opencl -device=mali_g610 -half=storage"), 8) == {}
    with pytest.raises(UsageError, match="no sub-groups"):
        bench_rows.ways(task, Target("opencl -device=adreno640"), 32)


def test_wrong_numbers_end_it(vulkan_device: tvm.runtime.Device) -> None:
    """Sub-groups of 16 on a device that has 8."""
    target = Target("vulkan -device=mali_g610 -half=storage")
    task = bench_rows.task_of_rows("softmax", 512, target)
    ways = bench_rows.ways(task, target, 16)
    assert bench_rows.timer(task, ways["serial"], target, vulkan_device)() > 0
    with pytest.raises(DeviceError, match="computes wrong numbers: a relative error of nan"):
        bench_rows.timer(task, ways["sub-group"], target, vulkan_device)


def test_the_ratio_is_of_times_that_were_taken_together() -> None:
    assert bench_rows.cells({"serial": [4e-6, 8e-6, 90e-6], "sub-group": [2e-6, 4e-6, 4e-6]}) == ["4", "", "2", "2.00"]
