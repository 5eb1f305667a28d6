"""The graph that rules rewrite, with producers, readers and constants, and what ONNX protos say about tensors.

@rule("Sum")
def pairs(node: onnx.NodeProto, graph: Graph) -> None:
    if len(node.input) == 2:
        graph.replace(node, helper.make_node("Add", node.input, node.output, node.name))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, Concatenate, ParamSpec

import numpy as np
import onnx
import onnx.checker
from google.protobuf.message import EncodeError
from onnx import helper, numpy_helper

from romou.base.errors import ModelError

# Attribute of a Constant -> field and type of its value.
_PLAIN_VALUES = {
    "value_int": ("i", "int64"),
    "value_ints": ("ints", "int64"),
    "value_float": ("f", "float32"),
    "value_floats": ("floats", "float32"),
}
# Tensor name -> shape, only for static shapes.
Shapes = dict[str, tuple[int, ...]]
# The IR version that lists weights among the inputs. Later ones need not, and some exporters of it did not.
_LISTS_WEIGHTS = 3
# Operators that change no value.
MOVES = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
REDUCTIONS = frozenset(
    f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)


def type_name(element: int) -> str:
    """Return NumPy's name of an ONNX element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).name


def shapes_of(graph: onnx.GraphProto) -> Shapes:
    """Return the static shapes of a graph's tensors."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if (
            value.type.HasField("tensor_type")
            and tensor.HasField("shape")
            and all(d.HasField("dim_value") for d in tensor.shape.dim)
        ):
            shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return shapes


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Return the types of inputs, outputs and tensors that shape inference has recorded, by name."""
    return {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's standard operators that a model imports."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def constant_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return initializers, and the tensors of numbers of Constant nodes, by name."""
    values = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for name, attribute in zip(node.output, node.attribute if node.op_type == "Constant" else (), strict=False):
            if attribute.name == "value":
                values[name] = attribute.t
            elif attribute.name in _PLAIN_VALUES:
                field, dtype = _PLAIN_VALUES[attribute.name]
                values[name] = numpy_helper.from_array(np.array(getattr(attribute, field), dtype), name)
    return values


P = ParamSpec("P")
STANDARD = ("", "ai.onnx")


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


class Graph:
    """A model that is being rewritten. The model itself stays as it is, and shares its weights with the result.

    weights: initializers by name.
    constants: initializers and the tensors of Constant nodes, by name.
    producers: tensor -> the node that computes it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.weights: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.constants = constant_tensors(model.graph)
        self.returned = {value.name for value in model.graph.output}
        self.opset = opset_of(model)
        self._domains: list[str] = []
        self._made: dict[str, str] = {}
        self.order([onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node])
        self.has_changed = False

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """Copies of the model's nodes, in order. Rules may change them in place, if they call `touch`."""
        return [node for slot in self._slots for node in slot]

    def order(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Make these all nodes of the graph, in this order."""
        self.has_changed = True
        # What stands in place of each of the nodes. The index is kept at each change, because a rule reads it anew.
        self._slots = [[node] for node in nodes]
        self._held: dict[int, tuple[int, list[tuple[int, str]], list[str]]] = {}
        self._uses: dict[str, dict[tuple[int, int], onnx.NodeProto]] = {}
        self.producers: dict[str, onnx.NodeProto] = {}
        for slot, node in enumerate(nodes):
            self._hold(node, slot)

    def _hold(self, node: onnx.NodeProto, slot: int) -> None:
        """Add a node to the index."""
        reads = [*enumerate(node.input), *((-1, name) for name in captured(node))]
        self._held[id(node)] = slot, reads, list(node.output)
        for index, name in reads:
            self._uses.setdefault(name, {})[id(node), index] = node
        self.producers.update((name, node) for name in node.output if name)

    def _release(self, node: onnx.NodeProto) -> int:
        """Remove a node from the index, and return its slot."""
        slot, reads, made = self._held.pop(id(node))
        for index, name in reads:
            self._uses[name].pop((id(node), index), None)
        for name in made:
            if self.producers.get(name) is node:
                del self.producers[name]
        return slot

    def _place(self, use: tuple[onnx.NodeProto, int]) -> tuple[int, int, int]:
        node, index = use
        slot = self._held[id(node)][0]
        return slot, next(at for at, each in enumerate(self._slots[slot]) if each is node), index

    @cached_property
    def shapes(self) -> Shapes:
        """Static shapes of the model's tensors."""
        return shapes_of(self.model.graph)

    @cached_property
    def types(self) -> dict[str, onnx.TypeProto]:
        """Types of the model's tensors."""
        given = self.constants.items()
        constants = {name: helper.make_tensor_type_proto(each.data_type, each.dims) for name, each in given}
        return types_of(self.model.graph) | constants

    @cached_property
    def elements(self) -> dict[str, int]:
        """Element types of the model's tensors."""
        return {name: kind.tensor_type.elem_type for name, kind in self.types.items()}

    @cached_property
    def _taken(self) -> set[str]:
        graph = self.model.graph
        named = {each.name for each in (*graph.initializer, *graph.input)}
        return named.union(*((*node.input, *node.output) for node in graph.node))

    def uses(self, name: str) -> list[tuple[onnx.NodeProto, int]]:
        """Return the nodes that read a tensor in order, with the index of the input. It is -1 for a subgraph's."""
        uses = ((node, index) for (_, index), node in self._uses.get(name, {}).items() if name)
        return sorted(uses, key=self._place)

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """Return the node that alone reads a tensor, once. Outputs and what subgraphs read have none."""
        uses = [] if name in self.returned else list(self._uses.get(name, {}).items())
        return uses[0][1] if len(uses) == 1 and uses[0][0][1] >= 0 else None

    def array(self, name: str) -> np.ndarray | None:
        """Return the value of a constant, or None for any other tensor."""
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def free(self, wanted: str) -> str:
        """Return an unused name, and reserve it."""
        while wanted in self._taken:
            wanted += "_"
        self._taken.add(wanted)
        return wanted

    def constant(self, wanted: str, value: np.ndarray) -> str:
        """Add a constant under an unused name, and return the name."""
        return self.define(self.free(wanted), value)

    def define(self, name: str, value: np.ndarray | onnx.TensorProto) -> str:
        """Make a constant of a tensor that no node computes, and return its name."""
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value))
        tensor.name = name
        self.weights[name] = self.constants[name] = tensor
        return name

    def once(self, wanted: str, make: Callable[[str], str]) -> str:
        """Return the name that `make` gave for the name `wanted`, which is called once."""
        if wanted not in self._made:
            self._made[wanted] = make(wanted)
        return self._made[wanted]

    def import_domain(self, domain: str) -> None:
        """Declare that nodes of a domain may be used, in its first version if the model imports none."""
        self._domains.append(domain)

    def touch(self, *nodes: onnx.NodeProto) -> None:
        """Say that nodes were changed in place."""
        self.has_changed = True
        for node in nodes:
            self._hold(node, self._release(node))

    def replace(self, node: onnx.NodeProto, *made: onnx.NodeProto) -> None:
        """Put nodes in place of one, which may be among them. Without any, remove it."""
        self.has_changed = True
        slot = self._release(node)
        at = next(at for at, each in enumerate(self._slots[slot]) if each is node)
        self._slots[slot][at : at + 1] = made
        for each in made:
            self._hold(each, slot)

    def absorb(self, node: onnx.NodeProto, before: onnx.NodeProto) -> None:
        """Remove a node. The node `before` computes its first output."""
        self.replace(node)
        before.output[0] = node.output[0]
        self.touch(before)

    def redirect(self, name: str, other: str) -> None:
        """Make the readers of a tensor, which no subgraph reads, read another one."""
        for reader, index in self.uses(name):
            reader.input[index] = other
            self.touch(reader)

    def bypass(self, node: onnx.NodeProto, name: str) -> None:
        """Remove a node. Readers of its first output, which no subgraph reads, read `name` instead."""
        self.redirect(node.output[0], name)
        self.replace(node)

    def result(self, drops: Collection[str] = ()) -> onnx.ModelProto:
        """Return the rewritten model without unread weights, or the model itself if nothing has changed.

        drops: operators whose nodes are dropped if nothing reads them.
        """
        if not self.has_changed:
            return self.model
        result = shallow(self.model, "node", "initializer")
        nodes = _without_unread(self.nodes, self.returned, drops)
        result.graph.node.extend(nodes)
        read = {name for node in nodes for name in inputs_of(node)}
        read |= {value.name for value in (*self.model.graph.input, *self.model.graph.output)}
        result.graph.initializer.extend(tensor for name, tensor in self.weights.items() if name in read)
        imported = {entry.domain for entry in result.opset_import}
        result.opset_import.extend(helper.make_opsetid(each, 1) for each in {*self._domains} - imported)
        return result


