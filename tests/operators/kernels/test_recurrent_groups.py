"""Recurrent kernels of work groups that wait for each other: CUDA's text, run on the CPU by groups in threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from romou.compiler.operators.kernels.recurrent import schedule_time_loop
from romou.devices.targets import Target
from support.kernels.cuda_on_cpu import run_function
from support.suite.exhaustive import few
from tvm_patches.onnx_converters.recurrent_loop import Activation, Recurrence, time_loop

TARGET = "cuda -device=nvidia_h200"
# Unlike each other, so that none is taken for another one
FUNCTIONS: tuple[Activation, ...] = (("sigmoid", 0, 0), ("tanh", 0, 0), ("softsign", 0, 0))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softsign(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.abs(x))


def expected(work: Recurrence, given: dict[str, np.ndarray]) -> np.ndarray:
    """Return the outputs by ONNX's formulas, in double precision."""
    output = np.zeros(work.output_shape)
    given = {name: array if name == "lengths" else array.astype(np.float64) for name, array in given.items()}
    for d, is_reverse in enumerate(work.is_reverse):
        for b in range(work.batch):
            state = given["first_state"][d, b] if "first_state" in given else np.zeros(work.hidden)
            cell = given["first_cell"][d, b] if "first_cell" in given else np.zeros(work.hidden)
            length = int(given["lengths"][b]) if "lengths" in given else work.steps
            for t in reversed(range(length)) if is_reverse else range(length):
                sums = np.einsum("k,kgj->gj", state, given["weight"][d])
                x = given["products"][t, b, d]
                if work.operator == "RNN":
                    state = sigmoid(x[0] + sums[0])
                elif work.operator == "GRU":
                    z, r = sigmoid(x[0] + sums[0]), sigmoid(x[1] + sums[1])
                    inner = sums[2] + (given["inner"][d] if "inner" in given else 0)
                    state = (1 - z) * np.tanh(x[2] + r * inner) + z * state
                else:
                    p = given["peepholes"][d] if "peepholes" in given else np.zeros((3, work.hidden))
                    i, f = sigmoid(x[0] + sums[0] + p[0] * cell), sigmoid(x[2] + sums[2] + p[2] * cell)
                    cell = f * cell + i * np.tanh(x[3] + sums[3])
                    state = sigmoid(x[1] + sums[1] + p[1] * cell) * softsign(cell)
                output[t, d, b] = state
            for at, is_cell in enumerate(work.last):
                output[work.steps + at, d, b] = cell if is_cell else state
    return output


def random_work(operator: str, directions: int, seed: int) -> tuple[Recurrence, dict[str, np.ndarray]]:
    """Return a layer and its inputs. Inputs that may be left out are drawn."""
    rng = np.random.default_rng(seed)
    hidden, batch = int(rng.choice([40, 64, 33, 7])), int(rng.integers(1, 4))
    work = Recurrence(
        operator=operator,
        steps=int(rng.integers(1, 6)),
        batch=batch,
        hidden=hidden,
        dtype="float32",
        is_reverse=(False, True)[:directions] if directions == 2 else (bool(rng.integers(2)),),
        functions=(FUNCTIONS,) * directions,
        is_linear_first=True,
        last=(0, 1) if operator == "LSTM" else (0,),
    )
    of = {"GRU": ["inner", "lengths"], "LSTM": ["peepholes", "lengths", "first_cell"], "RNN": ["lengths"]}[operator]
    names = ["products", "weight", *(name for name in [*of, "first_state"] if rng.random() < 0.6)]
    given: dict[str, Any] = {n: (0.5 * rng.standard_normal(work.input_shapes[n])).astype("float32") for n in names}
    if "lengths" in given:
        given["lengths"] = rng.integers(1, work.steps + 1, batch).astype("int32")
    return work, given


@pytest.mark.parametrize("seed", few(range(3), 1))
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
def test_groups_that_wait(operator: str, directions: int, seed: int) -> None:
    work, given = random_work(operator, directions, 10 * seed + directions)
    target = Target(TARGET)
    limits = target.limits
    # So few cores that a group has several sequences
    cores = directions * -(-work.hidden // 8) * -(-work.batch // 2)
    limits = replace(limits, busy_work_items=cores * limits.max_work_group_size)
    func = schedule_time_loop(time_loop(work, list(given)), limits)
    assert [str(b.name) for b in func.body.block.alloc_buffers if str(b.scope()) == "global"][-1] == "states"
    found = run_function(func, {**given, "output": np.full(work.output_shape, np.nan, "float32")}, target)
    np.testing.assert_allclose(found.reshape(work.output_shape), expected(work, given), rtol=2e-5, atol=2e-6)


def stages_of(hidden: int, batch: int, **changes: Any) -> list[str]:
    """Return the names of the workspaces of a layer's kernels, which tell how it is computed."""
    work = Recurrence(
        operator="LSTM",
        steps=9,
        batch=batch,
        hidden=hidden,
        dtype="float32",
        is_reverse=(False,),
        functions=(FUNCTIONS,),
    )
    limits = replace(Target(TARGET).limits, **changes)
    func: tirx.PrimFunc = schedule_time_loop(time_loop(work, ["products", "weight"]), limits)
    return [str(b.name) for b in func.body.block.alloc_buffers if str(b.scope()) == "global"]


def test_groups_wait_only_if_all_run_at_once() -> None:
    assert stages_of(1024, 1) == ["cell", "states"]
    assert stages_of(512, 4) == ["cell", "states"]
    # Of 128 groups, 132 cores hold only those of four sequences.
    assert stages_of(512, 9) == ["state", "cell"]
    assert stages_of(1064, 1) == ["state", "cell"], "more groups than cores"
    assert stages_of(64, 1, has_waiting_groups=False) == ["state", "cell"]
    assert stages_of(64, 1, busy_work_items=1) == ["state", "cell"], "the number of cores is not known"
