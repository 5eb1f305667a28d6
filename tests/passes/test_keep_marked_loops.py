"""Loops that phones' compilers must not unroll (`romou/compiler/passes/keep_marked_loops.py`)."""

from __future__ import annotations

import numpy as np
import pytest

from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, conv, random_arrays, reference, task_of

# fp16 in memory only, which every OpenCL device runs.
ADRENO = Target("opencl -device=adreno690 -half=storage -images=never")
MALI = Target("opencl -device=mali_g76 -half=storage -images=never")
GROUPS = conv(24, (9, 11), 24, (3, 3), padding=(1, 1, 1, 1), groups=3)
WORKS = [
    GROUPS,
    conv(10, (8, 9), 20, (3, 3), padding=(1, 1, 1, 1)),
    conv(6, (8, 8), 16, (5, 5), "float16"),
    conv(24, (9, 11), 24, (3, 3), "float16", padding=(1, 1, 1, 1), groups=3),
    conv(100, (7, 7), 80, (1, 1)),
    conv(32, (18, 18), 32, (3, 3), padding=(1, 1, 1, 1)),
]


@pytest.mark.parametrize("target", [ADRENO, MALI], ids=["adreno", "mali"])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: f"{work.name}")
def test_numbers(work: object, target: Target) -> None:
    check(work, target)


def test_a_compiler_that_obeys_the_hint_has_no_hidden_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL takes the hint: the other branch of the macros is compiled."""
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-DUNROLL_HINT -cl-opt-disable")
    check(GROUPS, ADRENO)


def check(work: object, target: Target) -> None:
    task = task_of(work)
    arrays = random_arrays(task, np.random.default_rng(7))
    config = task.default_config(target)
    assert_agrees(target, task, config, arrays, reference(task, arrays), 1e-2 if work.dtype == "float16" else 1e-5)


def test_only_the_outer_loop_stays() -> None:
    """The counter of the loop over texels of channels starts at a zero that no compiler knows."""
    for target in (ADRENO, MALI):
        task = task_of(GROUPS)
        config = task.default_config(target)
        (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
        starts = [line.strip() for line in kernel.source.splitlines() if line.strip().startswith("for (")]
        assert ["= LOOP_START" in start for start in starts] == [True, False, False]


@pytest.mark.parametrize("name", ["opencl -device=nvidia_h200", "vulkan -device=adreno690"])
def test_other_devices_and_languages_have_no_such_loops(name: str) -> None:
    target, task = Target(name), task_of(GROUPS)
    config = task.default_config(target)
    for kernel in inspect_function(task.schedule(config, target)["main"], target, config=config):
        assert "KEEP_LOOP" not in kernel.source
        assert "LOOP_START" not in kernel.source