def rule(
    *operators: str,
    domain: str | None = "",
    drops: Collection[str] = (),
    after: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None,
) -> Callable[
    [Callable[Concatenate[onnx.NodeProto, Graph, P], None]],
    Callable[Concatenate[onnx.ModelProto, P], onnx.ModelProto],
]:
    """Make a function of a model from one that rewrites a node of the given operators in its graph.

    domain: of the nodes. "" is ONNX's, None any.
    drops: operators whose nodes go if nothing reads them any more.
    after: run on a model that has changed, such as `infer`.
    """

    def decorated(
        rewrite: Callable[Concatenate[onnx.NodeProto, Graph, P], None],
    ) -> Callable[Concatenate[onnx.ModelProto, P], onnx.ModelProto]:
        def is_meant(node: onnx.NodeProto) -> bool:
            domains = STANDARD if domain == "" else (node.domain if domain is None else domain,)
            return node.op_type in operators and node.domain in domains

        @functools.wraps(rewrite)
        def rewritten(model: onnx.ModelProto, *args: P.args, **kwargs: P.kwargs) -> onnx.ModelProto:
            if not any(map(is_meant, model.graph.node)):
                return model
            graph = Graph(model)
            for node in [node for node in graph.nodes if is_meant(node)]:
                rewrite(node, graph, *args, **kwargs)
            result = graph.result(drops)
            return after(result) if after is not None and graph.has_changed else result

        return rewritten

    return decorated


