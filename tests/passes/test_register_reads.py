"""No CUDA variable holds a copy of registers or local memory that were written since."""

from __future__ import annotations

import re

import numpy as np
import pytest

from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import conv, direct_config, task_of

CUDA = Target("cuda -arch=sm_90a")
WORKS: list[Conv2d | Dense] = [
    conv(16, (7, 7), 8, (1, 1)),
    conv(8, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1)),
    conv(8, (9, 9), 8, (3, 3), groups=8),
    Dense(m=3, k=32, n=20, dtype="float32"),
]
_PLACE = r"\w+(?:_local|_shared|shared)\w*\[[^\[\]]*\]"


def stale_reads(source: str) -> list[str]:
    """Return uses of a variable that copies registers or local memory, after something was written there."""
    made_from: dict[str, set[str]] = {}
    stale: set[str] = set()
    found = []
    for line in source.splitlines():
        left, equals, right = line.partition(" = ")
        used = right if equals else line
        found += [f"{name}: {line.strip()}" for name in sorted(stale.intersection(re.findall(r"\w+", used)))]
        if not equals:
            continue
        declared = re.fullmatch(r"\s*\w+ (\w+)", left)
        if declared:
            name = declared[1]
            stale.discard(name)
            inherited = set().union(
                *(made_from[other] for other in made_from.keys() & set(re.findall(r"\w+", right))), set()
            )
            made_from[name] = set(re.findall(_PLACE, right)) | inherited
        elif re.fullmatch(rf"\s*{_PLACE}", left):
            stale |= {
                name for name, places in made_from.items() if left.strip() in places and not name.startswith("read")
            }
    return found


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_nothing_is_used_after_its_place_was_written(work: Conv2d | Dense) -> None:
    task = task_of(work)
    configs = [*task.starts(CUDA), *task.space(CUDA).sample(np.random.default_rng(0), 3)]
    assert any(config["vector_width"] > 1 for config in configs)
    for config in configs:
        for kernel in inspect_function(task.schedule(config, CUDA)["main"], CUDA):
            assert not stale_reads(kernel.source), config


def test_without_the_pass_something_is() -> None:
    """If this fails, TVM no longer compares vectors by their text, and the pass can be dropped."""
    task = task_of(WORKS[0])
    (kernel,) = inspect_function(
        task.schedule(direct_config(task, CUDA), CUDA)["main"], CUDA, without=["name_register_reads"]
    )
    assert stale_reads(kernel.source)


def test_opencl_is_left_as_it_is() -> None:
    target = Target("opencl")
    task = task_of(WORKS[0])
    scheduled = task.schedule(task.default_config(target), target)["main"]
    with_pass, without = (
        inspect_function(scheduled, target, without=names)[0] for names in ([], ["name_register_reads"])
    )
    assert with_pass.source == without.source
