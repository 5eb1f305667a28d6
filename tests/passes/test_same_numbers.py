"""Random shapes, random knobs, any set of passes left out: the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from support.kernels.operators import (
    assert_agrees,
    conv,
    has_device,
    kind_id,
    quick_configs,
    random_arrays,
    reference,
    target_of,
    task_of,
)
from support.suite.exhaustive import exhaustive

TARGETS = {"opencl": Target("opencl -device=adreno640 -half=storage"), "cuda": target_of("cuda")}
# Passes that only change how a kernel is written. A kernel is wrong without the others.
OPTIONAL = ("return_early", "eliminate_addresses", "share_loads", "vectorize_pointers", "spell_arithmetic")
TOLERANCE = {"float32": 1e-5, "float16": 1e-3}


@st.composite
def operators(draw: st.DrawFn) -> Conv2d | Dense:
    def small(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    dtype = draw(st.sampled_from(["float32", "float16"]))
    if draw(st.integers(0, 5)) == 0:
        return Dense(m=small(1, 9), k=small(1, 40), n=small(1, 50), dtype=dtype)
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    depthwise = groups == 1 and draw(st.booleans())
    channels = groups * small(1, 12)
    kernel, dilation = (small(1, 4), small(1, 4)), (small(1, 2), small(1, 2))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return conv(
        channels,
        (small(reach[0], reach[0] + 9), small(reach[1], reach[1] + 9)),
        channels if depthwise else groups * small(1, 12),
        kernel,
        dtype,
        stride=(small(1, 3), small(1, 3)),
        padding=tuple(small(0, r - 1) for r in (*reach, *reach)),
        dilation=dilation,
        groups=channels if depthwise else groups,
        batch=small(1, 2),
    )


@pytest.mark.parametrize("examples", [6, pytest.param(96, marks=exhaustive)])
@pytest.mark.parametrize("kind", TARGETS, ids=kind_id)
def test_passes_change_no_numbers(kind: str, examples: int) -> None:
    target = TARGETS[kind]

    @settings(
        max_examples=examples if has_device(target) else examples // 4,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(work=operators(), seed=st.integers(0, 2**31), without=st.sets(st.sampled_from(OPTIONAL)))
    def check(work: Conv2d | Dense, seed: int, without: set[str]) -> None:
        passes_change_no_numbers(target, work, seed, without)

    check()


def passes_change_no_numbers(target: Target, work: Conv2d | Dense, seed: int, without: set[str]) -> None:
    task, rng = task_of(work).with_free_images(), np.random.default_rng(seed)
    (config,) = quick_configs(task, target, rng, 1)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    if not np.any(expected):  # the ReLU may leave nothing of a tiny output
        return
    for left_out in ((), tuple(sorted(without))):
        assert_agrees(target, task, config, arrays, expected, TOLERANCE[work.dtype], without=left_out)
