"""Vectors of bytes that are apart in memory: TVM packs them into one integer, which OpenCL then
copies into each lane.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_walk

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.passes.code_generator import gather_bytes, lane_of
from support.models.nodes import model_of
from support.suite.exhaustive import in_turn

NODES = {
    "right": ("Slice", "x seven last axis"),
    "columns": ("Slice", "x first last axis step"),
    "turned": ("Transpose", "x", {"perm": [1, 0]}),
    "mixed": ("Concat", "x x", {"axis": 1}),
}


@in_turn
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640", "vulkan"])
def test_moves_of_bytes(dtype: str, target: str, opencl_device: tvm.runtime.Device) -> None:
    constants = {"seven": [7], "first": [1], "last": [13], "axis": [1], "step": [3]}
    x = np.random.default_rng(3).integers(0, 120, (16, 13)).astype(dtype)
    model = model_of(NODES, {"x": x}, constants)
    expected = run_onnxruntime(model, {"x": x})
    assert expected is not None
    compiled = romou.compile(model, target=target, device=0, verify=False)
    assert not compiled.host_nodes
    for found, right in zip(compiled.run({"x": x}), expected, strict=True):
        np.testing.assert_array_equal(found, right)
    assert "0x000000ff" not in "".join(compiled.sources().values())


def _copy(step: int, start: int) -> tirx.PrimFunc:
    """Return y[0:4] = x[start + i * 4 : ... : step]."""
    x, y = (tirx.decl_buffer((256,), "int8", name=name) for name in "xy")
    item = tirx.Var("i", "int32")
    load = tirx.BufferLoad(x, [tirx.Ramp(item * 4 + start, step, 4)])
    return tirx.PrimFunc([x, y, item], tirx.BufferStore(y, load, [tirx.Ramp(0, 1, 4)])).with_attr(
        "target", tvm.target.Target("opencl")
    )


@pytest.mark.parametrize(("step", "start", "is_gathered"), [(1, 0, False), (1, 8, False), (1, 3, True), (3, 0, True)])
def test_only_what_is_aligned_stays_a_vector(step: int, start: int, is_gathered: bool) -> None:
    func = gather_bytes(tvm.IRModule({"main": _copy(step, start)}))["main"]
    lanes: list[int] = []
    structural_walk(func.body, (TensorLoad, lambda load: lanes.append(int(tvm.DataType(str(load.ty)).lanes))))
    assert lanes == ([1] * 4 if is_gathered else [4])
    assert bool(re.search(r"\(char4\)", str(func))) == is_gathered


def test_lanes_of_an_address() -> None:
    i = tirx.Var("i", "int32")
    index = tirx.floordiv(tirx.Ramp(i, 3, 4) + tirx.Broadcast(i, 4), tirx.Broadcast(tirx.const(2), 4))
    for lane in range(4):
        assert tvm.sym.Analyzer().can_prove_equal(lane_of(index, lane), tirx.floordiv(i + 3 * lane + i, 2))
