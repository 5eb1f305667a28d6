"""Workspaces between the kernels of one function belong to the graph's memory plan."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from romou.base.inputs import random_inputs
from romou.compiler.assembly.assemble import compile_model, schedule_model
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.devices.targets import Target
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import few

TARGET = Target("opencl")


@pytest.mark.parametrize("algorithm", few(["winograd2", "winograd4"], 1))
def test_workspaces_are_planned_with_the_tensors_of_the_graph(
    algorithm: str, opencl_device: tvm.runtime.Device
) -> None:
    g = NetworkBuilder({"image": (1, 10, 23, 23)})
    x = g.add("Relu", g.conv("image", 10, 10, pads=[1, 1, 1, 1]))
    model = g.model(g.conv(g.add("Add", g.conv(x, 10, 10, pads=[1, 1, 1, 1]), x), 10, 7, (1, 1)))
    imported = import_onnx(model)
    fused = fuse_operators(pack_channels(imported.mod), TARGET)
    found, key_of = extract_tasks(fused)
    tasks = {name: task for name, key in key_of.items() for task in found if task.key == key}
    configs = {
        task.key: next((c for c in task.starts(TARGET) if c.get("algorithm") == algorithm), task.default_config(TARGET))
        for task in found
    }
    transformed = {name for name, task in tasks.items() if configs[task.key].get("algorithm") == algorithm}
    assert transformed
    for var, func in schedule_model(fused, tasks, configs, TARGET).functions_items():
        if isinstance(func, tirx.PrimFunc):
            assert not [b for b in func.body.block.alloc_buffers if str(b.scope()) == "global"]
            workspaces = 2 if var.name_hint in transformed else 0
            assert len(func.params) == len(fused[var.name_hint].params) + workspaces
    compiled = compile_model(fused, tasks, configs, TARGET)
    assert compiled.memory.use.workspaces > 0
    assert {tensor.function for tensor in compiled.memory.tensors if tensor.is_workspace} == transformed
    machine = relax.VirtualMachine(compiled.executable, opencl_device)
    inputs = random_inputs(imported.inputs, seed=3)
    output = machine["main"](*[tvm.runtime.tensor(array, opencl_device) for array in inputs.values()])
    (expected,) = run_onnxruntime(model, inputs) or ()
    first = output[0] if not isinstance(output, tvm.runtime.Tensor) else output
    assert relative_l2_error(np.asarray(first.numpy()), expected) < 1e-5
