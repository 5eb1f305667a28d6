"""Infer shapes and types of a graph's tensors with ONNX, and with onnxruntime for operators that ONNX lacks.

    x: float[8, 64] -> com.microsoft.FusedMatMul -> s: ? -> Relu -> ?
    ->      s: float[8, 64], so that inference continues behind it

Some operators have rules (`microsoft.py`). onnxruntime runs any other node that ONNX cannot infer, on zeros. The shapes
of its results are used if other inputs give the same shapes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx.printer
from onnx import helper, numpy_helper

from romou.base.errors import ModelError, first_line
from romou.compiler.frontend.microsoft import result_types
from romou.compiler.frontend.onnx_graph import constant_tensors, opset_of, shallow, shapes_of, types_of
from romou.compiler.frontend.onnxruntime_session import cpu_session

logger = logging.getLogger("romou")

# Nodes that read more elements are not run, because that takes seconds and gigabytes.
_LARGEST_ELEMENTS = 1 << 28
# Larger constants are weights, whose values do not affect shapes.
_SMALL_ELEMENTS = 64
_STANDARD = ("", "ai.onnx")


def infer(model: onnx.ModelProto, *, is_strict: bool = False) -> onnx.ModelProto:
    """Return the model with the types of its tensors, if they can be inferred.

    is_strict: whether inconsistent shapes raise an error.

    Raises
    ------
    ModelError
        `is_strict`, and the shapes of two tensors do not fit.
    onnx.shape_inference.InferenceError
        Not `is_strict`, and a node is broken.
    """
    try:
        light = without_weights(model)
        _name_sides(light.graph)
        foreign = [node for node in light.graph.node if _is_foreign(node, light)]
        if foreign:
            light = _with_foreign(light, foreign)
        if foreign and is_strict:
            _check(light)
        return _with_weights(
            onnx.shape_inference.infer_shapes(light, strict_mode=is_strict, data_prop=True), model.graph
        )
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        if not is_strict:
            raise
        raise ModelError(f"shapes do not fit the graph: {str(error).strip()}") from error


def _name_sides(graph: onnx.GraphProto) -> None:
    """Name the default of an STFT's `onesided`, which is 1. Drop it when ONNX no longer infers the shape of 0."""
    for node in graph.node:
        if node.op_type == "STFT" and all(attribute.name != "onesided" for attribute in node.attribute):
            node.attribute.append(helper.make_attribute("onesided", 1))


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with inputs in place of weights, because inference copies a model several times."""
    light, graph = shallow(model, "initializer", "value_info"), model.graph
    given, weights = {value.name for value in graph.input}, {tensor.name for tensor in graph.initializer}
    # Inference would keep the open shape that a folded tensor had.
    light.graph.value_info.extend(value for value in graph.value_info if value.name not in weights)
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _SMALL_ELEMENTS:
            light.graph.initializer.append(tensor)
        elif tensor.name not in given:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light


def text_of(model: onnx.ModelProto) -> str:
    """Return the model as text, with inputs in place of large weights."""
    return str(onnx.printer.to_text(without_weights(model)))


def _with_weights(light: onnx.ModelProto, graph: onnx.GraphProto) -> onnx.ModelProto:
    """Return the model with the inputs and the weights of `graph` again."""
    del light.graph.input[len(graph.input) :], light.graph.initializer[:]
    light.graph.initializer.extend(graph.initializer)
    return light


def _check(model: onnx.ModelProto) -> None:
    """Raise InferenceError if shapes do not fit.

    ONNX does not check a graph with operators that it lacks. So results of such operators become inputs.
    """
    without = shallow(model, "node")
    graph, types = without.graph, types_of(model.graph)
    foreign = [node for node in model.graph.node if _is_foreign(node, model)]
    results = {name for node in foreign for name in node.output if name}
    # Nothing can be checked behind a result of unknown type.
    if any(name not in types or not types[name].WhichOneof("value") for name in results):
        return
    graph.node.extend(node for node in model.graph.node if not _is_foreign(node, model))
    graph.input.extend(helper.make_value_info(name, types[name]) for name in results)
    rest = [value for value in graph.output if value.name not in results]
    del graph.output[:]
    graph.output.extend(rest)
    onnx.shape_inference.infer_shapes(without, strict_mode=True, data_prop=True)


def _is_foreign(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """Return whether ONNX may be unable to infer a node's results."""
    if node.domain not in _STANDARD:
        return True
    opset = opset_of(model)
    if not onnx.defs.has(node.op_type, opset, ""):
        return True
    # For example GroupNormalization: its body depends on the inputs' types, and inference does not expand it.
    return not onnx.defs.get_schema(node.op_type, opset, "").has_type_and_shape_inference_function


