"""Attention as exporters write it: Q, K and V are parts of one product, or heads of queries share keys."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def attention_of_parts(
    order: str, form: str, *, windows: int = 2, rows: int = 7, heads: int = 3, depth: int = 8
) -> onnx.ModelProto:
    """Return an attention of one product of width 3 * heads * depth.

    order: axes of the reshaped product: b windows, n rows, t the three parts, h heads, d depth.
    form: "gather", "split" or "slice", which take the parts.
    """
    rng = np.random.default_rng(5)
    sizes = {"b": windows, "n": rows, "t": 3, "h": heads, "d": depth}
    width = heads * depth
    weights = {
        "w": rng.standard_normal((width, 3 * width)).astype("float32") / np.float32(np.sqrt(width)),
        "b": rng.standard_normal(3 * width).astype("float32"),
        "sizes": np.array([sizes[axis] for axis in order]),
        "back": np.array([windows, rows, width]),
        "first": np.array([0]),
        **{f"at{i}": np.array(i) for i in range(3)},
        **{f"list{i}": np.array([i]) for i in range(4)},
    }
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("Add", ["product", "b"], ["biased"]),
        node("Reshape", ["biased", "sizes"], ["parts"]),
        node("Transpose", ["parts"], ["moved"], perm=[order.index(axis) for axis in "tbhnd"]),
    ]
    if form == "split":
        nodes.append(node("Split", ["moved"], ["s0", "s1", "s2"], axis=0, num_outputs=3))
    for i, name in enumerate("qkv"):
        if form == "gather":
            nodes.append(node("Gather", ["moved", f"at{i}"], [name], axis=0))
            continue
        if form == "slice":
            nodes.append(node("Slice", ["moved", f"list{i}", f"list{i + 1}", "first"], [f"s{i}"]))
        nodes.append(node("Squeeze", [f"s{i}", "first"], [name]))
    nodes += [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["rows"], perm=[0, 2, 1, 3]),
        node("Reshape", ["rows", "back"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, 1, [windows, rows, width]) for name in "xy"]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "attention", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def grouped_heads(*, rows: int = 16, heads: int = 4, groups: int = 2, depth: int = 8) -> onnx.ModelProto:
    """Return a decoder's attention over a prompt. Expand repeats the keys and values for the heads that share them."""
    rng = np.random.default_rng(5)
    width, shared = heads * depth, heads // groups
    hidden = np.triu(np.full((rows, rows), -1e9, "float32"), 1)
    weights: dict[str, np.ndarray] = {
        "hidden": hidden,
        "scale": np.array(depth**-0.5, "float32"),
        "back": np.array([1, rows, width]),
    }
    node, nodes = helper.make_node, []
    for name, count in (("q", heads), ("k", groups), ("v", groups)):
        weights[f"w{name}"] = (rng.standard_normal((width, count * depth)) / np.sqrt(width)).astype("float32")
        weights[f"s{name}"] = np.array([1, rows, count, depth])
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", f"s{name}"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [f"{name}2"], perm=[0, 2, 1, 3]),
        ]
    weights |= {"axis": np.array([2]), "all": np.array([1, groups, shared, rows, depth])}
    weights |= {"heads": np.array([1, heads, rows, depth])}
    for name in "kv":
        nodes += [
            node("Unsqueeze", [f"{name}2", "axis"], [f"{name}3"]),
            node("Expand", [f"{name}3", "all"], [f"{name}4"]),
            node("Reshape", [f"{name}4", "heads"], [f"{name}5"]),
        ]
    nodes += [
        node("Transpose", ["k5"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q2", "kt"], ["products"]),
        node("Mul", ["products", "scale"], ["scaled"]),
        node("Add", ["scaled", "hidden"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "v5"], ["mixed"]),
        node("Transpose", ["mixed"], ["rows"], perm=[0, 2, 1, 3]),
        node("Reshape", ["rows", "back"], ["joined"]),
        node("MatMul", ["joined", "last"], ["y"]),
    ]
    weights["last"] = (rng.standard_normal((width, width)) / np.sqrt(width)).astype("float32")
    values = [helper.make_tensor_value_info(name, 1, [1, rows, width]) for name in "xy"]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "grouped_heads", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
