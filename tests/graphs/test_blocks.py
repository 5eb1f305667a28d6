"""What networks are made of: every graph of `blocks.py` is right, compiled within seconds, and all that it computes has a family.

By default each graph runs on OpenCL's buffers and in one more way; --exhaustive runs all in every way.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import tvm
from blocks import BLOCKS, Block
from exhaustive import exhaustive
from tvm import tirx

import romou
from romou.api.graph import Graph, import_model, lower
from romou.frontend.reference import relative_l2_error, run_onnxruntime
from romou.module import TunedModel
from romou.schedules.blocks import is_view

BUFFERS = "opencl -device=host"
OTHERS = ("opencl -device=adreno640", "opencl -device=mali_g76", "vulkan", "cuda -device=nvidia_h200")
SEED = 20261125
# Of processor time, on a machine that does other things: what took minutes was a model whose nodes were tried one by one.
LIMIT_S = 30.0


def plain_functions(graph: Graph) -> list[str]:
    """Functions that no family takes, that are no views and not scheduled where they are written: TVM's default schedules serve them."""
    functions = {var.name_hint: func for var, func in graph.fused.functions_items() if isinstance(func, tirx.PrimFunc)}
    functions = {name: func for name, func in functions.items() if func.attrs is None or not func.attrs.get("tirx.is_scheduled", False)}
    return [name for name, func in functions.items() if name not in graph.task_of and not (len(func.params) == 2 and is_view(func))]


def assert_right(model: TunedModel, block: Block, seed: int) -> None:
    """Two runs, the second one captured if the device captures runs."""
    inputs = block.inputs(seed)
    expected = run_onnxruntime(block.model, inputs)
    assert expected is not None
    for run in range(2):
        outputs = model.run(inputs)
        for name, found, right in zip(outputs.names, outputs, expected, strict=True):
            assert (found.dtype, found.shape) == (right.dtype, right.shape), name
            error = relative_l2_error(found, right) if right.dtype.kind == "f" else float(np.count_nonzero(found != right))
            assert error <= block.tolerance, f"output {name} of run {run}, inputs of seed {seed}"


def ways() -> list[object]:
    """(name, target), one of the other targets by default, all of them with --exhaustive."""
    cases: list[object] = []
    for number, name in enumerate(BLOCKS):
        cases.append(pytest.param(name, BUFFERS, id=f"{name}-buffers"))
        for place, target in enumerate(OTHERS):
            marks = () if number % len(OTHERS) == place else exhaustive
            cases.append(pytest.param(name, target, id=f"{name}-{target.split('=')[-1]}", marks=marks))
    return cases


@pytest.mark.parametrize(("name", "target"), ways())
def test_a_block(name: str, target: str, opencl_device: tvm.runtime.Device) -> None:
    block = BLOCKS[name]()
    has_device = not target.startswith("cuda") or tvm.device("cuda", 0).exist
    started = time.process_time()
    model = romou.compile(block.model, target=target, device=0 if has_device else None, verify=False, strict=True)
    seconds = time.process_time() - started
    assert not model.host_nodes
    assert model.sources() or not target.startswith("cuda")
    assert seconds < LIMIT_S
    if has_device:
        assert_right(model, block, SEED)


@pytest.mark.parametrize("target", [BUFFERS, *(pytest.param(target, marks=exhaustive) for target in OTHERS)])
def test_all_that_is_computed_has_a_family(target: str) -> None:
    plain = {}
    for name, make in BLOCKS.items():
        block = make()
        functions = plain_functions(lower(import_model(block.model, None), romou.Target(target), strict=True))
        others = [one for one in functions if not any(word in one for word in block.plain)]
        if others:
            plain[name] = others
    assert not plain


def test_plain_schedules_are_noticed() -> None:
    graph = lower(import_model(BLOCKS["top_k"]().model, None), romou.Target(BUFFERS))
    assert any("topk" in name for name in plain_functions(graph))


def test_there_are_thirty() -> None:
    assert len(BLOCKS) >= 30
