"""float64 that an exporter made of fp32, integers and constants is computed in fp32, if the model's outputs agree.

    x: fp32 -> Cast(double) -> Mul(c: double) -> Cast(float)      ->      x -> Mul(c: float)

Phones have no float64, and no family multiplies matrices of it. A region is the nodes that share float64 tensors. It
keeps its type if the caller gives or gets one of them, or if it makes integers of integers, which may need all digits.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from romou.base.errors import ModelError
from romou.base.inputs import random_inputs
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.input_uses import draws_of
from romou.compiler.frontend.onnx_file import graph_inputs
from romou.compiler.frontend.onnx_graph import STANDARD, Graph, type_name
from romou.compiler.frontend.reference import reference_outputs, relative_l2_error

logger = logging.getLogger("romou")

# Largest relative L2 error of an output, which is also that of compiled fp32 models.
_TOLERANCE = 1e-4


def without_doubles(model: onnx.ModelProto, narrowed: list[str]) -> onnx.ModelProto:
    """Return a folded model with regions of float64 in fp32, and add names of their nodes to `narrowed`.

    The model itself if there are none, or if an output differs on random inputs or cannot be computed.
    """
    graph = Graph(model)
    regions = [region for region in _regions(graph) if _may_be_fp32(graph, region)]
    if not regions:
        return model
    names = [node_name(node) for region in regions for node in region]
    changed = _in_fp32(graph, [node for region in regions for node in region])
    try:
        _check(model, changed)
    except ModelError as error:
        logger.info("float64 stays: %s", error.message)
        return model
    narrowed += names
    return changed


def _doubles(graph: Graph, node: onnx.NodeProto) -> list[str]:
    """Return the float64 tensors that a node reads or writes, without constants."""
    names = [name for name in (*node.input, *node.output) if name and name not in graph.constants]
    return [name for name in names if graph.elements.get(name) == TensorProto.DOUBLE]


def _regions(graph: Graph) -> list[list[onnx.NodeProto]]:
    """Return the nodes of each region, in order."""
    region_of: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.nodes:
        if names := _doubles(graph, node):
            met = list({id(region): region for name in names if (region := region_of.get(name))}.values())
            # The smaller ones become part of the largest one, so that a long chain is not copied at each node.
            merged = max(met, key=len, default=[])
            for region in met:
                if region is not merged:
                    merged += region
                    names += [name for each in region for name in _doubles(graph, each)]
            merged.append(node)
            region_of |= dict.fromkeys(names, merged)
    place = {id(node): at for at, node in enumerate(graph.nodes)}
    regions = {id(region): region for region in region_of.values()}.values()
    return [sorted(region, key=lambda node: place[id(node)]) for region in regions]


def _may_be_fp32(graph: Graph, region: list[onnx.NodeProto]) -> bool:
    names = {name for node in region for name in _doubles(graph, node)}
    is_given = not names <= graph.producers.keys() or not names.isdisjoint(graph.returned)
    is_foreign = any(node.domain not in STANDARD or _has_own_type(node) for node in region)
    is_captured = any(index < 0 for name in names for _, index in graph.uses(name))
    read, made = ({graph.elements.get(name) for node in region for name in side(node)} for side in _SIDES)
    return not (is_given or is_foreign or is_captured or (read & _INTEGERS and made - _FLOATS))


_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
_INTEGERS = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64})
# What casts of a region read, and what its nodes make.
_SIDES = (
    lambda node: node.input if node.op_type == "Cast" else (),
    lambda node: [name for name in node.output if name],
)


def _has_own_type(node: onnx.NodeProto) -> bool:
    """Return whether an attribute other than a Cast's says the type of the result."""
    return any(a.name in ("dtype", "output_dtype") or a.HasField("t") or a.HasField("g") for a in node.attribute)


def _in_fp32(graph: Graph, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Return the model with these nodes in fp32, without casts between fp32 and fp32."""
    narrow = {name for node in nodes for name in _doubles(graph, node)}
    for node in nodes:
        for at, name in enumerate(node.input):
            if name in graph.constants and graph.elements.get(name) == TensorProto.DOUBLE:
                node.input[at] = graph.once(f"{name}_fp32", partial(_constant_in_fp32, graph, name))
        for attribute in node.attribute if node.op_type == "Cast" else ():
            attribute.i = TensorProto.FLOAT if attribute.i == TensorProto.DOUBLE else attribute.i
        graph.touch(node)
    for node in nodes:
        given, made = node.input[0] if node.input else "", node.output[0]
        kinds = {TensorProto.FLOAT if name in narrow else graph.elements.get(name) for name in (given, made)}
        is_named = made in graph.returned or any(index < 0 for _, index in graph.uses(made))
        if node.op_type == "Cast" and kinds == {TensorProto.FLOAT} and not is_named:
            graph.bypass(node, given)
    result = graph.result()
    kept = [value for value in result.graph.value_info if value.name not in narrow]
    del result.graph.value_info[:]
    result.graph.value_info.extend(kept)
    return infer(result)


def _constant_in_fp32(graph: Graph, name: str, wanted: str) -> str:
    with np.errstate(over="ignore"):
        return graph.constant(wanted, numpy_helper.to_array(graph.constants[name]).astype(np.float32))


def _check(model: onnx.ModelProto, changed: onnx.ModelProto) -> None:
    """Raise ModelError if the outputs differ on random inputs, or if onnxruntime computes none."""
    signature = {}
    for value in graph_inputs(model):
        tensor = value.type.tensor_type
        signature[value.name] = tuple(d.dim_value for d in tensor.shape.dim), type_name(tensor.elem_type)
    inputs = random_inputs(signature, 0, draws_of(model))
    outputs = [reference_outputs(each, inputs) for each in (model, changed)]
    for value, expected, found in zip(model.graph.output, *outputs, strict=True):
        if expected.dtype.kind != "f":
            error = 0.0 if np.array_equal(expected, found) else np.inf
        else:
            error = relative_l2_error(found, expected)
        if not error <= _TOLERANCE:
            raise ModelError(f"in fp32, output {value.name} differs by {error:.1e} (relative L2)")