def shallow(model: onnx.ModelProto, *left_out: str) -> onnx.ModelProto:
    """Return a copy of a model without some fields of its graph, which are not copied."""
    copy = onnx.ModelProto()
    for message, target, without in ((model, copy, ("graph",)), (model.graph, copy.graph, left_out)):
        for field, value in message.ListFields():
            if field.name not in without:
                target.MergeFrom(type(target)(**{field.name: value}))
    return copy


def _without_unread(nodes: list[onnx.NodeProto], outputs: set[str], operators: Collection[str]) -> list[onnx.NodeProto]:
    """Return the nodes without those of some operators that nothing reads."""
    read, live = {*outputs}, []
    for node in reversed(nodes):
        if node.op_type not in operators or read & {*node.output}:
            live.append(node)
            read.update(inputs_of(node))
    return live[::-1]


def check(model: onnx.ModelProto) -> None:
    """Raise onnx.checker.ValidationError for a broken model, and ModelError for one that protobuf cannot write.

    Inputs and outputs need no shape, and weights need not be inputs. The checker requires the one, and of models before
    IR version 4 the other, onnxruntime does not.
    """
    version = model.ir_version
    if version == _LISTS_WEIGHTS:
        model.ir_version += 1
    tensors = [
        value.type.tensor_type
        for value in (*model.graph.input, *model.graph.output)
        if value.type.WhichOneof("value") == "tensor_type"
    ]
    bare = [tensor for tensor in tensors if not tensor.HasField("shape")]
    for tensor in bare:
        tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except EncodeError as error:
        raise ModelError(
            "the model in memory is larger than 2 GiB, which protobuf does not write",
            hint="Save it with its weights as external data, and give the path.",
        ) from error
    finally:
        model.ir_version = version
        for tensor in bare:
            tensor.ClearField("shape")


def inputs_of(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node and its subgraphs read from outside, each once."""
    return list(dict.fromkeys(name for name in (*node.input, *captured(node)) if name))


def first_output(node: onnx.NodeProto) -> str:
    """Return the name that identifies a node. Nodes need not have names, but outputs have."""
    return next((name for name in node.output if name), "")


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of values outside of a node's subgraphs that these read."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {name for inner in graph.node for name in inner.output}
            read = [name for inner in graph.node for name in inputs_of(inner)]
            yield from (name for name in (*read, *(value.name for value in graph.output)) if name not in own)
