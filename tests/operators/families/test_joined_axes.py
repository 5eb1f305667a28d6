"""Element-wise kernels: axes in the same order in all buffers are one, reshapes and resizes compute few indices."""

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
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, error_of, random_arrays, reference, relax_tasks, run

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


# Shapes and the function: one row, a row for each channel, rows that a broadcast keeps apart, values without vectors.
ODD_ROWS: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
    "one row": ([(3, 7, 11), (3, 7, 11)], op.add),
    "prime": ([(1009,)], op.square),
    "short rows": ([(16, 2, 7)], op.square),
    "short rows without vectors": ([(16, 2, 7), (16, 2, 7)], lambda a, b: op.power(op.abs(a), b)),
    "short rows behind a channel": ([(1, 3, 5, 5), (3, 1, 1)], op.multiply),
    "a row of three": ([(5, 3)], op.square),
    "two whole vectors": ([(2, 2, 2)], op.square),
    "scores and mask": ([(2, 3, 13, 13), (1, 1, 13, 13)], op.add),
    "gate": ([(2, 5, 7, 9), (2, 5, 1, 1)], op.multiply),
    "row": ([(4, 5, 7), (7,)], op.add),
    "slice": ([(1, 9, 7, 11)], lambda a: op.square(op.strided_slice(a, [1, 3], [2, 1], [7, 10]))),
    "concat": ([(5, 7), (5, 13)], lambda a, b: op.concat([a, b], axis=1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("device", ["adreno660", "mali_g76"])
@pytest.mark.parametrize("name", ODD_ROWS)
def test_odd_rows_are_vectors_and_single_numbers_on_phones(name: str, device: str, dtype: str) -> None:
    shapes, function = ODD_ROWS[name]
    target = Target(f"opencl -device={device}")
    (task,) = relax_tasks(function, *shapes, dtype=dtype)
    config = task.default_config(target)
    assert config["vector_width"] == 4
    arrays = random_arrays(task, np.random.default_rng(7))
    rng = np.random.default_rng(8)
    for each in (config, *task.space(target).sample(rng, 4)):
        assert_agrees(target, task, each, arrays, reference(task, arrays), 1e-6 if dtype == "float32" else 2e-3)


def test_all_axes_of_odd_rows_are_one_row() -> None:
    """Nothing divides, and single numbers are behind the last vector alone."""
    target = Target("opencl -device=adreno660")
    (task,) = relax_tasks(op.add, (3, 77, 77), (3, 77, 77))
    source = build_task(task, task.default_config(target), target).imports[0].inspect_source()
    body = source[source.index("__kernel") :]
    assert body.count("load_unaligned_float4(") == 2
    assert not re.search(r"%|/|<<", body), body


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("rows", "length", "width"), [(8, 504, 4), (6, 672, 4), (16, 252, 4), (32, 126, 1), (64, 63, 1)]
)
def test_reshaped_rows_of_whole_vectors_are_read_in_vectors(
    rows: int, length: int, width: int, dtype: str, opencl_device: tvm.runtime.Device
) -> None:
    """A vector of the output is in one row of the data if four divides the row, as in a group norm's scale."""
    target = Target("opencl -device=adreno640")
    (task,) = relax_tasks(
        lambda a, b: op.multiply(op.reshape(a, (1, 16, 7, 9, 4)), b), (1, rows, length), (1, 16, 1, 1, 4), dtype=dtype
    )
    assert task.template.access_width(4) == width
    arrays = random_arrays(task, np.random.default_rng(9))
    for each in (task.default_config(target), *task.space(target).sample(np.random.default_rng(10), 3)):
        assert_agrees(target, task, each, arrays, reference(task, arrays), 1e-6 if dtype == "float32" else 2e-3)


@pytest.mark.parametrize(("texels", "items"), [(16, 4), (6, 4), (3, 2), (1, 1)])
def test_texels_of_a_resize_share_coordinates(texels: int, items: int, opencl_device: tvm.runtime.Device) -> None:
    """Texels that are left over have a branch of their own."""
    target = Target("opencl -device=adreno640")
    (task,) = relax_tasks(
        lambda a: op.image.resize2d(a, (41, 53), method="linear", layout="NCHW4c"), (1, texels, 11, 13, 4)
    )
    config = task.default_config(target)
    assert config["items"] == items
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
    whole, _, left = kernel.source[kernel.source.index("__kernel") :].partition("} else {")
    # The fractions of a column and of a row, however many texels have them.
    assert len({*re.findall(r"convert_float\((\w+)\)", whole)}) == 2, whole
    assert (whole.count("x0_ptr["), left.count("x0_ptr[")) == (4 * items, 4 * (texels % items)), kernel.source
    arrays = random_arrays(task, np.random.default_rng(11))
    for each in (config, *task.space(target).sample(np.random.default_rng(12), 3)):
        assert_agrees(target, task, each, arrays, reference(task, arrays), 1e-6)
