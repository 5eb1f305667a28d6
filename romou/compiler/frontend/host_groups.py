"""Split a model into a compiled part and sub-models that onnxruntime runs on the host between kernels.

    Conv -> NonZero -> Gather -> ...        ->        Conv -> romou.HostNodes(model=..., outputs=...) -> ...

Host nodes with no device node between them form one sub-model. Its node in the split graph is imported as a call of the
packed function "romou.host_nodes".
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx

from romou.base.errors import ModelError, first_line
from romou.compiler.frontend.host_runner import host_runner
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import Graph, first_output, inputs_of, type_name
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


class Values(Graph):
    """A model's graph, completed by shape inference."""

    def __init__(self, model: onnx.ModelProto) -> None:
        # Inference raises many types. Nodes of unknown shapes will run on the host.
        with contextlib.suppress(Exception):
            model = infer(model)
        super().__init__(model)

    def read_by(self, nodes: Sequence[onnx.NodeProto]) -> list[str]:
        """Return the tensors that nodes read and do not compute themselves."""
        made = {name for node in nodes for name in node.output}
        return [name for name in dict.fromkeys(n for node in nodes for n in inputs_of(node)) if name not in made]

    def part(
        self,
        nodes: Sequence[onnx.NodeProto],
        outputs: Iterable[str],
        constants: Mapping[str, onnx.TensorProto] = MappingProxyType({}),
    ) -> onnx.ModelProto:
        """Return a model of some nodes. constants: tensors that are constants of it besides weights."""
        read, weights = self.read_by(nodes), {**self.weights, **constants}
        inputs, results = (
            [onnx.helper.make_value_info(name, self.types[name]) for name in names]
            for names in ((name for name in read if name not in weights), outputs)
        )
        kept = [weights[name] for name in read if name in weights]
        graph, given = onnx.helper.make_graph(nodes, "host", inputs, results, kept), self.model
        return onnx.ModelProto(
            ir_version=given.ir_version, opset_import=given.opset_import, functions=given.functions, graph=graph
        )

    def is_carried(self, name: str) -> bool:
        """Return whether a tensor has a type that can be copied between device and host."""
        return self.elements.get(name) in CARRIED

    def kind_of(self, node: onnx.NodeProto) -> bytes:
        """Return a key that is equal for nodes that differ only in names and in the values of large constants."""
        bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        parts = [bare.SerializeToString(deterministic=True)]
        for name in (*inputs_of(node), *node.output):
            constant = self.weights.get(name)
            is_small = constant is not None and int(np.prod(constant.dims)) <= 64
            if constant is not None and is_small:
                parts.append(onnx.numpy_helper.to_array(constant).tobytes())
            parts.append(self.types[name].SerializeToString(deterministic=True) if name in self.types else b"")
        return b"|".join(parts)

    def is_static(self, node: onnx.NodeProto) -> bool:
        """Return whether a node reads and writes only tensors of static shapes that can be copied to the host."""
        return all(self.is_carried(name) and name in self.shapes for name in (*inputs_of(node), *node.output) if name)


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
    before, nodes = values.nodes, list[onnx.NodeProto]()
    moved = _closed(values, {first_output(before[i]) for i in on_host})
    level_of = _levels(values, moved)
    groups = []
    for level in range(max(level_of.values()) + 1):
        of_level = [node for node in before if level_of[first_output(node)] == level]
        group = [node for node in of_level if first_output(node) in moved]
        if group:
            inside = {first_output(node) for node in group}

            def is_needed(name: str, inside: Set[str] = inside) -> bool:
                return name in values.returned or any(first_output(each) not in inside for each, _ in values.uses(name))

            nodes.append(_host_node(group, [n for node in group for n in node.output if is_needed(n)], values))
            groups.append(tuple(node_name(node) for node in group))
        nodes.extend(node for node in of_level if first_output(node) not in moved)
    values.order(nodes)
    values.import_domain(DOMAIN)
    result = values.result()
    del result.graph.value_info[:]
    # A kernel that reads a short type from the host would take its bits for numbers.
    kinds = {name: values.elements.get(name, 0) for node in nodes for name in node.output}
    short = {name: kind for name, kind in kinds.items() if kind in SHORT and name not in values.returned}
    result.graph.value_info.extend(onnx.helper.make_tensor_value_info(*each, None) for each in short.items())
    return SplitModel(model=result, groups=tuple(groups))


def _closed(values: Values, on_host: Set[str]) -> set[str]:
    """Return the nodes, and all nodes that they exchange dynamic or uncopyable tensors with, by their first outputs."""
    closed = set(on_host)

    def follows(node: onnx.NodeProto) -> bool:
        bound = [name for name in inputs_of(node) if name not in values.shapes or not values.is_carried(name)]
        makers = [values.producers[name] for name in bound if name in values.producers]
        readers = [each for name in node.output if not values.is_carried(name) for each, _ in values.uses(name)]
        return any(first_output(each) in closed for each in (*makers, *readers))

    while True:
        more = {first_output(node) for node in values.nodes if first_output(node) not in closed and follows(node)}
        if not more:
            return closed
        closed |= more


def _levels(values: Values, on_host: Set[str]) -> dict[str, int]:
    """Return, for each node, the number of transfers from device to host on the way to it.

    Host nodes of one level do not depend on each other through the device, so they form one sub-model.
    """
    levels: dict[str, int] = {}
    for node in values.nodes:
        makers = [first_output(values.producers[name]) for name in inputs_of(node) if name in values.producers]
        is_moved = first_output(node) in on_host
        steps = [levels[maker] + (is_moved and maker not in on_host) for maker in makers]
        levels[first_output(node)] = max(steps, default=0)
    return levels


def _host_node(group: Sequence[onnx.NodeProto], outputs: Sequence[str], values: Values) -> onnx.NodeProto:
    nodes = [node_name(node) for node in group]
    inputs = [name for name in values.read_by(group) if name not in values.weights]
    names = ", ".join(nodes)
    for name in (*inputs, *outputs):
        if not values.is_carried(name):
            raise ModelError(
                f"{names} would run on the host, but {name!r} has a type that cannot be copied there:"
                f" {_type_name(values, name)}"
            )

    # A tensor without elements is copied as a constant of the sub-model, because TVM cannot load an empty constant.
    ones = {name: _ones(values, name) for name in inputs}
    empty = {name: array for name, array in ones.items() if array is not None and not array.size}
    sub = values.part(group, outputs, {n: onnx.numpy_helper.from_array(array, n) for n, array in empty.items()})
    inputs = [value.name for value in sub.graph.input]
    types = [(type_name(values.elements[n]), _dims(values, n)) for n in outputs]
    text = json.dumps({"model": base64.b64encode(sub.SerializeToString()).decode(), "outputs": types, "nodes": nodes})
    try:
        runner = host_runner(text)
        arrays = [array for name in inputs if (array := ones[name]) is not None]
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
    if name in values.shapes:
        return list(values.shapes[name])
    tensor = values.types[name].tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _ones(values: Values, name: str) -> np.ndarray | None:
    shape = values.shapes.get(name)
    return None if shape is None else np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(values.elements[name]))


def _type_name(values: Values, name: str) -> str:
    kind = values.types.get(name)
    if kind is None or not kind.HasField("tensor_type"):
        return "unknown" if kind is None else str(kind.WhichOneof("value")).removesuffix("_type")
    return str(onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type)).lower()


def alone(node: onnx.NodeProto, values: Values) -> onnx.ModelProto:
    """Return a model of one node, with its constants."""
    return values.part([node], [name for name in node.output if name])
