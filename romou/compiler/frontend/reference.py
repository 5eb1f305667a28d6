"""Reference outputs of a model, from onnxruntime on the CPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from romou.base.errors import ModelError, first_line
from romou.compiler.frontend.onnx_graph import Graph, inputs_of, types_of
from romou.compiler.frontend.onnxruntime_session import cpu_session
from romou.compiler.frontend.wide_nodes import MOVES

logger = logging.getLogger("romou")


def run_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, is_optimized: bool = True
) -> list[np.ndarray] | None:
    """Return the outputs in graph order, or log a warning and return None if onnxruntime cannot run the model."""
    try:
        return reference_outputs(model, inputs, is_optimized=is_optimized)
    except ModelError as error:
        logger.warning("%s", error.message)
        return None


def reference_outputs(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, is_optimized: bool = True
) -> list[np.ndarray]:
    """Return the outputs in graph order. Raise ModelError with the reason if onnxruntime cannot run the model.

    is_optimized: whether onnxruntime may rewrite the graph.
    """
    # onnxruntime 1.32 crashes when it inlines nested branches of constant conditions.
    is_optimized = is_optimized and not any(node.op_type == "If" for node in model.graph.node)
    try:
        session = cpu_session(model, is_optimized=is_optimized)
        return [np.asarray(output) for output in session.run(None, dict(inputs))]
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise ModelError(f"onnxruntime cannot run this model: {first_line(error)}") from error


def time_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> float | None:
    """Return the median milliseconds of a run on this machine's CPU, or None if onnxruntime cannot run the model."""
    try:
        session, given, times = cpu_session(model, is_exact=False), dict(inputs), []
        for _ in range(6):
            begin = time.perf_counter()
            session.run(None, given)
            times.append(time.perf_counter() - begin)
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.warning("onnxruntime cannot run this model, so it is not timed: %s", first_line(error))
        return None
    # The first run allocates.
    return 1e3 * float(np.median(times[1:]))


def relative_l2_error(output: np.ndarray, reference: np.ndarray) -> float:
    """Return |output - reference| / |reference| in fp64.

    It is infinite if shapes differ, or if an element is finite in only one of the two.
    """
    if output.shape != reference.shape:
        return float("inf")
    a, b = output.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    scale = np.linalg.norm(b[finite])
    difference = np.linalg.norm(a[finite] - b[finite])
    if scale == 0.0:
        return 0.0 if difference == 0.0 else float("inf")
    return float(difference / scale)


# Rounding errors that `uncertainties` adds to each tensor, in units in the last place of fp32, and its number of runs.
_ULPS, _RUNS = 16, 2
_QUANTIZING = ("DynamicQuantizeLinear", "QuantizeLinear")
# Operators that jump although they read and write floats.
_JUMPING = frozenset({"Ceil", "Floor", "Hardmax", "Mod", "Round", "Sign", "ThresholdedRelu"})
# Operators that choose or move elements, and so have no rounding error. Others jump if they write integers.
_EXACT = MOVES | _JUMPING | {
    "Abs", "Cast", "Clip", "Compress", "Constant", "DepthToSpace", "Dropout", "GatherElements", "GatherND",
    "GlobalMaxPool", "Max", "MaxPool", "Min", "Neg", "Range", "ReduceMax", "ReduceMin", "Relu", "ScatterElements",
    "ScatterND", "SpaceToDepth", "TopK", "Where",
}  # fmt: skip


def quantizes_at_run_time(model: onnx.ModelProto) -> bool:
    """Return whether the model quantizes activations."""
    return any(node.op_type in _QUANTIZING for node in model.graph.node)


def has_steps(model: onnx.ModelProto) -> bool:
    """Return whether a rounding error may change an element by any amount: floats become integers, or are compared."""
    floats = _floats(model)
    outputs = {name for name, kind in types_of(model.graph).items() if kind.tensor_type.elem_type != TensorProto.FLOAT}
    return any(
        node.op_type in _JUMPING
        or (
            node.op_type not in ("Shape", "Size")
            and not floats.isdisjoint(node.input)
            and not outputs.isdisjoint(node.output)
        )
        for node in model.graph.node
    )


def _floats(model: onnx.ModelProto) -> set[str]:
    return {name for name, kind in types_of(model.graph).items() if kind.tensor_type.elem_type == TensorProto.FLOAT}


def uncertainties(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], reference: Sequence[np.ndarray]
) -> list[np.ndarray | None]:
    """Return by how much the reference itself is uncertain: an array of the shape of each output.

    The model runs twice more, without graph optimization, with a random rounding error of up to 16 units in the last
    place on each input and on each result that is rounded. An element's uncertainty is its larger difference from
    `reference`. It is None for outputs of integers, or if onnxruntime cannot run the model so.
    """
    largest: list[np.ndarray | None] = [None] * len(reference)
    try:
        session = cpu_session(with_rounding_errors(model), is_optimized=False)
        runs = [session.run(None, dict(inputs)) for _ in range(_RUNS)]
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.info("the reference's uncertainty is not known: %s", first_line(error))
        return largest
    for outputs in runs:
        for i, (output, expected) in enumerate(zip(outputs, reference, strict=True)):
            array = np.asarray(output)
            if expected.dtype.kind == "f" and array.shape == expected.shape:
                with np.errstate(invalid="ignore"):
                    difference = np.abs(array.astype(np.float64) - expected.astype(np.float64))
                difference = np.where(np.isfinite(difference), difference, 0)
                known = largest[i]
                largest[i] = difference if known is None else np.maximum(known, difference)
    return largest


def with_rounding_errors(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a random relative error on each fp32 tensor that depends on its inputs and is rounded.

    y = Op(x)   ->   y = Op(x) * RandomUniformLike(Op(x), 1 - 16 ulp, 1 + 16 ulp)
    """
    graph, floats = Graph(model), _floats(model)
    nodes: list[onnx.NodeProto] = []
    step = _ULPS * float(np.finfo(np.float32).eps)

    def add_error(name: str, target: str) -> None:
        factor, seed = graph.free(f"{name}/error"), float(len(nodes) + 1)
        nodes.append(helper.make_node("RandomUniformLike", [name], [factor], low=1 - step, high=1 + step, seed=seed))
        nodes.append(helper.make_node("Mul", [name, factor], [target]))

    # Shapes and what follows from them alone are exact.
    variable = {value.name for value in model.graph.input} - graph.weights.keys()
    moved = {name: graph.free(f"{name}/rounded") for name in sorted(variable & floats)}
    for name, target in moved.items():
        add_error(name, target)
    for node in graph.nodes:
        is_exact = variable.isdisjoint(inputs_of(node)) or node.op_type in ("Shape", "Size")
        node.input[:] = [moved.get(name, name) for name in node.input]
        nodes.append(node)
        if is_exact:
            continue
        variable.update(name for name in node.output if name)
        for i, name in enumerate(node.output):
            if name in floats and node.op_type not in _EXACT:
                node.output[i] = graph.free(f"{name}/exact")
                add_error(node.output[i], name)
    graph.order(nodes)
    return graph.result()
