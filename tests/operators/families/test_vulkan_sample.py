"""A sample of all kernels on this machine's Vulkan device: every family, and every choice of every knob once.

With --exhaustive, each family has a separate test.
"""

from __future__ import annotations

import math

import numpy as np
import tvm

from romou.base.space import Config
from romou.compiler.task import TunableTask
from romou.compiler.typical import typical_tasks
from romou.devices.backends.vulkan import BACKEND
from romou.devices.targets import Target
from support.kernels.operators import built, error_of, lines_of, random_arrays, reference, run

SEED = 5
DRAWN = 48
# A longer kernel takes the driver's compiler seconds.
MOST_LINES = 400


def choices_of(config: Config) -> set[tuple[str, object]]:
    return {(knob, value) for knob, value in config.items() if not isinstance(value, int) or isinstance(value, bool)}


def sample(target: Target) -> tuple[list[tuple[TunableTask, Config]], set[tuple[str, object]]]:
    """Return the default config of a case of every family, random configs until each choice was taken, and the choices
    that only long kernels have.
    """
    rng = np.random.default_rng(SEED)
    tasks = {task.family: task.with_free_images() for task in reversed(typical_tasks(target))}
    chosen = [(task, task.default_config(target)) for task in tasks.values()]
    drawn = [(task, config) for task in tasks.values() for config in task.space(target).sample(rng, DRAWN)]
    missing = set().union(*(choices_of(config) for _, config in drawn)) - set().union(
        *(choices_of(config) for _, config in chosen)
    )
    while missing and drawn:
        # Among configs that add equally many choices, the one with the smallest tiles comes first.
        drawn.sort(
            key=lambda pair: (
                len(choices_of(pair[1]) & missing),
                -math.prod(v for v in pair[1].values() if type(v) is int and v > 0),
            )
        )
        task, config = drawn.pop()
        if not choices_of(config) & missing:
            break
        if lines_of(built(task, config, target)) < MOST_LINES:
            chosen.append((task, config))
            missing -= choices_of(config)
    return chosen, missing


def test_every_family_and_every_choice_of_a_knob(vulkan_device: tvm.runtime.Device) -> None:
    """The kernels are a phone's, with images and fp16, within the device's limits."""
    target = Target("vulkan -device=adreno640").limited_to(BACKEND.facts(0))
    chosen, missing = sample(target)
    assert not missing
    wrong = []
    of_task: dict[str, tuple[list[np.ndarray], np.ndarray]] = {}
    for task, config in chosen:
        if task.key not in of_task:
            arrays = random_arrays(task, np.random.default_rng(SEED))
            # The reference fills the output in; a kernel gets poison there.
            of_task[task.key] = arrays, reference(task, [array.copy() for array in arrays])
        arrays, expected = of_task[task.key]
        error = error_of(run(task, config, arrays, target, vulkan_device), expected)
        if not error < 1e-4:
            wrong.append(f"{task.name} {config}: {error:.3g}")
    assert not wrong, "\n".join(wrong)
