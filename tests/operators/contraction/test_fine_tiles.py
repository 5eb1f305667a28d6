"""Tiles of five and six pixels of a row: only on GPUs whose preset has them, and their kernels are right."""

from __future__ import annotations

import numpy as np
import pytest

from romou.compiler.operators.families.batch_matmul import matmul
from romou.compiler.operators.families.dense import Dense
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, conv, random_arrays, reference, task_of

FINE = {5, 6}
WORKS = (
    Dense(m=23, k=36, n=45),
    Dense(m=19, k=32, n=44, dtype="float16"),
    conv(12, (9, 13), 20, (3, 3)),
    conv(8, (11, 17), 8, (3, 3), "float16", groups=8),
    matmul((2,), 17, 24, 21),
)


@pytest.mark.parametrize(("device", "choices"), [("mali_g710", FINE), ("mali_g76", set()), ("adreno740", set())])
def test_presets_decide_which_spaces_have_them(device: str, choices: set[int]) -> None:
    space = task_of(WORKS[0]).space(Target(f"opencl -device={device}"))
    assert FINE & {*space.knobs["tile_w"]} == choices


@pytest.mark.parametrize("columns", sorted(FINE))
@pytest.mark.parametrize("work", WORKS, ids=str)
def test_they_are_right(work: object, columns: int) -> None:
    target = Target("opencl -device=mali_g710 -half=storage")
    task = task_of(work).with_free_images()
    arrays = random_arrays(task, np.random.default_rng(columns))
    configs = task.space(target).sample(np.random.default_rng(columns), 4, where={"tile_w": columns})
    assert len(configs) == 4
    for config in configs:
        assert_agrees(target, task, config, arrays, reference(task, arrays), 1e-3)
