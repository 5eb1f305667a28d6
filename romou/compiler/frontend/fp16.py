"""Convert an fp32 graph to fp16: weights and intermediate tensors are stored as fp16, with casts only at the borders.

    x -> Conv(w) -> ReduceMean -> y                                       (fp32)
    ->      x -> Cast -> Conv(fp16 w) -> Cast -> ReduceMean -> y          (Conv in fp16, the rest in fp32)

ONNX's schemas give the inputs and outputs of an operator that may be fp16, so no list of operators is needed.
onnxruntime's converter has such lists, and duplicates the casts around nodes that stay fp32. Kernels compute in fp32 on
fp16 storage (`romou.compiler.passes.fp16_storage`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.microsoft import ONE_FLOAT_TYPE
from romou.compiler.frontend.onnx_graph import (
    Graph,
    attributes_of,
    captured,
    first_output,
    rule,
    types_of,
)
from romou.compiler.frontend.wide_nodes import wide_nodes
from tvm_patches.domains import MICROSOFT

FP16_MAX = float(np.finfo(np.float16).max)
_BOTH = frozenset({"tensor(float)", "tensor(float16)"})


class Fp16Plan:
    """The float tensors of a model that become fp16.

    model: a folded model with inferred types.
    kept: first outputs of the nodes that stay fp32, besides nodes that cannot be fp16.
    """

    def __init__(self, model: onnx.ModelProto, kept: Set[str] = frozenset()) -> None:
        self.model = model
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._floats = {
            name for name, kind in types_of(model.graph).items() if kind.tensor_type.elem_type == TensorProto.FLOAT
        }
        self._floats |= {tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT}
        inside = {name for node in model.graph.node for name in captured(node)}
        wide = wide_nodes(model)
        unmoved = kept | wide.names
        self._clamped = {
            name for node in model.graph.node if first_output(node) in wide.clamped - kept for name in node.output
        }
        self._slots = [
            self._slots_of(node, is_kept=first_output(node) in unmoved or bool(inside & set(node.output)))
            for node in model.graph.node
        ]

    def inputs(self, position: int) -> list[bool]:
        """Return, for each input of a node, whether it is fp16."""
        return self._slots[position][0]

    def outputs(self, position: int) -> list[bool]:
        """Return, for each output of a node, whether it is fp16."""
        return self._slots[position][1]

    def is_float(self, name: str) -> bool:
        """Return whether a tensor of the original model is fp32."""
        return name in self._floats

    def is_clamped(self, name: str) -> bool:
        """Return whether values beyond fp16's range are clamped to it."""
        return name in self._clamped

    def _slots_of(self, node: onnx.NodeProto, *, is_kept: bool) -> tuple[list[bool], list[bool]]:
        """Return, for each input and output, whether it is fp16. An output needs an input of the same ONNX type."""
        read, made = ([name in self._floats for name in names] for names in (node.input, node.output))
        none = [False] * len(read), [False] * len(made)
        if is_kept or any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return none
        if node.op_type == "Cast":
            # A Cast reads both types.
            return none[0], made
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain == MICROSOFT and node.op_type in ONE_FLOAT_TYPE:
            return read, made
        try:
            schema = onnx.defs.get_schema(
                node.op_type, max_inclusive_version=self._opsets.get(domain, 1), domain=domain
            )
        except onnx.defs.SchemaError:
            return none
        either = {
            constraint.type_param_str
            for constraint in schema.type_constraints
            if set(constraint.allowed_type_strs) >= _BOTH
        }
        if any(_holds_sequences(constraint.allowed_type_strs) for constraint in schema.type_constraints):
            # What reads a sequence does not know the precision of its tensors.
            return none
        kinds = _for_each([parameter.type_str for parameter in schema.inputs], len(read))
        bound = {kind for kind, is_float in zip(kinds, read, strict=True) if is_float and kind in either}
        kinds_made = _for_each([parameter.type_str for parameter in schema.outputs], len(made))
        first, second = ((zip(k, floats, strict=True)) for k, floats in ((kinds, read), (kinds_made, made)))
        return [is_float and kind in bound for kind, is_float in first], [
            is_float and kind in bound for kind, is_float in second
        ]


def _holds_sequences(types: Sequence[str]) -> bool:
    return all(name.startswith(("seq(", "optional(")) for name in types)


def _for_each(kinds: list[str], count: int) -> list[str]:
    """Return the type of each argument. The last parameter may take several arguments."""
    return (kinds + kinds[-1:] * count)[:count] if kinds else [""] * count


