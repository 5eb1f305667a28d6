"""Split a model into a compiled part and sub-models that onnxruntime runs on the host between kernels.

    Conv -> NonZero -> Gather -> ...        ->        Conv -> romou.HostNodes(model=..., outputs=...) -> ...

Host nodes with no device node between them form one sub-model. Its node in the split graph is imported as a call of the
packed function "romou.host_nodes".
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from romou.base.errors import ModelError, first_line
from romou.compiler.frontend.host_runner import host_runner
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import drop_unread_weights, inputs_of, shapes_of, type_name, types_of
from tvm_patches.host_nodes import DOMAIN, OPERATOR
from tvm_patches.short_types import STORAGE

_PLAIN = (
    "FLOAT",
    "FLOAT16",
    "DOUBLE",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "BOOL",
)
# Types that NumPy has only by ml_dtypes. onnxruntime does not accept such arrays, and kernels store them as integers.
SHORT = frozenset(kind for kind in onnx.TensorProto.DataType.values() if kind and type_name(kind) in STORAGE)
# Element types that a device's tensors hold.
CARRIED = frozenset(getattr(onnx.TensorProto, name) for name in _PLAIN) | SHORT


@dataclass(frozen=True, kw_only=True)
class SplitModel:
    """A model without its host nodes.

    model: the compiled part, with one HostNodes node for each sub-model.
    groups: names of the nodes of each sub-model, see `node_name`.
    """

    model: onnx.ModelProto
    groups: tuple[tuple[str, ...], ...] = ()


def node_name(node: onnx.NodeProto) -> str:
    """Return a node's operator and name, or its first output if it has no name: 'NonZero (/mask/NonZero)'."""
    return f"{node.op_type} ({node.name or next((name for name in node.output if name), '')})"


