"""Replace ONNX functions without a converter in TVM by their bodies.

The bodies are ONNX's (`onnx.defs`), so they have the operator's semantics. A function that has a converter stays whole:
a Softmax or a LayerNormalization is one kernel, its body would be several.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx.inliner

from romou.base.errors import ModelError
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import Graph, first_output, rule

# TVM's importer lacks these. Its Attention is onnxruntime's, which is another operator.
EXPANDED = {
    "Attention",
    "BlackmanWindow",
    "CausalConvWithState",
    "CenterCropPad",
    "DynamicQuantizeLinear",
    "FlexAttention",
    "HammingWindow",
    "HannWindow",
    "LinearAttention",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
}
_DOMAINS = ("", "ai.onnx", "ai.onnx.preview")
# Rounds of expansion: the body of an expanded function may call further functions.
_ROUNDS = 4


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace calls of functions defined in the model by their bodies.

    Raises
    ------
    ModelError
        If a function cannot be inlined.
    """
    if not model.functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the C++ inliner raises RuntimeError and protobuf's errors
        names = ", ".join(function.name for function in model.functions)
        raise ModelError(
            f"the model's own functions ({names}) cannot be inlined: {error}; export the model without functions"
        ) from error


def expand_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace nodes of the operators `EXPANDED` by the bodies of the ONNX standard. Shapes must have been inferred."""
    for _ in range(_ROUNDS):
        before, model = model, _expanded(model)
        if model is before:
            break
    return model


@rule(*EXPANDED, domain=None, after=infer)
def _expanded(node: onnx.NodeProto, graph: Graph) -> None:
    if node.domain in _DOMAINS and (body := _body(node, graph)):
        graph.replace(node, *body)


def _body(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Return the nodes of a node's body under unique names, or None if ONNX has no body for these types and opset."""
    opset = next(
        (
            o.version
            for o in graph.model.opset_import
            if o.domain == node.domain or {o.domain, node.domain} <= {"", "ai.onnx"}
        ),
        1,
    )
    if not onnx.defs.has(node.op_type, opset, node.domain):
        return None
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    function = _function(schema, node, graph.types, opset)
    if function is None:
        return None
    attributes = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.type} | {
        a.name: a for a in node.attribute
    }
    names = dict(zip(function.input, [*node.input, *[""] * len(function.input)], strict=False))
    names |= {inner: outer for inner, outer in zip(function.output, node.output, strict=False) if outer}
    return [renamed(inner, names, attributes, f"_of_{first_output(node)}") for inner in function.node]


def _function(
    schema: Any, node: onnx.NodeProto, types: dict[str, onnx.TypeProto], opset: int
) -> onnx.FunctionProto | None:
    """Return the body for the model's opset, or for the newest opset before it."""
    if schema.has_context_dependent_function:
        input_types = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
        content = (
            schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), input_types
            )
            if versions
            else b""
        )
    else:
        versions = [version for version in schema.function_opset_versions if version <= opset]
        content = schema.get_function_with_opset_version(max(versions)) if versions else b""
    return onnx.FunctionProto.FromString(content) if content else None


def renamed(
    node: onnx.NodeProto, names: dict[str, str], attributes: dict[str, onnx.AttributeProto], suffix: str
) -> onnx.NodeProto:
    """Return a copy of a body's node with the caller's names and attributes. Other names get the suffix."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    # onnxruntime requires nodes to have different names.
    copy.name = f"{node.op_type}_{node.output[0]}{suffix}"
    for listed in (copy.input, copy.output):
        for i, name in enumerate(listed):
            listed[i] = names.get(name, name and name + suffix)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in attributes:
            continue
        new_attribute = copy.attribute.add()
        new_attribute.CopyFrom(attributes[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        new_attribute.name = attribute.name
        for graph in [new_attribute.g] if new_attribute.HasField("g") else new_attribute.graphs:
            _rename_graph(graph, names, attributes, suffix)
    return copy


def _rename_graph(
    graph: onnx.GraphProto, names: dict[str, str], attributes: dict[str, onnx.AttributeProto], suffix: str
) -> None:
    for inner in graph.node:
        inner.CopyFrom(renamed(inner, names, attributes, suffix))
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name + suffix)
