"""Element-wise kernels of buffers: axes that all buffers have in the same order are one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from romou.compiler.assembly.kernel import build_task
from romou.devices.targets import Target
from support.kernels.operators import error_of, random_arrays, reference, relax_tasks, run

HOST = Target("opencl -device=host")
# Shapes, the function, and whether its index needs divisions. Groups of 64 do not divide the sides.
CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], bool]] = {
    "alike": ([(1, 5, 20, 80), (1, 5, 20, 80)], op.add, False),
    "texels": ([(1, 5, 9, 13, 4), (1, 5, 9, 13, 4)], op.add, False),
    "odd_row": ([(1, 5, 7, 13), (1, 5, 7, 13)], op.add, False),
    "gate": ([(1, 5, 20, 80), (1, 5, 1, 1)], op.multiply, True),
    "row": ([(1, 5, 20, 80), (80,)], op.add, True),
    "batch": ([(3, 5, 6, 20), (3, 5, 6, 20)], op.add, True),
    "turned": ([(1, 12, 20, 8), (1, 20, 12, 8)], lambda a, b: op.add(a, op.permute_dims(b, [0, 2, 1, 3])), True),
    "cut": ([(1, 5, 6, 20), (1, 9, 6, 20)], lambda a, b: op.add(a, op.strided_slice(b, [1], [2], [7])), True),
}


@pytest.mark.parametrize("name", CASES)
def test_positions_alike_in_all_buffers_are_not_divided(name: str, opencl_device: tvm.runtime.Device) -> None:
    shapes, function, has_divisions = CASES[name]
    (task,) = relax_tasks(function, *shapes)
    config = task.default_config(HOST).replace(across=1)
    arrays = random_arrays(task, np.random.default_rng(3))
    assert error_of(run(task, config, arrays, HOST, opencl_device), reference(task, arrays)) < 1e-6
    source = build_task(task, config, HOST).imports[0].inspect_source()
    body = source[source.index("{", source.index("__kernel")) :]
    stores = "".join(line for line in body.splitlines() if not line.lstrip().startswith("if"))
    assert has_divisions or not re.search(r"/|%|>>", stores), body