class Values:
    """The constants, shapes, types and producers of a model's tensors, completed by shape inference."""

    def __init__(self, model: onnx.ModelProto) -> None:
        # Inference raises many types. Nodes of unknown shapes will run on the host.
        with contextlib.suppress(Exception):
            model = infer(model)
        graph = model.graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.shapes = shapes_of(graph)
        self.types = types_of(graph)
        self.types.update(
            {t.name: onnx.helper.make_tensor_type_proto(t.data_type, list(t.dims)) for t in graph.initializer}
        )
        self.producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the static shape of a tensor, or None."""
        return self.shapes.get(name)

    def is_carried(self, name: str) -> bool:
        """Return whether a tensor has a type that can be copied between device and host."""
        return name in self.types and self.types[name].tensor_type.elem_type in CARRIED

    def kind_of(self, node: onnx.NodeProto) -> bytes:
        """Return a key that is equal for nodes that differ only in names and in the values of large constants."""
        bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        parts = [bare.SerializeToString(deterministic=True)]
        for name in (*inputs_of(node), *node.output):
            constant = self.constants.get(name)
            is_small = constant is not None and int(np.prod(constant.dims)) <= 64
            if constant is not None and is_small:
                parts.append(onnx.numpy_helper.to_array(constant).tobytes())
            parts.append(self.types[name].SerializeToString(deterministic=True) if name in self.types else b"")
        return b"|".join(parts)

    def is_static(self, node: onnx.NodeProto) -> bool:
        """Return whether a node reads and writes only tensors of static shapes that can be copied to the host."""
        return all(
            self.is_carried(name) and self.shape(name) is not None for name in (*inputs_of(node), *node.output) if name
        )


def split(model: onnx.ModelProto, on_host: set[int]) -> SplitModel:
    """Put the nodes at positions `on_host`, and all nodes that depend on them for a type or shape, into sub-models.

    Raises
    ------
    ModelError
        A graph input or output has a type that cannot be copied, or onnxruntime rejects a sub-model.
    """
    if not on_host:
        return SplitModel(model=model)
    values = Values(model)
    nodes = list(model.graph.node)
    on_host = _closed(nodes, on_host, values)
    levels = _levels(nodes, on_host, values)
    outside = {value.name for value in model.graph.output}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.value_info[:]
    if all(opset.domain != DOMAIN for opset in result.opset_import):
        result.opset_import.add(domain=DOMAIN, version=1)
    groups = []
    readers = _readers(nodes)
    for level in range(max(levels) + 1):
        group = [nodes[i] for i in range(len(nodes)) if levels[i] == level and i in on_host]
        rest = [nodes[i] for i in range(len(nodes)) if levels[i] == level and i not in on_host]
        if group:
            made = {name for node in group for name in node.output if name}

            def is_needed(name: str, level: int = level) -> bool:
                return name in outside or any(i not in on_host or levels[i] != level for i in readers.get(name, ()))

            outputs = [name for node in group for name in node.output if is_needed(name)]
            inputs = [
                name
                for name in dict.fromkeys(n for node in group for n in inputs_of(node))
                if name not in made and name not in values.constants
            ]
            result.graph.node.append(_host_node(model, group, inputs, outputs, values))
            groups.append(tuple(node_name(node) for node in group))
        result.graph.node.extend(rest)
    drop_unread_weights(result.graph)
    return SplitModel(model=result, groups=tuple(groups))


def _closed(nodes: Sequence[onnx.NodeProto], on_host: set[int], values: Values) -> set[int]:
    """Return the nodes, and all nodes that they exchange dynamic or uncopyable tensors with."""
    closed, readers, reads = set(on_host), _readers(nodes), [inputs_of(node) for node in nodes]
    while True:
        made = {name for i in closed for name in nodes[i].output if name}
        more = {
            i
            for i, node in enumerate(nodes)
            if i not in closed
            and (
                any(name in made and (values.shape(name) is None or not values.is_carried(name)) for name in reads[i])
                or any(
                    j in closed and not values.is_carried(name)
                    for name in reads[i]
                    if (j := values.producer.get(name)) is not None
                )
                or any(
                    not values.is_carried(name) for name in node.output if not closed.isdisjoint(readers.get(name, ()))
                )
            )
        }
        if not more:
            return closed
        closed |= more


def _readers(nodes: Sequence[onnx.NodeProto]) -> dict[str, list[int]]:
    """Return (tensor -> positions of the nodes that read it)."""
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        for name in inputs_of(node):
            readers.setdefault(name, []).append(i)
    return readers


def _levels(nodes: Sequence[onnx.NodeProto], on_host: set[int], values: Values) -> list[int]:
    """Return, for each node, the number of transfers from device to host on the way to it.

    Host nodes of one level do not depend on each other through the device, so they form one sub-model.
    """
    levels: list[int] = []
    for i, node in enumerate(nodes):
        level = 0
        for name in inputs_of(node):
            j = values.producer.get(name)
            if j is not None:
                level = max(level, levels[j] + (i in on_host and j not in on_host))
        levels.append(level)
    return levels


def _host_node(
    model: onnx.ModelProto,
    group: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    values: Values,
) -> onnx.NodeProto:
    nodes = [node_name(node) for node in group]
    names = ", ".join(nodes)
    for name in (*inputs, *outputs):
        if not values.is_carried(name):
            raise ModelError(
                f"{names} would run on the host, but {name!r} has a type that cannot be copied there:"
                f" {_type_name(values, name)}"
            )

    def infos(chosen: Sequence[str]) -> list[onnx.ValueInfoProto]:
        return [onnx.helper.make_value_info(name, values.types[name]) for name in chosen]

    constants = [
        values.constants[name]
        for name in dict.fromkeys(n for node in group for n in inputs_of(node))
        if name in values.constants
    ]
    # A tensor without elements is copied as a constant of the sub-model, because TVM cannot load an empty constant.
    empty = {name: array for name in inputs if (array := _ones(values, name)) is not None and not array.size}
    constants += [onnx.numpy_helper.from_array(array, name) for name, array in empty.items()]
    inputs = [name for name in inputs if name not in empty]
    graph = onnx.helper.make_graph(list(group), "host", infos(inputs), infos(outputs), constants)
    sub = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )
    types = [(type_name(values.types[n].tensor_type.elem_type), _dims(values, n)) for n in outputs]
    text = json.dumps({"model": base64.b64encode(sub.SerializeToString()).decode(), "outputs": types, "nodes": nodes})
    try:
        runner = host_runner(text)
        arrays = [array for name in inputs if (array := _ones(values, name)) is not None]
        # Ones are wrong for integer inputs such as shapes, axes, indices or lengths. With floats, only a broken graph
        # fails.
        if len(arrays) == len(inputs) and all(
            array.dtype.name in ("float16", "float32", "float64", "bool") for array in arrays
        ):
            runner.attempt(arrays)
    except Exception as error:  # onnxruntime and onnx raise many types
        reason = first_line(error)
        raise ModelError(
            f"neither TVM nor onnxruntime can run {names}: {reason}",
            hint="Replace the operator, or export with another opset.",
        ) from error
    return onnx.helper.make_node(OPERATOR, list(inputs), list(outputs), domain=DOMAIN, text=text)


def _dims(values: Values, name: str) -> list[int] | int | None:
    """Return the shape, or only the rank if that is all that is known, or None."""
    shape = values.shape(name)
    if shape is not None:
        return list(shape)
    tensor = values.types[name].tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _ones(values: Values, name: str) -> np.ndarray | None:
    shape = values.shape(name)
    return (
        None
        if shape is None
        else np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(values.types[name].tensor_type.elem_type))
    )


def _type_name(values: Values, name: str) -> str:
    kind = values.types.get(name)
    if kind is None or not kind.HasField("tensor_type"):
        return "unknown" if kind is None else str(kind.WhichOneof("value")).removesuffix("_type")
    return str(onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type)).lower()


def alone(model: onnx.ModelProto, node: onnx.NodeProto, values: Values) -> onnx.ModelProto:
    """Return a model of one node, with its constants."""
    inputs = [name for name in inputs_of(node) if name not in values.constants]
    constants = [values.constants[name] for name in inputs_of(node) if name in values.constants]

    def infos(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        return [onnx.helper.make_value_info(name, values.types[name]) for name in names]

    graph = onnx.helper.make_graph(
        [node], "alone", infos(inputs), infos([name for name in node.output if name]), constants
    )
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )
