"""Models in many threads: each run gets the outputs of its inputs, bit for bit equal to a single thread's."""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm

import romou
from romou.base.errors import UsageError
from romou.base.inputs import random_inputs
from support.models.small_networks import short_net

THREADS, RUNS, SEEDS = 8, 30, 5


@pytest.fixture(scope="module")
def compiled(opencl_device: tvm.runtime.Device) -> list[romou.TunedModel]:
    return [romou.compile(short_net(channels=channels), target="opencl", verify=False) for channels in (6, 9)]


@pytest.mark.parametrize("capture", [None, False])
def test_threads_share_two_models(capture: bool | None, compiled: list[romou.TunedModel]) -> None:
    assert_threads_agree(compiled, RUNS, capture)


def assert_threads_agree(compiled: list[romou.TunedModel], runs: int, capture: bool | None) -> None:
    """Run two models `runs` times in each of the threads, in an order that differs from thread to thread."""
    models = [copy.copy(model) for model in compiled]
    for model in models:
        model.capture, model._local = capture, None
    inputs = [[random_inputs(model.inputs, seed=seed) for seed in range(SEEDS)] for model in models]

    def work(thread: int) -> list[tuple[int, int, list[bytes]]]:
        found = []
        for i in range(runs):
            which, seed = (thread + i) % 2, (3 * thread + i) % SEEDS
            found.append((which, seed, [output.tobytes() for output in models[which].run(inputs[which][seed])]))
        return found

    # The first runs of all are in threads: there the models are loaded, and their runs captured.
    with ThreadPoolExecutor(THREADS) as pool:
        results = [result for found in pool.map(work, range(THREADS)) for result in found]
    assert len(results) == THREADS * runs
    alone = [
        [[output.tobytes() for output in model.run(each)] for each in given]
        for model, given in zip(models, inputs, strict=True)
    ]
    assert len({outputs[0] for model in alone for outputs in model}) == 2 * SEEDS
    wrong = sum(outputs != alone[which][seed] for which, seed, outputs in results)
    assert wrong == 0, f"{wrong} of {len(results)} runs differ from those of one thread"


def test_started_runs_have_the_outputs_of_their_inputs(compiled: list[romou.TunedModel]) -> None:
    """While another run has the device, runs are started all the same. Their inputs are overwritten at once."""
    model = compiled[0]
    inputs = [random_inputs(model.inputs, seed=seed) for seed in range(SEEDS)]
    expected = [[output.tobytes() for output in model.run(each)] for each in inputs]
    with model._machine()._lock:
        futures = [model.run_async(each) for each in inputs]
        for array in (array for each in inputs for array in each.values()):
            array.fill(0)
        assert not any(future.done() for future in futures)
    assert [[output.tobytes() for output in future.result(timeout=60)] for future in futures] == expected
    assert len({outputs[0] for outputs in expected}) == SEEDS


def test_a_started_run_is_awaited_and_raises_its_error(compiled: list[romou.TunedModel]) -> None:
    model = compiled[0]
    given = random_inputs(model.inputs, seed=0)

    async def awaited() -> romou.Outputs:
        return await asyncio.wrap_future(model.run_async(given))

    assert [a.tobytes() for a in asyncio.run(awaited())] == [a.tobytes() for a in model.run(given)]
    with pytest.raises(UsageError, match="has no input 'other'"):
        model.run_async({**given, "other": np.zeros(1)}).result(timeout=60)
    with pytest.raises(UsageError, match="inputs"):
        model.run_async([given])  # type: ignore[arg-type]
