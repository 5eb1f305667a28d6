"""Models in many threads: each run gets the outputs of its inputs, bit for bit equal to a single thread's."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import tvm

import romou
from romou.runtime.module import random_inputs
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
