"""Sums over odd extents that read vectors of a row: right numbers, and no single reads but the last ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from romou.compiler.operators.families.batch_matmul import BatchMatmul
from romou.compiler.operators.families.dense import Dense
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import assert_agrees, conv, matmul, random_arrays, reference, task_of

PHONE = Target("opencl -device=adreno660 -half=storage")
MALI = Target("opencl -device=mali_g76 -half=storage")


def loop_of(work: BatchMatmul | Dense, target: Target, **knobs: int) -> str:
    """Return the text of the loop of a default config, with whole sums and other `knobs`."""
    task = task_of(work)
    config = task.default_config(target).replace(split_k=1, **knobs)
    (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
    found = re.search(r"\n( *)for .*?\n\1\}", kernel.source, re.DOTALL)
    assert found is not None, kernel.source
    return found[0]


@pytest.mark.parametrize("target", [PHONE, MALI], ids=["adreno", "mali"])
@pytest.mark.parametrize(
    "work",
    [
        # Rows of both operands, of the left one and of the right one, and remainders of one to three iterations.
        matmul((2,), 13, 197, 11, is_transposed=True),
        matmul((3,), 9, 139, 12),
        matmul((), 7, 151, 5),
        matmul((), 31, 61, 33, is_transposed=True),
        matmul((2,), 77, 77, 64),
        matmul((), 5, 7, 3),
        Dense(m=19, k=149, n=17),
    ],
    ids=lambda work: work.name,
)
def test_numbers(work: BatchMatmul | Dense, target: Target) -> None:
    task = task_of(work)
    arrays = random_arrays(task, np.random.default_rng(11))
    expected = reference(task, arrays)
    for config in (task.default_config(target), task.default_config(target).replace(split_k=1)):
        assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize("target", [PHONE, MALI], ids=["adreno", "mali"])
@pytest.mark.parametrize(
    "work",
    [
        matmul((2,), 13, 197, 11, "float16", is_transposed=True),
        matmul((3,), 49, 49, 32, "float16"),
        matmul((2,), 77, 77, 64, "float16"),
        matmul((), 50, 50, 32, "float16"),
        matmul((), 19, 61, 23, "float16"),
    ],
    ids=lambda work: work.name,
)
def test_numbers_in_fp16(work: BatchMatmul, target: Target) -> None:
    """Vectors of fp16 start at any number, too, and are converted once."""
    task = task_of(work)
    arrays = random_arrays(task, np.random.default_rng(7))
    expected = reference(task, arrays)
    for config in (task.default_config(target), task.default_config(target).replace(split_k=1)):
        assert_agrees(target, task, config, arrays, expected, 1e-3)


@pytest.mark.parametrize("rows", [2, 4])
def test_fp16_is_converted_in_vectors(rows: int) -> None:
    """A tile loads one vector of each of its rows."""
    loop = loop_of(matmul((8,), 77, 77, 64, "float16"), PHONE, tile_w=rows)
    assert (loop.count("LOAD_UNALIGNED_HALF4("), "vload_half(" in loop) == (rows, False), loop


def test_sums_of_fp16_numbers_have_no_vectors() -> None:
    """They take a register each, unlike vectors of sums."""
    target = Target("opencl -device=mali_g76")
    assert "load_unaligned_half" in loop_of(matmul((3,), 53, 53, 32, "float16"), target)
    assert "load_unaligned_half" not in loop_of(matmul((3,), 197, 61, 197, "float16"), target)


@pytest.mark.parametrize(
    ("k", "iterations", "lanes"), [(197, 49, 4), (77, 19, 4), (49, 12, 4), (31, 15, 2), (13, 13, 1), (196, 49, 1)]
)
def test_an_iteration_reads_vectors_if_the_loop_stays(k: int, iterations: int, lanes: int) -> None:
    """A loop of few short iterations would be unrolled as a whole. Rows of 196 numbers have aligned vectors."""
    loop = loop_of(matmul((8,), 77, k, 64), PHONE)
    assert f"< {iterations};" in loop
    # A compiler unrolls no loop of more than 32 iterations.
    assert ("= LOOP_START;" in loop) == (lanes > 1 and iterations <= 32), loop
    assert (f"load_unaligned_float{lanes}(" in loop) == (lanes > 1)


def test_a_small_register_file_has_pointers_only() -> None:
    """Sixteen sums, eight rows and their pointers leave no registers for vectors of each row."""
    work = matmul((3,), 197, 61, 197, is_transposed=True)
    assert "load_unaligned_float" in loop_of(work, PHONE)
    assert "load_unaligned_float" not in loop_of(work, MALI)


def test_a_padded_window_keeps_its_conditions() -> None:
    """Its loads are guarded, so none is a part of a vector."""
    task = task_of(conv(1, (5, 90), 4, (1, 81), padding=(0, 40, 0, 40)))
    config = task.default_config(PHONE).replace(data="buffer", weight="buffer", output="buffer")
    assert task.with_free_images().space(PHONE).is_valid(config), config
    arrays = random_arrays(task, np.random.default_rng(3))
    assert_agrees(PHONE, task.with_free_images(), config, arrays, reference(task, arrays), 1e-5)
