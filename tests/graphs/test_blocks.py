"""Building blocks of networks: every graph of `blocks.py` is right, compiled within seconds, and a family takes each of
its computations.

By default each graph runs in one way, in turn, and some are compiled for CUDA. --exhaustive runs all in every way.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import tvm

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.runtime.module import TunedModel
from support.models.blocks import BLOCKS, NetworkBlock
from support.suite.exhaustive import few, in_turn

TARGETS = ("opencl -device=host", "opencl -device=adreno640", "opencl -device=mali_g76", "vulkan")
CUDA = "cuda -device=nvidia_h200"
SEED = 20261125
# Processor time, because the machine is shared. A model with nodes that were tried one by one once took minutes.
LIMIT_S = 30.0


def assert_right(model: TunedModel, block: NetworkBlock, seed: int) -> None:
    """Assert that two runs are right, the second one captured if the device captures runs."""
    inputs = block.inputs(seed)
    expected = run_onnxruntime(block.model, inputs)
    assert expected is not None
    for run in range(2):
        outputs = model.run(inputs)
        for name, found, right in zip(outputs.names, outputs, expected, strict=True):
            assert (found.dtype, found.shape) == (right.dtype, right.shape), name
            error = (
                relative_l2_error(found, right) if right.dtype.kind == "f" else float(np.count_nonzero(found != right))
            )
            assert error <= block.tolerance, f"output {name} of run {run}, inputs of seed {seed}"


def check(name: str, target: str) -> None:
    block = BLOCKS[name]()
    has_device = not target.startswith("cuda") or tvm.device("cuda", 0).exist
    started = time.process_time()
    model = romou.compile(block.model, target=target, device=0 if has_device else None, verify=False, strict=True)
    seconds = time.process_time() - started
    assert not model.host_nodes
    # Only operators that are known to have no family yet.
    plain = {node.split(" ")[0] for node in model.summary().by_tvm}
    assert plain <= set(block.plain)
    assert bool(plain) == bool(block.plain)
    assert model.sources() or not target.startswith("cuda")
    assert seconds < LIMIT_S
    if has_device:
        assert_right(model, block, SEED)


@in_turn
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block(name: str, target: str, opencl_device: tvm.runtime.Device, vulkan_device: tvm.runtime.Device) -> None:
    check(name, target)


@pytest.mark.parametrize("name", few(BLOCKS, *range(0, len(BLOCKS), 5)))
def test_a_block_in_cuda(name: str) -> None:
    check(name, CUDA)


def test_there_are_thirty() -> None:
    assert len(BLOCKS) >= 30
