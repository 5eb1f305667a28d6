"""More tensors than a kernel binds buffers are put together, stacked or summed up by several kernels, on the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import relax
from tvm_ffi.structural import structural_walk

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.graph.split_concats import split_concats

COUNT = 40


def model_of_many(operator: str) -> onnx.ModelProto:
    shapes = {f"x{i}": (1 + i % 3 if operator == "Concat" else 2, 7) for i in range(COUNT)}
    attributes = {"axis": 0} if operator == "Concat" else {}
    graph = helper.make_graph(
        [helper.make_node(operator, list(shapes), ["y"], **attributes)],
        "many",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_empty_tensor_value_info("y")],
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )


@pytest.mark.parametrize("operator", ["Concat", "Sum", "Mean", "Max"])
def test_many_inputs(operator: str) -> None:
    """lavapipe of Mesa 22.3 binds 32 buffers. The limit is set below that, so that other releases have it as well."""
    model = model_of_many(operator)
    compiled = romou.compile(model, target="vulkan -max_per_stage_descriptor_storage_buffer=16", verify=False)
    assert compiled.host_nodes == ()
    assert len(compiled.sources()) >= 3
    assert all(text.count("layout(std430") <= 16 for text in compiled.sources().values())
    rng = np.random.default_rng(3)
    inputs = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
    }
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    np.testing.assert_allclose(np.asarray(compiled.run(inputs)[0]), expected[0], 1e-5, 1e-5)


@pytest.mark.parametrize("operator", [relax.op.concat, relax.op.stack])
def test_each_step_keeps_within_the_limit(operator: Callable[..., relax.Expr]) -> None:
    count = 50
    xs = [relax.Var(f"x{i}", relax.TensorType([2, 3], "float32")) for i in range(count)]
    bb = relax.BlockBuilder()
    with bb.function("main", xs):
        with bb.dataflow():
            output = bb.emit_output(bb.emit(operator(xs, 1)))
        bb.emit_func_output(output)
    mod = bb.finalize()
    for most in (4, 7, 50):
        split = split_concats(mod, most)
        tuples: list[relax.Tuple] = []
        structural_walk(split["main"], (relax.Tuple, tuples.append))
        assert tuples
        assert max(len(each.fields) for each in tuples) < most
        assert [int(d) for d in split["main"].ret_ty.shape.values] == [int(d) for d in mod["main"].ret_ty.shape.values]