def rounded_weight(values: np.ndarray) -> np.ndarray:
    """Return the nearest fp16 numbers. Finite values beyond the range, such as attention masks, become the largest."""
    is_finite = np.isfinite(values)
    return np.where(is_finite, np.clip(values, -FP16_MAX, FP16_MAX), values).astype(np.float16)


def to_fp16(plan: Fp16Plan) -> onnx.ModelProto:
    """Return the model with fp16 inside. Its inputs and outputs keep their types."""
    graph, stored = Graph(plan.model), set[str]()

    def read(name: str, node: onnx.NodeProto, *, is_fp16: bool) -> str:
        """Return the name of a tensor in a precision, and convert it if that is not done yet."""

        def converted(wanted: str) -> str:
            if name in graph.weights:
                return graph.constant(wanted, rounded_weight(numpy_helper.to_array(graph.weights[name])))
            target = graph.free(wanted)
            is_clamped = is_fp16 and plan.is_clamped(name)
            inside = graph.free(f"{name}_clamped") if is_clamped else name
            clip = [helper.make_node("Clip", [name, *_limits(graph)], [inside])] if is_clamped else []
            graph.replace(node, *clip, _cast(inside, target, is_fp16=is_fp16), node)
            return target

        if not plan.is_float(name) or (name in stored) == is_fp16:
            return name
        return graph.once(f"{name}_fp16" if is_fp16 else f"{name}_fp32", converted)

    for position, node in enumerate(graph.nodes):
        is_cast = node.op_type == "Cast"
        for i, is_fp16 in enumerate(plan.inputs(position)):
            node.input[i] = node.input[i] if is_cast else read(node.input[i], node, is_fp16=is_fp16)
        casts = []
        for i, is_fp16 in enumerate(plan.outputs(position)):
            name = node.output[i]
            if is_fp16 and name in graph.returned:
                node.output[i] = graph.once(f"{name}_fp16", graph.free)
                casts.append(_cast(node.output[i], name, is_fp16=False))
            elif is_fp16:
                stored.add(name)
        changed = node
        if is_cast and (plan.outputs(position)[0] or graph.elements.get(node.output[0]) == TensorProto.FLOAT16):
            # A Cast from fp16 to fp16 is an Identity.
            is_done = node.input[0] in stored or graph.elements.get(node.input[0]) == TensorProto.FLOAT16
            same = helper.make_node("Identity", node.input, node.output, node.name)
            changed = same if is_done else _cast(node.input[0], node.output[0], is_fp16=True)
        graph.replace(node, changed, *casts)
    result = graph.result()
    for value in result.graph.value_info:
        if value.name in stored:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return infer(result)


def _limits(graph: Graph) -> list[str]:
    """Return the names of constants that hold the lowest and the highest fp16 number."""
    limits = {"fp16_lowest": np.array(-FP16_MAX, np.float32), "fp16_highest": np.array(FP16_MAX, np.float32)}
    return [graph.once(name, functools.partial(graph.constant, value=value)) for name, value in limits.items()]


def _cast(name: str, target: str, *, is_fp16: bool) -> onnx.NodeProto:
    return helper.make_node("Cast", [name], [target], to=TensorProto.FLOAT16 if is_fp16 else TensorProto.FLOAT)


def rounded(plan: Fp16Plan, prefix: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto], dict[str, str]]:
    """Return a copy of the model's nodes that simulates fp16 storage in fp32, with its weights and its tensors' names.

    Every fp16 tensor is computed in fp32 and rounded to fp16, as in kernels. New names begin with `prefix`. Inputs, and
    weights within fp16's range, are shared with the original.
    """
    nodes: list[onnx.NodeProto] = []
    names = {tensor.name: f"{prefix}{tensor.name}" for tensor in plan.model.graph.initializer if _is_beyond(tensor)}
    weights = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in plan.model.graph.initializer if tensor.name in names
    }
    stored: dict[str, str] = {}
    ends = [f"{prefix}{end}" for end in ("lowest", "highest")]

    def store(name: str) -> str:
        """Round a tensor to fp16 and back. onnxruntime does not remove such a pair of casts."""
        if name not in stored:
            half, back = (f"{prefix}{name}/{bits}" for bits in (16, 32))
            inside = name
            if plan.is_clamped(name.removeprefix(prefix)):
                inside = f"{prefix}{name}/clamped"
                nodes.append(helper.make_node("Clip", [name, *ends], [inside]))
            nodes.append(helper.make_node("Cast", [inside], [half], to=TensorProto.FLOAT16))
            nodes.append(helper.make_node("Cast", [half], [back], to=TensorProto.FLOAT))
            stored[name] = stored[back] = back
        return stored[name]

    for position, node in enumerate(plan.model.graph.node):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        for i, is_fp16 in enumerate(plan.inputs(position)):
            name = names.get(node.input[i], node.input[i]) if is_fp16 or node.input[i] not in weights else node.input[i]
            copy.input[i] = store(name) if is_fp16 else name
        for i, name in enumerate(node.output):
            names[name] = copy.output[i] = f"{prefix}{name}" if name else ""
        nodes.append(copy)
        names.update(
            {
                name: store(names[name])
                for name, is_fp16 in zip(node.output, plan.outputs(position), strict=True)
                if is_fp16
            }
        )
    tensors = [
        numpy_helper.from_array(rounded_weight(values).astype(np.float32), names[name])
        for name, values in weights.items()
    ]
    tensors += [
        numpy_helper.from_array(np.array(value, np.float32), end)
        for value, end in zip((-FP16_MAX, FP16_MAX), ends, strict=True)
    ]
    return nodes, tensors, names


