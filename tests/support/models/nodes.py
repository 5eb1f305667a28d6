"""Small models of single nodes, and onnxruntime's results for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

import romou
from romou.compiler.frontend.reference import run_onnxruntime


def model_of(
    nodes: Mapping[str, tuple],
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, object] | None = None,
    *,
    opset: int = 18,
) -> onnx.ModelProto:
    """Return a model with the outputs of all nodes.

    nodes: name of the output -> (operator, names of its inputs, attributes)
    """
    made = [
        helper.make_node(op, reads.split(), [name], **(attributes[0] if attributes else {}))
        for name, (op, reads, *attributes) in nodes.items()
    ]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in inputs.items()
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(
        made, "nodes", given, [helper.make_empty_tensor_value_info(name) for name in nodes], weights
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9 if opset < 21 else onnx.IR_VERSION
        ),
        data_prop=True,
    )


def assert_as_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], tolerance: float = 1e-4, target: str = "opencl"
) -> None:
    expected = run_onnxruntime(model, inputs)
    assert expected is not None, "onnxruntime takes the model"
    found = romou.compile(model, target=target).run(inputs)
    for name, a, b in zip(found.names, found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=name)


def assert_equals_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray], when: str = ""
) -> None:
    """Assert that outputs are onnxruntime's, bit for bit except for NaN."""
    expected = run_onnxruntime(model, inputs)
    assert expected is not None, "onnxruntime takes the model"
    for value, found, right in zip(model.graph.output, outputs, expected, strict=True):
        np.testing.assert_array_equal(found, right, err_msg=f"{value.name} {when}")