def _with_foreign(model: onnx.ModelProto, foreign: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Return the model with the types of the results of `foreign`, if onnxruntime can find them."""
    done: dict[bytes, list[onnx.TypeProto]] = {}
    waiting = list(foreign)
    while waiting:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        graph = model.graph
        constants = constant_tensors(graph)
        types = {
            **types_of(graph),
            **{n: helper.make_tensor_type_proto(t.data_type, t.dims) for n, t in constants.items()},
        }
        shapes = {**shapes_of(graph), **{name: tuple(tensor.dims) for name, tensor in constants.items()}}
        ready: list[onnx.NodeProto] = []
        later: list[onnx.NodeProto] = []
        for node in waiting:
            is_ready = all(name in shapes for name in node.input if name)
            known = result_types(node, types, constants) if is_ready else None
            (ready if is_ready else later).append(node)
            for name, result in zip(node.output, known or (), strict=False):
                if name:
                    # The next node may read it: no inference is needed between them.
                    types[name] = result
                    shapes[name] = tuple(dim.dim_value for dim in result.tensor_type.shape.dim)
                    _declare(graph, name, result)
        waiting = later
        for node in ready:
            names = [name for name in node.output if name]
            elements = sum(math.prod(shapes[name]) for name in node.input if name)
            if (
                all(name in shapes for name in names)
                or elements > _LARGEST_ELEMENTS
                or any(a.HasField("g") for a in node.attribute)
            ):
                continue
            single = _alone(model, node, types, constants)
            key = single.SerializeToString(deterministic=True)
            if key not in done:
                done[key] = _results(single)
            for name, result in zip(names, done[key], strict=False):
                _declare(graph, name, result)
        if not ready:
            break
    return model


def _alone(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a model of one node, with names that depend only on the node's kind."""
    names = {
        name: f"t{i}" for i, name in enumerate(dict.fromkeys(name for name in (*node.input, *node.output) if name))
    }
    copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
    copy.input.extend(names.get(name, "") for name in node.input)
    copy.output.extend(names.get(name, "") for name in node.output)
    inputs, weights = [], []
    for name in dict.fromkeys(name for name in node.input if name):
        if name in constants and math.prod(constants[name].dims) <= _SMALL_ELEMENTS:
            weights.append(numpy_helper.from_array(numpy_helper.to_array(constants[name]), names[name]))
        else:
            inputs.append(helper.make_value_info(names[name], types[name]))
    outputs = [helper.make_value_info(names[name], onnx.TypeProto()) for name in node.output if name]
    graph = helper.make_graph([copy], "alone", inputs, outputs, weights)
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )


def _results(model: onnx.ModelProto) -> list[onnx.TypeProto]:
    """Return the types of a node's results. None are known if it does not run, or if they depend on input values."""
    node, runs = model.graph.node[0], []
    try:
        session = cpu_session(model, is_optimized=False)
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.info("%s: its shapes are not known: %s", node.op_type, first_line(error))
        return []
    for fill in (np.zeros, np.ones, _different):
        try:
            arrays = session.run(None, {value.name: _filled(value, fill) for value in model.graph.input})
        except Exception:  # a value may be no valid index or divisor
            continue
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return []
        runs.append(
            [
                helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for array in arrays
            ]
        )
    return runs[0] if runs and all(types == runs[0] for types in runs) else []


def _filled(value: onnx.ValueInfoProto, fill: Callable[[list[int]], np.ndarray]) -> np.ndarray:
    tensor = value.type.tensor_type
    return fill([dim.dim_value for dim in tensor.shape.dim]).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _different(shape: list[int]) -> np.ndarray:
    """Return 0, 1, 2 repeated."""
    return np.arange(math.prod(shape)).reshape(shape) % 3


def _declare(graph: onnx.GraphProto, name: str, kind: onnx.TypeProto) -> None:
    """Record a tensor's type in the graph, in place of an earlier one."""
    for value in (*graph.output, *graph.value_info):
        if value.name == name:
            value.type.CopyFrom(kind)
            return
    graph.value_info.append(helper.make_value_info(name, kind))


def without_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without declared shapes of outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        output.type.tensor_type.ClearField("shape")
    return copy


def is_open(value: onnx.ValueInfoProto) -> bool:
    """Return whether an extent of a tensor is unknown."""
    tensor = value.type.tensor_type
    return not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in tensor.shape.dim)


def keep_own_outputs(model: onnx.ModelProto, bare: onnx.ModelProto) -> None:
    """Replace wrong declared shapes of outputs by the computed ones, as onnxruntime does.

    bare: the model without declared outputs, with inferred shapes.
    """
    for output, own in zip(model.graph.output, bare.graph.output, strict=True):
        made, said = own.type.tensor_type, output.type.tensor_type
        if not (made.HasField("shape") and said.HasField("shape")):
            continue
        dims = list(zip(made.shape.dim, said.shape.dim, strict=False))
        if len(made.shape.dim) != len(said.shape.dim) or any(_differ(*pair) for pair in dims):
            texts = [
                [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
                for tensor in (said, made)
            ]
            logger.warning(
                "the output %r is declared as (%s), but the graph makes (%s)", output.name, *map(", ".join, texts)
            )
            said.shape.CopyFrom(made.shape)


def _differ(made: onnx.TensorShapeProto.Dimension, said: onnx.TensorShapeProto.Dimension) -> bool:
    return made.HasField("dim_value") and said.HasField("dim_value") and made.dim_value != said.dim_value
