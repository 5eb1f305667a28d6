"""No kernel takes more buffers, or more bytes of arguments, than its device."""

from __future__ import annotations

import re

import onnx
import pytest
import tvm
from onnx import TensorProto, helper

import romou
from romou.base.errors import BuildError
from romou.devices.targets import Target
from support.suite.exhaustive import few, in_turn

# Target, and the buffers that one of its kernels may take.
TARGETS = {
    "opencl -device=host": 128,
    "opencl -device=mali_g76": 128,
    "opencl -device=adreno640 -max_function_args=16": 16,
}
TARGETS["vulkan -device=mali_g715 -max_per_stage_descriptor_storage_buffer=8"] = 8


def concat_model(count: int, *, has_relu: bool = False, operator: str = "Concat") -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [f"x{i}"], [f"r{i}"]) for i in range(count)] if has_relu else []
    joined = helper.make_node(
        operator,
        [f"{'r' if has_relu else 'x'}{i}" for i in range(count)],
        ["y"],
        **({"axis": 0} if operator == "Concat" else {}),
    )
    given = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1 + i % 2, 5]) for i in range(count)]
    if operator != "Concat":
        given = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [2, 5]) for i in range(count)]
    graph = helper.make_graph(
        [*nodes, joined], "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def arguments_of(source: str) -> int:
    """Return the kernel's buffers: parameters in OpenCL C, bindings in GLSL, which may have a name for each type."""
    kernel = re.search(r"__kernel[^{]*{", source)
    if kernel is None:
        return len(set(re.findall(r"std430, binding = (\d+)", source)))
    return len(re.findall(r"__global|__read_only|__write_only", kernel[0]))


@in_turn
@pytest.mark.parametrize("operator", few(["Concat", "Sum", "Max"], 0, 1))
@pytest.mark.parametrize("target", list(TARGETS))
def test_no_kernel_takes_more(target: str, operator: str) -> None:
    compiled = romou.compile(
        concat_model(200, has_relu=True, operator=operator), target=target, verify=False, strict=True
    )
    counts = {name: arguments_of(text) for name, text in compiled.sources().items()}
    assert 2 < max(counts.values()) <= TARGETS[target], counts


def test_a_kernel_that_takes_more_arguments_is_refused() -> None:
    """No rule splits this kernel."""
    target = Target("opencl -device=host -max_function_args=4")
    buffers = [tvm.tirx.decl_buffer([8], "float32", f"x{i}") for i in range(5)]
    i = tvm.tirx.Var("i", "int32")
    total = sum((tvm.tirx.BufferLoad(buffer, [i]) for buffer in buffers[1:4]), tvm.tirx.BufferLoad(buffers[0], [i]))
    thread = tvm.tirx.IterVar(None, tvm.tirx.Var("threadIdx.x", "int32"), 1, "threadIdx.x")
    zero, eight = tvm.tirx.const(0, "int32"), tvm.tirx.const(8, "int32")
    body = tvm.tirx.For(
        i,
        zero,
        eight,
        tvm.tirx.ForKind.THREAD_BINDING,
        tvm.tirx.BufferStore(buffers[4], total, [i]),
        thread_binding=thread,
    )
    root = tvm.s_tir.SBlockRealize([], True, tvm.s_tir.SBlock([], [], [], "root", body))
    func = tvm.tirx.PrimFunc(buffers, root).with_attr("global_symbol", "main")
    with pytest.raises(BuildError, match=r"takes 5 arguments, 40 bytes; the device takes 4"):
        tvm.tirx.build(tvm.IRModule({"main": func}), target=target.tvm_target, pipeline="romou")
