"""Run sub-models on the host, with onnxruntime, or with onnx's reference for operators and types that it lacks."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from romou.base.errors import DeviceError, first_line
from romou.compiler.frontend.onnx_graph import type_name
from romou.compiler.frontend.onnxruntime_session import cpu_session
from tvm_patches.short_types import restored, stored


@dataclass(frozen=True)
class Runner:
    """A sub-model that is ready to run.

    nodes: names of its nodes.
    run: inputs -> outputs, in order. Raises DeviceError if the sub-model fails.
    attempt: the same without checks. Raises the engine's errors.
    """

    nodes: tuple[str, ...]
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    attempt: Callable[[Sequence[np.ndarray]], object]


@functools.lru_cache(maxsize=256)
def host_runner(text: str) -> Runner:
    """Return the cached runner of a sub-model.

    Arrays of short types are stored as on a device (`tvm_patches.short_types`).

    text: {"model": base64, "outputs": [[dtype, shape or rank or None], ...], "nodes": [name, ...]}

    `Runner.run` raises DeviceError if the sub-model fails, or returns other dtypes or shapes than `text` declares.
    """
    description = json.loads(text)
    model = onnx.load_from_string(base64.b64decode(description["model"]))
    kinds = {value.name: type_name(value.type.tensor_type.elem_type) for value in model.graph.input}
    nodes = tuple(description["nodes"])
    run = _onnxruntime(model) or _reference(model)

    def attempt(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        named = zip(kinds.items(), inputs, strict=False)
        return [np.asarray(array) for array in run({name: restored(array, kind) for (name, kind), array in named})]

    def checked(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        try:
            arrays = attempt(inputs)
        except Exception as error:  # onnxruntime and onnx raise many types
            raise DeviceError(f"{', '.join(nodes)} failed on the host: {first_line(error)}") from error
        for array, (dtype, dims) in zip(arrays, description["outputs"], strict=True):
            if array.dtype.name != dtype or (isinstance(dims, list) and list(array.shape) != dims):
                raise DeviceError(
                    f"{', '.join(nodes)} gave {array.dtype} {array.shape} on the host, where the model says {dtype}"
                    f" {dims}"
                )
        return [stored(array) for array in arrays]

    return Runner(nodes, checked, attempt)


def _differs(node: onnx.NodeProto) -> bool:
    """Return whether onnxruntime deviates from ONNX, according to its list of failing node tests."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Resize":
        return attributes.get("coordinate_transformation_mode") == b"align_corners"
    return node.op_type == "MaxUnpool" and len(node.input) > 2


def _with_lowest_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model under the oldest opset with the same operators, because onnxruntime supports new opsets late."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    if model.functions or "" not in versions:
        return model

    def needed(graph: onnx.GraphProto) -> int:
        inner = [needed(a.g) for node in graph.node for a in node.attribute if a.HasField("g")]
        own = [
            onnx.defs.get_schema(node.op_type, versions[""], "").since_version
            for node in graph.node
            if node.domain in ("", "ai.onnx")
        ]
        return max([1, *inner, *own])

    result = onnx.ModelProto()
    result.CopyFrom(model)
    for opset in result.opset_import:
        if opset.domain == "":
            # Opset 13 changed types and attributes of many operators. onnxruntime's kernels support 13 and later.
            opset.version = min(opset.version, max(13, needed(model.graph)))
    return result


def _onnxruntime(model: onnx.ModelProto) -> Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]] | None:
    values = (*model.graph.input, *model.graph.output)
    # onnxruntime does not accept arrays of ml_dtypes.
    if any(
        onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).isbuiltin != 1 for value in values
    ) or any(map(_differs, model.graph.node)):
        return None
    try:
        session = cpu_session(_with_lowest_opset(model))
    except Exception:  # its exceptions share no base class
        return None
    return lambda feeds: session.run(None, feeds)


def _reference(model: onnx.ModelProto) -> Callable[[dict[str, np.ndarray]], Sequence[Any]]:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return lambda feeds: list(evaluator.run(None, feeds))
