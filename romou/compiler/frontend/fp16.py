"""A graph of fp32 becomes one of fp16: weights and tensors between nodes are stored as fp16, casts stand at the borders
alone.

    x

            ->  Conv(w) -> ReduceMean -> y        ->        x -> Cast -> Conv(fp16 w) -> Cast -> ReduceMean -> y        (fp32, fp16, fp32)

ONNX's own schemas say which inputs and outputs of an operator may be fp16, so there is no list of operators.
onnxruntime's converter has such lists, and where nodes stay fp32 its casts stand twice, behind their readers. Kernels
compute with fp32 what fp16 stores (`romou.compiler.passes.fp16_storage`).
"""  # noqa: E501

from __future__ import annotations

import functools
from collections.abc import Set

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.graph import (
    add_constant,
    captured,
    drop_unread_weights,
    free_name,
    free_prefix,
    replace_nodes,
    shapes_of,
    types_of,
)
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.wide_nodes import wide_nodes

FP16_MAX = float(np.finfo(np.float16).max)
_BOTH = frozenset({"tensor(float)", "tensor(float16)"})


class Fp16Plan:
    """Which float tensors of a model are fp16, where some nodes are kept in fp32.

    model: folded, its types inferred.
    kept: first outputs of the nodes that stay as they are, besides those that cannot be fp16.
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
        """For each input of a node, whether it is fp16."""
        return self._slots[position][0]

    def outputs(self, position: int) -> list[bool]:
        """For each output of a node, whether it is fp16."""
        return self._slots[position][1]

    def is_float(self, name: str) -> bool:
        """Whether a tensor is one of fp32 in the model as it was."""
        return name in self._floats

    def is_clamped(self, name: str) -> bool:
        """Whether what fp16 cannot hold of a tensor of fp32 becomes the largest number that it can."""
        return name in self._clamped

    def _slots_of(self, node: onnx.NodeProto, *, is_kept: bool) -> tuple[list[bool], list[bool]]:
        """For each input and output of a node, whether it is fp16; an output may be where an input of the same type is."""  # noqa: E501
        read, made = ([name in self._floats for name in names] for names in (node.input, node.output))
        none = [False] * len(read), [False] * len(made)
        if is_kept or any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return none
        if node.op_type == "Cast":
            # It reads either.
            return none[0], made
        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            schema = onnx.defs.get_schema(
                node.op_type, max_inclusive_version=self._opsets.get(domain, 1), domain=domain
            )
        except onnx.defs.SchemaError:
            return none
        either = {one.type_param_str for one in schema.type_constraints if set(one.allowed_type_strs) >= _BOTH}
        kinds = _for_each([parameter.type_str for parameter in schema.inputs], len(read))
        bound = {kind for kind, is_float in zip(kinds, read, strict=True) if is_float and kind in either}
        kinds_made = _for_each([parameter.type_str for parameter in schema.outputs], len(made))
        first, second = ((zip(k, floats, strict=True)) for k, floats in ((kinds, read), (kinds_made, made)))
        return [is_float and kind in bound for kind, is_float in first], [
            is_float and kind in bound for kind, is_float in second
        ]


def _for_each(kinds: list[str], count: int) -> list[str]:
    """Give each argument its parameter's type; the last parameter may stand for several."""
    return (kinds + kinds[-1:] * count)[:count] if kinds else [""] * count


def first_output(node: onnx.NodeProto) -> str:
    """The name by which a node is known: it may have none of its own."""
    return next((name for name in node.output if name), "")


def rounded_weight(values: np.ndarray) -> np.ndarray:
    """The nearest fp16 numbers; finite ones beyond its range, the masks of attention among them, are the largest."""
    is_finite = np.isfinite(values)
    return np.where(is_finite, np.clip(values, -FP16_MAX, FP16_MAX), values).astype(np.float16)


def to_fp16(plan: Fp16Plan) -> onnx.ModelProto:
    """The model with fp16 inside; its inputs and outputs have the types that they had."""
    result = onnx.ModelProto()
    result.CopyFrom(plan.model)
    graph = result.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    returned = {value.name for value in graph.output}
    elements = {name: kind.tensor_type.elem_type for name, kind in types_of(graph).items()}
    fp16: set[str] = set()
    other: dict[tuple[str, bool], str] = {}
    nodes: list[onnx.NodeProto] = []

    @functools.cache
    def ends() -> tuple[str, ...]:
        return tuple(
            add_constant(graph, f"fp16_{name}", np.array(value, np.float32))
            for name, value in (("lowest", -FP16_MAX), ("highest", FP16_MAX))
        )

    def cast(name: str, target: str, *, is_fp16: bool) -> onnx.NodeProto:
        return helper.make_node("Cast", [name], [target], to=TensorProto.FLOAT16 if is_fp16 else TensorProto.FLOAT)

    def read(name: str, *, is_fp16: bool) -> str:
        """The name of a tensor in the type that is asked for."""
        if not plan.is_float(name) or (name in fp16) == is_fp16:
            return name
        if (name, is_fp16) not in other:
            suffix = "_fp16" if is_fp16 else "_fp32"
            if name in weights:
                other[name, is_fp16] = add_constant(
                    graph, name + suffix, rounded_weight(numpy_helper.to_array(weights[name]))
                )
            else:
                other[name, is_fp16] = free_name(graph, name + suffix)
                inside = name
                if is_fp16 and plan.is_clamped(name):
                    inside = free_name(graph, name + "_clamped")
                    nodes.append(helper.make_node("Clip", [name, *ends()], [inside]))
                nodes.append(cast(inside, other[name, is_fp16], is_fp16=is_fp16))
        return other[name, is_fp16]

    for position, node in enumerate(plan.model.graph.node):
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        is_cast = node.op_type == "Cast"
        for i, is_fp16 in enumerate(plan.inputs(position)):
            changed.input[i] = node.input[i] if is_cast else read(node.input[i], is_fp16=is_fp16)
        behind = []
        for i, is_fp16 in enumerate(plan.outputs(position)):
            if is_fp16 and node.output[i] in returned:
                changed.output[i] = other[node.output[i], True] = free_name(graph, node.output[i] + "_fp16")
                behind.append(cast(changed.output[i], node.output[i], is_fp16=False))
            elif is_fp16:
                fp16.add(node.output[i])
        if is_cast and (plan.outputs(position)[0] or elements.get(node.output[0]) == TensorProto.FLOAT16):
            # One that has nothing left to do is an Identity.
            is_done = node.input[0] in fp16 or elements.get(node.input[0]) == TensorProto.FLOAT16
            same = helper.make_node("Identity", changed.input, changed.output, node.name)
            changed = same if is_done else cast(changed.input[0], changed.output[0], is_fp16=True)
        nodes += [changed, *behind]
    replace_nodes(graph, nodes)
    drop_unread_weights(graph)
    for value in graph.value_info:
        if value.name in fp16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return infer(result)