def _is_beyond(tensor: onnx.TensorProto) -> bool:
    """Return whether a weight has finite numbers beyond fp16's range."""
    if tensor.data_type != TensorProto.FLOAT:
        return False
    values = numpy_helper.to_array(tensor)
    return bool(np.any(np.isfinite(values) & (np.abs(values) > FP16_MAX)))


@rule("BatchNormalization", after=infer)
def without_batch_norms(node: onnx.NodeProto, graph: Graph) -> None:
    """Replace a batch norm of constants by a product and a sum.

    Its constants are computed in fp64, because fp16 would lose a small variance. Relax would fold each constant by a
    separate kernel, which takes most of the compile time of a network with many batch norms.
    """
    attributes = attributes_of(node)
    if (
        node.input[0] not in graph.shapes
        or any(name not in graph.weights or graph.elements[name] != TensorProto.FLOAT for name in node.input[1:])
        or len([name for name in node.output if name]) > 1
        or attributes.get("training_mode", 0)
        or not attributes.get("spatial", 1)
    ):
        return
    gamma, beta, mean, variance = (
        numpy_helper.to_array(graph.weights[name]).astype(np.float64) for name in node.input[1:]
    )
    scale = gamma / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    sides = (-1, *(1,) * (len(graph.shapes[node.input[0]]) - 2))
    factor, shift = (
        graph.constant(f"batch_norm/{node.output[0]}/{what}", values.reshape(sides).astype(np.float32))
        for what, values in (("scale", scale), ("shift", beta - mean * scale))
    )
    scaled = graph.free(f"batch_norm/{node.output[0]}/scaled")
    graph.replace(
        node,
        helper.make_node("Mul", [node.input[0], factor], [scaled], node.name and f"{node.name}/scale"),
        helper.make_node("Add", [scaled, shift], list(node.output[:1]), node.name),
    )


def with_fp16(model: onnx.ModelProto, is_as_given: bool, kept: Set[str]) -> onnx.ModelProto:
    """Return the folded model with fp16 inside, or `model` itself if its types stay as given.

    kept: first outputs of the nodes that stay fp32.
    """
    return model if is_as_given else to_fp16(Fp16Plan(model, kept))


def with_fp16_borders(model: onnx.ModelProto, is_wanted: bool) -> onnx.ModelProto:
    """Return the model with fp16 instead of fp32 inputs and outputs, and casts behind and before them."""
    if not is_wanted:
        return model
    graph, borders = Graph(model), dict[str, str]()
    before: list[onnx.NodeProto] = []
    behind: list[onnx.NodeProto] = []
    for values, casts in ((model.graph.input, before), (model.graph.output, behind)):
        for value in values:
            name, is_fp32 = value.name, value.type.tensor_type.elem_type == TensorProto.FLOAT
            if is_fp32 and name not in graph.weights and name not in borders:
                borders[name] = inside = graph.free(f"{name}_fp32")
                ends = (name, inside) if casts is before else (inside, name)
                casts.append(_cast(*ends, is_fp16=casts is behind))
    nodes = graph.nodes
    _rename(nodes, borders)
    graph.order([*before, *nodes, *behind])
    result = graph.result()
    for value in (*result.graph.input, *result.graph.output):
        if value.name in borders:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del result.graph.value_info[:]
    return infer(result)


def _rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner.node, names)
