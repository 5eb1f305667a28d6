"""Unroll loops whose number of iterations follows from constants, and inline branches.

An If with a computed condition becomes both branches and a Where, because branches have no side effects. All other
control flow stays and runs on the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from romou.base.errors import first_line
from romou.compiler.frontend.expand import expand_functions, renamed
from romou.compiler.frontend.fold import fold, is_pure
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import Graph, attributes_of, inputs_of, rule
from romou.compiler.frontend.onnxruntime_session import cpu_session

# Depth of nested loops.
_MAX_NESTING = 4
# Unrolled loops of more nodes would take minutes to build.
_MAX_NODES = 2048
# (Iteration, condition and states before it) -> condition and states after it, None if not constant.
_Step = Callable[[int, Sequence["np.ndarray | None"]], "list[np.ndarray | None]"]

logger = logging.getLogger("romou")


def unroll(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the folded model with its control flow unrolled, and folded again. Nested loops take a round each."""
    for _ in range(_MAX_NESTING):
        unrolled = _unrolled(model)
        if unrolled is model:
            break
        model = fold(expand_functions(unrolled))
    return model


@rule("If", "Loop", "Scan", after=infer)
def _unrolled(node: onnx.NodeProto, graph: Graph) -> None:
    nodes = {"If": _branch, "Loop": _loop, "Scan": _scan}[node.op_type](node, graph)
    if nodes is not None:
        graph.replace(node, *nodes)