def rounded(plan: Fp16Plan, prefix: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto], dict[str, str]]:
    """The nodes of the model once more, in fp32, with every tensor rounded that is fp16; weights for them; and the
    names of their tensors.

    What is fp16 is computed in fp32 and stored, which is what kernels do. Names begin with `prefix`; most weights, and
    inputs, are read where they are.
    """
    nodes: list[onnx.NodeProto] = []
    names = {tensor.name: f"{prefix}{tensor.name}" for tensor in plan.model.graph.initializer if _is_beyond(tensor)}
    weights = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in plan.model.graph.initializer if tensor.name in names
    }
    stored: dict[str, str] = {}
    ends = [f"{prefix}{end}" for end in ("lowest", "highest")]

    def store(name: str) -> str:
        """The tensor as fp16 and back; onnxruntime leaves out no such pair."""
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
    """Whether fp16 cannot hold a finite number of a weight."""
    if tensor.data_type != TensorProto.FLOAT:
        return False
    values = numpy_helper.to_array(tensor)
    return bool(np.any(np.isfinite(values) & (np.abs(values) > FP16_MAX)))


def without_batch_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Batch norms of constants as a product and a sum, whose constants are computed in double precision: fp16 would
    lose a small variance.

    Relax would fold each constant by a kernel of its own, which takes longer than all else for a network of many.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    shapes = shapes_of(model.graph)
    found = [n for n in model.graph.node if n.op_type == "BatchNormalization" and n.input[0] in shapes]
    norms = {n.output[0] for n in found if all(name in weights for name in n.input[1:])}
    if not norms:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    prefix = free_prefix(result.graph, "batch_norm")
    for node in model.graph.node:
        given = {a.name: a.i for a in node.attribute if a.name in ("training_mode", "spatial")}
        if (
            not norms & {*node.output[:1]}
            or len([name for name in node.output if name]) > 1
            or given.get("training_mode", 0)
            or not given.get("spatial", 1)
        ):
            nodes.append(node)
            continue
        gamma, beta, mean, variance = (
            numpy_helper.to_array(weights[name]).astype(np.float64) for name in node.input[1:]
        )
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        scale = gamma / np.sqrt(variance + epsilon)
        sides = (-1, *(1,) * (len(shapes[node.input[0]]) - 2))
        names = [f"{prefix}/{node.output[0]}/{what}" for what in ("scale", "shift", "scaled")]
        constants = [values.reshape(sides).astype(np.float32) for values in (scale, beta - mean * scale)]
        result.graph.initializer.extend(
            numpy_helper.from_array(values, name) for values, name in zip(constants, names, strict=False)
        )
        nodes.append(helper.make_node("Mul", [node.input[0], names[0]], names[2:], node.name and f"{node.name}/scale"))
        nodes.append(helper.make_node("Add", [names[2], names[1]], list(node.output[:1]), node.name))
    replace_nodes(result.graph, nodes)
    drop_unread_weights(result.graph)
    return infer(result)


def with_fp16_borders(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float inputs and outputs of fp16; inside, all is as it was."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    weights = {tensor.name for tensor in graph.initializer}
    before: list[onnx.NodeProto] = []
    behind: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for values, casts, to in ((graph.input, before, TensorProto.FLOAT), (graph.output, behind, TensorProto.FLOAT16)):
        for value in values:
            if (
                value.type.tensor_type.elem_type == TensorProto.FLOAT
                and value.name not in weights
                and value.name not in renamed
            ):
                renamed[value.name] = inside = free_name(graph, value.name + "_fp32")
                ends = [value.name, inside] if to == TensorProto.FLOAT else [inside, value.name]
                casts.append(helper.make_node("Cast", ends[:1], ends[1:], to=to))
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
    _rename(graph, renamed)
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    replace_nodes(graph, [*before, *graph.node, *behind])
    del graph.value_info[:]
    return infer(result)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)
