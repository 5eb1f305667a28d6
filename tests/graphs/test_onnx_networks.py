"""The networks of kinds that the bundled ones lack are right with default schedules, and wholly in kernels."""

from __future__ import annotations

import pytest
import tvm

import romou
from onnx_networks import NETWORKS
from romou.base.inputs import random_inputs
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_right(name: str, opencl_device: tvm.runtime.Device) -> None:
    model = NETWORKS[name]()
    compiled = romou.compile(model, target="opencl -device=host", verify=False)
    assert compiled.host_nodes == ()
    inputs = random_inputs(compiled.inputs, seed=7)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for found, right in zip(compiled.run(inputs), expected, strict=True):
        assert relative_l2_error(found, right) < 1e-4
