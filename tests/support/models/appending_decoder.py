"""A decoder as Hugging Face's optimum exports it: a Concat appends each run's keys and values to a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def appending_decoder(
    *,
    heads: int = 4,
    shared: int = 2,
    layers: int = 2,
    positions: str = "input",
    table: int = 0,
    hidden: float = -3e4,
    is_causal: bool = True,
    size: int = 16,
    words: int = 97,
    dtype: str = "float32",
) -> onnx.ModelProto:
    """Return a decoder with seeded weights.

    shared: heads of keys and values.
    positions: "input", or what they follow from: the "mask", or the "length" of the caches.
    table: learned positions. 0: rotations.
    is_causal: whether the mask hides later tokens of a run.
    hidden: what is added to scores of tokens that are not attended to.
    """
    rng, width = np.random.default_rng(0), heads * size
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(value: Any, of: str | None = None) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, of), f"c{len(weights)}"))
        return weights[-1].name

    def node(operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        reads = [each if isinstance(each, str) else constant(each) for each in inputs]
        nodes.append(helper.make_node(operator, reads, [output or f"t{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def product(x: str, columns: int, output: str = "") -> str:
        rows = 2 * width if columns == width and x in inner else width
        return node("MatMul", x, (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(dtype), output=output)

    def norm(x: str) -> str:
        weight = (1 + 0.1 * rng.standard_normal(width)).astype(dtype)
        return node("LayerNormalization", x, weight, np.zeros(width, dtype))

    def split(x: str, count: int) -> str:
        return node("Transpose", node("Reshape", x, np.array([0, 0, count, size])), perm=[0, 2, 1, 3])

    def rotated(x: str) -> str:
        if table:
            return x
        low = node("Slice", x, np.array([0]), np.array([size // 2]), np.array([3]))
        high = node("Slice", x, np.array([size // 2]), np.array([2**31]), np.array([3]))
        turned = node("Concat", node("Neg", high), low, axis=-1)
        return node("Add", node("Mul", x, cosine), node("Mul", turned, sine))

    def repeated(x: str) -> str:
        if shared == heads:
            return x
        each = node("Expand", node("Unsqueeze", x, np.array([2])), np.array([1, 1, heads // shared, 1, 1]))
        return node("Reshape", each, np.array([0, heads, -1, size]))

    inner: set[str] = set()
    new = node("Gather", node("Shape", "input_ids"), np.array(1))
    past = node("Gather", node("Shape", "past_key_values.0.key"), np.array(2))
    total = node("Add", past, new)
    rows = node("Range", past, total, np.array(1))
    counted = node("Relu", node("Sub", node("CumSum", "attention_mask", np.array(1)), np.array(1)))
    place = {
        "input": "position_ids",
        "length": node("Unsqueeze", rows, np.array([0])),
        "mask": node("Slice", counted, node("Unsqueeze", past, np.array([0])), np.array([2**31]), np.array([1])),
    }[positions]
    columns = node("Unsqueeze", node("Range", np.array(0), total, np.array(1)), np.array([0]))
    causal = node("LessOrEqual", columns, node("Unsqueeze", rows, np.array([1])))
    given = node("Unsqueeze", node("Cast", "attention_mask", to=TensorProto.BOOL), np.array([1, 2]))
    seen = node("And", node("Unsqueeze", causal, np.array([0, 1])), given) if is_causal else given
    bias = node("Where", seen, np.zeros((), dtype), np.array(hidden, dtype))
    x = node("Gather", (rng.standard_normal((words, width))).astype(dtype), "input_ids")
    if table:
        x = node("Add", x, node("Gather", (rng.standard_normal((table, width))).astype(dtype), place))
    else:
        inverse = (100 ** -(np.arange(0, size, 2) / size)).astype(dtype)
        angles = node("Mul", node("Unsqueeze", node("Cast", place, to=kind), np.array([1, 3])), inverse)
        angles = node("Concat", angles, angles, axis=-1)
        cosine, sine = node("Cos", angles), node("Sin", angles)
    caches = [f"{layer}.{name}" for layer in range(layers) for name in ("key", "value")]
    for layer in range(layers):
        y = norm(x)
        query = rotated(split(product(y, width), heads))
        key, value = rotated(split(product(y, shared * size), shared)), split(product(y, shared * size), shared)
        for name, each in (("key", key), ("value", value)):
            cache = f"{layer}.{name}"
            node("Concat", f"past_key_values.{cache}", each, output=f"present.{cache}", axis=-2)
        keys = node("Transpose", repeated(f"present.{layer}.key"), perm=[0, 1, 3, 2])
        scores = node("Mul", node("MatMul", query, keys), np.array(size**-0.5, dtype))
        weight = node("Softmax", node("Add", scores, bias), axis=-1)
        mixed = node("Transpose", node("MatMul", weight, repeated(f"present.{layer}.value")), perm=[0, 2, 1, 3])
        x = node("Add", x, product(node("Reshape", mixed, np.array([0, 0, width])), width))
        inner.add(wide := node("Relu", product(norm(x), 2 * width)))
        x = node("Add", x, product(wide, width))
    node("Cast", product(norm(x), words), to=TensorProto.FLOAT, output="logits")
    info, both = helper.make_tensor_value_info, "past_sequence_length + sequence_length"
    inputs = [info("input_ids", 7, ["batch_size", "sequence_length"]), info("attention_mask", 7, ["batch_size", both])]
    if positions == "input":
        inputs.append(info("position_ids", 7, ["batch_size", "sequence_length"]))
    outputs = [info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", words])]
    for cache in caches:
        inputs.append(info(f"past_key_values.{cache}", kind, ["batch_size", shared, "past_sequence_length", size]))
        outputs.append(info(f"present.{cache}", kind, ["batch_size", shared, both, size]))
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model
