"""The families without a contraction, on odd and prime shapes, under their default and under random configs, against the plain function in double
precision."""

from __future__ import annotations

import numpy as np
import pytest
from operators import error_on, has_device, random_arrays, reference, relax_tasks
from streams import OPERATORS

from romou.target import Target

SEED = 20
CONFIGS, COMPILED = 4, 1
TOLERANCE = {"float32": 1e-5, "float16": 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OPERATORS)
def test_configs_agree_with_the_plain_function(name: str, dtype: str, target: Target) -> None:
    for task in relax_tasks(*OPERATORS[name], dtype=dtype):
        rng = np.random.default_rng(SEED)
        arrays = random_arrays(task, rng)
        expected = reference(task, arrays)
        for config in [task.default_config(target), *task.space(target).sample(rng, CONFIGS if has_device(target) else COMPILED)]:
            error = error_on(target, task, config, arrays, expected)
            assert error < TOLERANCE[dtype], f"{config}: {error}"