def _branch(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replace an If by the taken branch, or by both branches and a Where."""
    branches = {a.name: a.g for a in node.attribute}
    chosen = graph.array(node.input[0])
    tag = f"_of_{node.output[0]}"
    if chosen is not None:
        return _body(branches["then_branch" if chosen.item() else "else_branch"], {}, list(node.output), tag)
    results = {name: [f"{output}_{name}" for output in node.output] for name in ("then_branch", "else_branch")}
    kinds = [[(v.type.tensor_type.elem_type, _extents(v)) for v in branches[name].output] for name in results]
    if kinds[0] != kinds[1] or any(extents is None or not dtype for dtype, extents in kinds[0]):
        return None
    nodes = [
        inner for name, outputs in results.items() for inner in _body(branches[name], {}, outputs, f"{tag}_{name}")
    ]
    condition = f"condition{tag}"
    nodes.append(helper.make_node("Reshape", [node.input[0], f"{condition}_shape"], [condition]))
    nodes.insert(0, _constant(f"{condition}_shape", np.zeros(0, np.int64)))
    for output, yes, no in zip(node.output, *results.values(), strict=True):
        nodes.append(helper.make_node("Where", [condition, yes, no], [output]))
    return nodes


def _scan(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replace a Scan by its body, once for each slice of the scanned inputs."""
    attributes = attributes_of(node)
    body: onnx.GraphProto = attributes["body"]
    scanned = attributes["num_scan_inputs"]
    states = len(node.input) - scanned
    axes = attributes.get("scan_input_axes", [0] * scanned)
    sequences = node.input[states:]
    if graph.opset < 9 or any(name not in graph.shapes for name in sequences):
        return None
    steps = graph.shapes[sequences[0]][axes[0]]
    if steps * max(1, len(body.node)) > _MAX_NODES:
        return None
    backwards = attributes.get("scan_input_directions", [0] * scanned)
    unrolled = _Unrolled(graph.opset, node.output[0])
    state = list(node.input[:states])
    for step in range(steps):
        at = [steps - 1 - step if is_back else step for is_back in backwards]
        slices = [
            unrolled.taken(name, len(graph.shapes[name]), axis, i)
            for name, axis, i in zip(sequences, axes, at, strict=True)
        ]
        state = unrolled.step(body, [*state, *slices], states)
    return unrolled.finish(
        node, state, attributes.get("scan_output_axes", []), attributes.get("scan_output_directions", []), body
    )


def _loop(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replace a Loop by its body, once for each iteration, if constants decide the number of iterations."""
    body = node.attribute[0].g
    if any(not value.type.HasField("tensor_type") for value in (*body.input, *body.output)):
        return None
    iterations = _iterations(node, graph, body)
    if iterations is None or iterations * max(1, len(body.node)) > _MAX_NODES:
        return None
    unrolled = _Unrolled(graph.opset, node.output[0])
    unrolled.nodes.append(_constant(f"true_of_{node.output[0]}", np.array(True)))
    state = list(node.input[2:])
    for step in range(iterations):
        number = f"step_{step}_of_{node.output[0]}"
        unrolled.nodes.append(_constant(number, np.array(step, np.int64)))
        state = unrolled.step(body, [number, f"true_of_{node.output[0]}", *state], len(state), skipped=1)
    return unrolled.finish(node, state, [], [], body, skipped=1)


def _iterations(node: onnx.NodeProto, graph: Graph, body: onnx.GraphProto) -> int | None:
    """Return the number of iterations of a Loop, or None if it depends on data or `_MAX_NODES` forbids it."""
    given = [graph.array(name) for name in node.input]
    if any(name and value is None for name, value in zip(node.input[:2], given, strict=False)):
        return None
    most = _MAX_NODES // max(1, len(body.node))
    limit = most + 1 if given[0] is None else max(0, int(given[0].item()))
    begins = given[1] if len(given) > 1 and given[1] is not None else np.array(True)
    values = [begins, *given[2:]]
    condition = _condition(graph, body, values) if limit > 1 else None
    for iteration in range(limit):
        if iteration and condition is None:
            return None
        if iteration and condition is not None:
            values = condition(iteration - 1, values)
        if values[0] is None or not values[0].item():
            return iteration
        if iteration == most:
            return None
    return limit


def _condition(graph: Graph, body: onnx.GraphProto, values: Sequence[np.ndarray | None]) -> _Step | None:
    """Return the function that computes a Loop's condition for the next iteration, or None if it reads data.

    It maps (iteration, condition and states before) to condition and states after. The condition may read the
    iteration, constants, and states that are computed from these only; all other states are None.

    values: condition and states before the first iteration, None if not constant.
    """
    inputs = {value.name: at for at, value in enumerate(body.input)}
    weights = {tensor.name: tensor for tensor in body.initializer}
    wanted: list[int] = []
    pending = [0]
    nodes: dict[int, onnx.NodeProto] = {}
    while pending:
        wanted.append(pending.pop())
        needed, leaves = _slice(body, body.output[wanted[-1]].name)
        nodes |= needed
        for name in leaves:
            at = inputs.get(name, 0) - 1
            if name in inputs and at >= 0:
                if values[at] is None:
                    return None
                pending += [at] if at not in (*wanted, *pending) else []
            elif (value := graph.array(name)) is not None:
                weights[name] = numpy_helper.from_array(value, name)
            elif name not in inputs and name not in weights:
                return None
    if any(not is_pure(node) for node in nodes.values()):
        return None
    decision = helper.make_graph(
        [nodes[at] for at in sorted(nodes)],
        "condition",
        [value for value in body.input if inputs[value.name] == 0 or inputs[value.name] - 1 in wanted],
        [body.output[at] for at in wanted],
        list(weights.values()),
    )
    try:
        session = cpu_session(
            helper.make_model(decision, opset_imports=graph.model.opset_import, ir_version=graph.model.ir_version)
        )
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.info("a loop's condition is not computed: %s", first_line(error))
        return None

    def step(iteration: int, before: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        all_inputs = [np.array(iteration, np.int64), *before]
        after = session.run(None, {value.name: all_inputs[inputs[value.name]] for value in decision.input})
        results = dict(zip(wanted, after, strict=True))
        return [results.get(at) for at in range(len(before))]

    return step


class _Unrolled:
    """The nodes of an unrolled loop, and the scan outputs of each step."""

    def __init__(self, opset: int, tag: str) -> None:
        self.opset, self.tag = opset, tag
        self.nodes: list[onnx.NodeProto] = []
        self.rows: list[list[str]] = []

    def step(self, body: onnx.GraphProto, inputs: Sequence[str], states: int, *, skipped: int = 0) -> list[str]:
        """Append one run of the body, and return the state after it. skipped: number of outputs before the state."""
        tag = f"_{len(self.rows)}_of_{self.tag}"
        outputs = [f"out{i}{tag}" for i in range(len(body.output))]
        self.nodes.extend(_body(body, dict(zip((v.name for v in body.input), inputs, strict=True)), outputs, tag))
        self.rows.append(outputs[skipped + states :])
        return outputs[skipped : skipped + states]

    def taken(self, name: str, rank: int, axis: int, index: int) -> str:
        """Append nodes that take index `index` along `axis` of a tensor, and return the result's name."""
        axis %= rank
        result = f"{name}_at_{index}_{len(self.rows)}_of_{self.tag}"
        numbers = {
            key: np.array([value], np.int64) for key, value in (("from", index), ("to", index + 1), ("axis", axis))
        }
        self.nodes.extend(_constant(f"{result}_{key}", value) for key, value in numbers.items())
        if self.opset >= 10:
            self.nodes.append(
                helper.make_node("Slice", [name, *(f"{result}_{key}" for key in numbers)], [f"{result}_row"])
            )
        else:
            self.nodes.append(
                helper.make_node("Slice", [name], [f"{result}_row"], starts=[index], ends=[index + 1], axes=[axis])
            )
        self._axis_node("Squeeze", f"{result}_row", result, axis)
        return result

    def finish(
        self,
        node: onnx.NodeProto,
        state: Sequence[str],
        axes: Sequence[int],
        directions: Sequence[int],
        body: onnx.GraphProto,
        *,
        skipped: int = 0,
    ) -> list[onnx.NodeProto] | None:
        """Return all nodes, with the last state under the outputs' names and the scan outputs stacked."""
        for output, last in zip(node.output, state, strict=False):
            if output:
                self.nodes.append(helper.make_node("Identity", [last], [output]))
        for k, output in enumerate(node.output[len(state) :]):
            axis, value = axes[k] if k < len(axes) else 0, body.output[skipped + len(state) + k]
            extents = _extents(value)
            if axis < 0 or not self.rows:
                if extents is None:
                    return None
                axis %= len(extents) + 1
            rows = [row[k] for row in self.rows]
            if extents is not None and not rows:
                dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                self.nodes.append(_constant(output, np.zeros((*extents[:axis], 0, *extents[axis:]), dtype)))
                continue
            if k < len(directions) and directions[k]:
                rows.reverse()
            for row in rows:
                self._axis_node("Unsqueeze", row, f"{row}_stacked", axis)
            self.nodes.append(helper.make_node("Concat", [f"{row}_stacked" for row in rows], [output], axis=axis))
        return self.nodes

    def _axis_node(self, operator: str, name: str, result: str, axis: int) -> None:
        if self.opset >= 13:
            self.nodes.append(_constant(f"{result}_axes", np.array([axis], np.int64)))
            self.nodes.append(helper.make_node(operator, [name, f"{result}_axes"], [result]))
        else:
            self.nodes.append(helper.make_node(operator, [name], [result], axes=[axis]))


def _slice(graph: onnx.GraphProto, name: str) -> tuple[dict[int, onnx.NodeProto], set[str]]:
    """Return the nodes that a value is computed from, by their positions, and the values that no node computes."""
    producers = {output: at for at, node in enumerate(graph.node) for output in node.output if output}
    nodes: dict[int, onnx.NodeProto] = {}
    leaves: set[str] = set()
    pending = [name]
    while pending:
        name = pending.pop()
        if name not in producers:
            leaves.add(name)
        elif producers[name] not in nodes:
            node = nodes[producers[name]] = graph.node[producers[name]]
            pending += inputs_of(node)
    return nodes, leaves


def _body(graph: onnx.GraphProto, inputs: dict[str, str], outputs: Sequence[str], tag: str) -> list[onnx.NodeProto]:
    """Return a subgraph's nodes: inputs and outputs have the caller's names, all other names the suffix `tag`."""
    own = {name for node in graph.node for name in node.output if name} | {tensor.name for tensor in graph.initializer}
    names = {**{name: name + tag for name in own}, **inputs}
    nodes = [_constant(names[tensor.name], numpy_helper.to_array(tensor)) for tensor in graph.initializer]
    outer = {name: name for node in graph.node for name in inputs_of(node) if name not in names}
    nodes += [renamed(node, {**outer, **names}, {}, tag) for node in graph.node]
    nodes += [
        helper.make_node("Identity", [names.get(value.name, value.name)], [output])
        for value, output in zip(graph.output, outputs, strict=True)
        if output
    ]
    return nodes


def _constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def _extents(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)
