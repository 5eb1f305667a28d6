"""Fold constants by onnxruntime, and drop nodes that nothing reads or that are twice."""

from __future__ import annotations

import logging
import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from romou.base.errors import ModelError, first_line
from romou.compiler.frontend.expand import expand_functions
from romou.compiler.frontend.infer import infer, is_open, keep_own_outputs, without_outputs
from romou.compiler.frontend.onnx_graph import (
    STANDARD,
    Graph,
    Shapes,
    inputs_of,
    rule,
    types_of,
)
from romou.compiler.frontend.onnxruntime_session import cpu_session

logger = logging.getLogger("romou")

# Larger results stay computed, because a module would store them as weights.
_LARGEST_ELEMENTS = 1 << 24
_FOLDED_TYPES = {
    helper.np_dtype_to_tensor_dtype(np.dtype(name))
    for name in ("?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d")
}
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def fold(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Fold constants and shape arithmetic. The graph's results, inputs and outputs stay the same."""
    model = _lean(proto)
    # Each round may infer shapes that make more nodes constant.
    while any(node.op_type != "Constant" for node in model.graph.node):
        folded = _fold_once(model)
        if folded is None:
            break
        model = folded
    return model


def with_own_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with computed instead of declared shapes of outputs, if folding finds them."""
    bare = infer(without_outputs(model))
    if not any(is_open(output) for output in bare.graph.output):
        return model
    promised = onnx.ModelProto()
    promised.CopyFrom(model)
    keep_own_outputs(promised, fold(expand_functions(bare)))
    return promised


def _lean(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without unread and repeated nodes, with its shapes inferred anew."""
    graph = Graph(proto)
    first: dict[tuple[object, ...], onnx.NodeProto] = {}
    for node in filter(is_pure, graph.nodes):
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        kept = first.setdefault((node.op_type, *map(bool, node.output), *node.input, *attributes), node)
        if kept is not node and not any(_is_kept(name, graph) for name in node.output):
            for name, same in zip(node.output, kept.output, strict=True):
                graph.redirect(name, same)
    graph.touch()  # an unchanged graph would keep its unread nodes
    lean = graph.result(drops={node.op_type for node in graph.nodes})
    # Shapes that an exporter wrote may be wrong. Nothing infers those of other domains.
    made = {name for node in lean.graph.node if node.domain not in STANDARD for name in node.output}
    own = [value for value in lean.graph.value_info if value.name in made]
    del lean.graph.value_info[:]
    lean.graph.value_info.extend(own)
    try:
        return infer(lean, is_strict=True)
    except ModelError as error:
        logger.warning("%s; importing the graph as it is", first_line(error))
        return proto


def by_depth(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its nodes in the order of their depths. Launches of one depth may overlap."""
    graph, depths = Graph(model), dict[str, int]()
    placed = []
    for node in graph.nodes:
        depth = max((depths.get(name, 0) for name in inputs_of(node)), default=-1) + 1
        depths.update(dict.fromkeys(node.output, depth))
        placed.append((depth, node))
    graph.order([node for _, node in sorted(placed, key=lambda pair: pair[0])])
    return graph.result()


def _is_kept(name: str, graph: Graph) -> bool:
    """Return whether a tensor has to keep its name: it is an output, or a subgraph reads it."""
    return name in graph.returned or any(index < 0 for _, index in graph.uses(name))


def _fold_once(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return the model with its constant nodes computed, or None if there are none."""
    graph = Graph(model)
    shapes, constant_names, types = graph.shapes, {*graph.weights}, types_of(model.graph)
    constant: list[onnx.NodeProto] = []
    rest: list[onnx.NodeProto] = []
    has_progress = False
    for node in (_plain_cast(node, types) for node in graph.nodes):
        if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
            constant.append(
                helper.make_node(
                    "Constant", [], node.output, value=numpy_helper.from_array(_dimensions(node, shapes[node.input[0]]))
                )
            )
            has_progress = True
        elif node.op_type == "Constant":
            constant.append(node)
        elif (
            is_pure(node)
            and all(name in constant_names for name in node.input if name)
            and _is_foldable(node, shapes, types)
        ):
            constant.append(node)
            has_progress = True
        else:
            rest.append(node)
            continue
        constant_names.update(node.output)
    if not has_progress:
        return None
    needed = graph.returned | {name for node in rest for name in inputs_of(node)}
    values = _compute(model, constant, [name for node in constant for name in node.output if name in needed])
    if values is None:
        return None
    graph.order(rest)
    for name, value in values.items():
        graph.define(name, value)
    return infer(graph.result())


def _plain_cast(node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> onnx.NodeProto:
    """Return a CastLike as a Cast, which does not depend on the other tensor."""
    if node.op_type != "CastLike" or node.input[1] not in types or not types[node.input[1]].tensor_type.elem_type:
        return node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return helper.make_node(
        "Cast", node.input[:1], node.output, node.name, to=types[node.input[1]].tensor_type.elem_type, **attributes
    )


def is_pure(node: onnx.NodeProto) -> bool:
    """Return whether a standard node's results depend on its inputs only."""
    return (
        node.domain in STANDARD
        and node.op_type not in _RANDOM
        and not any(a.HasField("g") or a.graphs for a in node.attribute)
    )


def _is_foldable(node: onnx.NodeProto, shapes: Shapes, types: dict[str, onnx.TypeProto]) -> bool:
    """Return whether the results are small and have types that NumPy has."""
    outputs = [name for name in node.output if name]
    return all(
        name in types
        and types[name].tensor_type.elem_type in _FOLDED_TYPES
        and math.prod(shapes.get(name, ())) <= _LARGEST_ELEMENTS
        for name in outputs
    )


def _dimensions(node: onnx.NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    """Return the value of a Shape or Size node."""
    if node.op_type == "Size":
        return np.array(np.prod(shape, dtype=np.int64), np.int64)
    attributes = {a.name: a.i for a in node.attribute}
    return np.array(shape[attributes.get("start", 0) : attributes.get("end", len(shape))], np.int64)


def _compute(model: onnx.ModelProto, nodes: list[onnx.NodeProto], outputs: list[str]) -> dict[str, np.ndarray] | None:
    """Return the values of constant tensors, or None if onnxruntime cannot compute one of them."""
    types = types_of(model.graph)
    read = {name for node in nodes for name in node.input}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in read]
    graph = helper.make_graph(
        nodes,
        "constants",
        [],
        [helper.make_value_info(name, types.get(name, onnx.TypeProto())) for name in outputs],
        weights,
    )
    try:
        model = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        session = cpu_session(model)
        return dict(zip(outputs, session.run(outputs, {}), strict=True)) if outputs else {}
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.info("constants are not folded: %s", first_line(error))
        return None


@rule("Constant")
def without_constants(node: onnx.NodeProto, graph: Graph) -> None:
    """Make initializers of the values of Constant nodes, if they are plain tensors of numbers."""
    if node.output[0] in graph.constants and node.output[0] not in graph.returned:
        graph.replace(node)
        graph.define(node.output[0], graph.constants[node.output[0]])
