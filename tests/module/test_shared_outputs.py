"""Outputs that are constants, inputs, views of them, or another output are right in every run."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm

import romou
from support.kernels.operators import target_of
from support.models.nodes import assert_equals_onnxruntime
from support.models.small_networks import NetworkBuilder, random_inputs, shared_outputs_net

KINDS = ["opencl", "vulkan"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.usefixtures("opencl_device", "vulkan_device")
def test_right_in_every_run(kind: str, capture: bool, tmp_path: Path) -> None:
    """Plain or captured, compiled or loaded."""
    model = shared_outputs_net()
    compiled = romou.compile(model, target=target_of(kind))
    compiled.capture = capture
    loaded = romou.load(compiled.save(tmp_path / "m.romou"), capture=capture)
    for seed in range(4):
        inputs = random_inputs(model, seed=seed)
        for one in (compiled, loaded):
            assert_equals_onnxruntime(model, inputs, one.run(inputs), f"in run {seed}")
    assert all(("command buffer" in one.launching) == capture for one in (compiled, loaded))


def test_right_after_it_was_timed(opencl_device: tvm.runtime.Device) -> None:
    """Timing captures, too."""
    model = shared_outputs_net()
    compiled = romou.compile(model, target=target_of("opencl"))
    compiled.times(repeat=1)
    inputs = random_inputs(model, seed=1)
    assert_equals_onnxruntime(model, inputs, compiled.run(inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("opencl_device", "vulkan_device")
def test_no_output_is_computed(kind: str) -> None:
    """There is no kernel to be captured."""
    g = NetworkBuilder({"x": (1, 5)})
    model = g.model(g.add("Identity", "x"), g.weight(2, 3))
    compiled = romou.compile(model, target=target_of(kind))
    for seed in range(3):
        inputs = random_inputs(model, seed=seed)
        assert_equals_onnxruntime(model, inputs, compiled.run(inputs))
