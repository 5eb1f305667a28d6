"""One model, many threads: each gets the outputs of its own inputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from small_networks import residual_net

import romou
from romou.module import random_inputs


@pytest.mark.parametrize("capture", [None, False])
def test_threads_share_a_model(capture: bool | None, opencl_device: tvm.runtime.Device) -> None:
    model = romou.compile(residual_net(channels=10, size=11), target="opencl")
    model.capture = capture
    inputs = [random_inputs(model.inputs, seed=seed) for seed in range(8)]
    # The first runs of all are in threads: there the model is loaded, and its run captured.
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: model.run(inputs[i % 8]), range(200)))
    for i, outputs in enumerate(found):
        for output, alone in zip(outputs, model.run(inputs[i % 8]), strict=True):
            np.testing.assert_array_equal(output, alone)
    assert len({outputs[0].tobytes() for outputs in found}) == 8
