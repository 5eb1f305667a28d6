"""Broken ONNX models, each from a seed and a number: small valid models with changed bytes or a changed structure.
`fuzz_onnx.py` runs them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 7, -1, -2, 2**31 - 1, 2**31, 2**33, 2**62, -(2**63))
_NAMES = ("", "x", "kernel", "float", "*/ //", "a b", "ü€", "\x00", "../..", "%s%n", "n" * 3000, "0", "main", "T_relu")
_PLACES = ("../outside.bin", "/etc/passwd", "none.bin", "", ".", "/dev/zero", "a/../../b", "data.bin\x00")


def case(seed: int, number: int) -> tuple[str, bytes]:
    """Return (the change, the file) of case `number`. The same seed and number give the same bytes."""
    rng = random.Random(seed * 1_000_003 + number)
    name = rng.choice(sorted(_MODELS))
    model = _MODELS[name]()
    done: list[str] = []
    if rng.random() < 0.3:
        data = model.SerializeToString()
        for _ in range(rng.choice((1, 1, 2, 8))):
            damage = rng.choice(_OF_BYTES)
            data = damage(data, rng)
            done.append(damage.__name__)
        return f"{name}: {', '.join(done)}", data
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_OF_STRUCTURE)
        change(model, rng)
        done.append(change.__name__)
    try:
        return f"{name}: {', '.join(done)}", model.SerializeToString()
    except (ValueError, RecursionError):  # what protobuf itself refuses
        return f"{name}: unchanged", _MODELS[name]().SerializeToString()


# Right models, of the kinds of operators that matter.


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], outputs: list[str], weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    tensors = [numpy_helper.from_array(array, n) for n, array in weights.items()]
    graph = helper.make_graph(nodes, "fuzz", values, results, tensors)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def _convolution() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[1, 1]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["y"], axis=1),
    ]
    return _model(nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": _values(5, 3, 3, 3), "b": _values(5)})


def _attention() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["q"]),
        node("Transpose", ["q"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["a"], axis=-1),
        node("MatMul", ["a", "x"], ["o"]),
        node("LayerNormalization", ["o", "g", "h"], ["y"], axis=-1),
    ]
    return _model(nodes, {"x": (1, 4, 6)}, ["y"], {"w": _values(6, 6), "g": _values(6), "h": _values(6)})


def _shapes() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Slice", ["x", "starts", "ends", "axes"], ["a"]),
        node("Reshape", ["a", "shape"], ["b"]),
        node("Concat", ["b", "b"], ["c"], axis=0),
        node("Gather", ["c", "index"], ["d"], axis=1),
        node("Pad", ["d", "pads"], ["e"]),
        node("Unsqueeze", ["e", "axes"], ["y"]),
    ]
    whole = {"starts": [1], "ends": [3], "axes": [0], "shape": [2, 6], "index": [5, 0, 2], "pads": [0, 1, 0, 1]}
    return _model(nodes, {"x": (4, 6)}, ["y"], {n: np.array(v, np.int64) for n, v in whole.items()})


def _arithmetic() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Add", ["x", "w"], ["a"]),
        node("Clip", ["a", "low", "high"], ["b"]),
        node("ReduceMean", ["b"], ["m"], axes=[1], keepdims=1),
        node("Sub", ["b", "m"], ["d"]),
        node("Cast", ["d"], ["i"], to=TensorProto.INT32),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Where", ["k", "d", "f"], ["y"]),
        node("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    weights = {
        "w": _values(3, 1),
        "low": np.float32(-1) * np.ones((), np.float32),
        "high": np.ones((), np.float32),
        "k": np.array([[True], [False], [True]]),
    }
    return _model(nodes, {"x": (3, 5)}, ["y", "z"], weights)


_MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "convolution": _convolution,
    "attention": _attention,
    "shapes": _shapes,
    "arithmetic": _arithmetic,
}


# Changes of bytes.


def flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] if data else data


def cut_off(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def leave_out(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 8, 64)) :]


def double(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 8, 64, 4096))
    return data[: at + length] + data[at:]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 4, 16))
    return data[:at] + rng.choice((b"\x00", b"\xff", b"\x80")) * length + data[at + length :]


_OF_BYTES = (flip, flip, cut_off, leave_out, double, overwrite)


# Changes of structure.


def cycle(model: onnx.ModelProto, rng: random.Random) -> None:
    """Make a node read its own output or a later node's."""
    nodes = model.graph.node
    if nodes and (node := rng.choice(nodes)).input:
        node.input[rng.randrange(len(node.input))] = rng.choice(rng.choice(nodes).output or [""])


def missing_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.initializer:
        del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def odd_name(model: onnx.ModelProto, rng: random.Random) -> None:
    """Replace a name, everywhere or in one occurrence."""
    old, new = rng.choice(_all_names(model)), rng.choice((*_NAMES, *_all_names(model)))
    everywhere = rng.random() < 0.7
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer, *model.graph.value_info):
        if value.name == old and (everywhere or rng.random() < 0.5):
            value.name = new
    for node in model.graph.node:
        for field in (node.input, node.output):
            for i, name in enumerate(field):
                if name == old and (everywhere or rng.random() < 0.5):
                    field[i] = new


def wrong_type(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = rng.choice((0, 2, 3, 5, 6, 7, 8, 9, 10, 11, 14, 16, 17, 21, 22, 23, 99, -1))
    if rng.random() < 0.5 and model.graph.initializer:
        rng.choice(model.graph.initializer).data_type = kind
    else:
        rng.choice((*model.graph.input, *model.graph.output)).type.tensor_type.elem_type = kind


def odd_size(model: onnx.ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.4 and model.graph.initializer:
        tensor = rng.choice(model.graph.initializer)
        dims = tensor.dims
        if len(dims):
            dims[rng.randrange(len(dims))] = rng.choice(_SIZES)
        else:
            dims.append(rng.choice(_SIZES))
        return
    dims = rng.choice((*model.graph.input, *model.graph.output)).type.tensor_type.shape.dim
    if rng.random() < 0.7:
        # Values that follow from the sizes are left to be inferred.
        del model.graph.value_info[:]
        for output in model.graph.output:
            for dim in output.type.tensor_type.shape.dim:
                dim.Clear()
    if len(dims) and rng.random() < 0.9:
        dims[rng.randrange(len(dims))].dim_value = rng.choice(_SIZES)
    else:
        dims.add().dim_value = rng.choice(_SIZES)


def odd_constant(model: onnx.ModelProto, rng: random.Random) -> None:
    """Put zeros, huge numbers, or numbers that are not finite into a weight."""
    if model.graph.initializer:
        tensor = rng.choice(model.graph.initializer)
        if tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) >= 8:
            values = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], np.int64).copy()
            values[rng.randrange(len(values))] = rng.choice(_SIZES)
            tensor.raw_data = values.tobytes()
        elif tensor.data_type == TensorProto.FLOAT and len(tensor.raw_data) >= 4:
            floats = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 4 * 4], np.float32).copy()
            floats[rng.randrange(len(floats))] = rng.choice((0.0, np.nan, np.inf, -np.inf, 1e38, 1e-45))
            tensor.raw_data = floats.tobytes()


def odd_data(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change the bytes of a weight to more or fewer than its shape needs."""
    if model.graph.initializer:
        tensor = rng.choice(model.graph.initializer)
        tensor.raw_data = rng.choice(
            (b"", tensor.raw_data[:-1], tensor.raw_data + b"\x00" * 4, tensor.raw_data[: len(tensor.raw_data) // 2])
        )


def odd_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    with_attributes = [node for node in model.graph.node if node.attribute]
    if not with_attributes:
        return
    node = rng.choice(with_attributes)
    attribute = rng.choice(node.attribute)
    what = rng.randrange(5)
    if what == 0:
        node.attribute.remove(attribute)
    elif what == 1:
        attribute.name = rng.choice(("axis", "keepdims", "dilations", "auto_pad", "nonsense", "group"))
    elif what == 2 and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_SIZES)
    elif what == 3 and attribute.ints:
        del attribute.ints[rng.randrange(len(attribute.ints)) :]
    else:
        attribute.i, attribute.type = rng.choice(_SIZES), onnx.AttributeProto.INT


def other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.node:
        node = rng.choice(model.graph.node)
        count = len(node.input)
        alike = sorted(
            {s.name for s in onnx.defs.get_all_schemas() if s.min_input <= count <= s.max_input and not s.domain}
        )
        if rng.random() < 0.8:
            node.op_type = rng.choice(alike)
            del node.attribute[:], model.graph.value_info[:]
        else:
            node.op_type = rng.choice(
                (*sorted({schema.name for schema in onnx.defs.get_all_schemas()}), "Nonsense", "")
            )
        if rng.random() < 0.1:
            node.domain = rng.choice(("ai.onnx.ml", "com.microsoft", "nonsense"))


def other_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    """Remove, duplicate or move a node."""
    nodes = list(model.graph.node)
    if nodes:
        i, j = rng.randrange(len(nodes)), rng.randrange(len(nodes))
        what = rng.randrange(3)
        if what == 0:
            del nodes[i]
        elif what == 1:
            nodes.insert(j, nodes[i])
        else:
            nodes[i], nodes[j] = nodes[j], nodes[i]
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def other_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.node:
        names = rng.choice(model.graph.node).input
        what = rng.randrange(4)
        if what == 0 and len(names):
            del names[-1]
        elif what == 1:
            names.append(rng.choice(_all_names(model)))
        elif what == 2 and len(names):
            names[rng.randrange(len(names))] = rng.choice(("", "unknown", *_all_names(model)))
        elif len(names) > 1:
            names[0], names[1] = names[1], names[0]


def other_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    outputs = model.graph.output
    what = rng.randrange(4)
    if what == 0:
        del outputs[:]
    elif what == 1 and outputs:
        outputs.append(outputs[0])
    elif what == 2:
        outputs.append(
            helper.make_tensor_value_info(rng.choice((*_all_names(model), "unknown")), TensorProto.FLOAT, None)
        )
    elif outputs:
        outputs[0].ClearField("type")


def other_version(model: onnx.ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.5:
        model.opset_import[0].version = rng.choice((0, 1, 5, 9, 11, 13, 18, 21, 99, -1, 2**40))
    else:
        model.ir_version = rng.choice((0, 1, 3, 7, 99, -1, 2**40))


def external_data(model: onnx.ModelProto, rng: random.Random) -> None:
    """Store a weight's data in another file, mostly outside the model's folder."""
    if model.graph.initializer:
        tensor = rng.choice(model.graph.initializer)
        tensor.data_location = TensorProto.EXTERNAL
        entries = {
            "location": rng.choice(_PLACES),
            "offset": str(rng.choice((0, 1, -1, 2**62))),
            "length": str(rng.choice((0, 4, -1, 2**40, 2**63))),
        }
        for key in rng.sample(sorted(entries), rng.randint(1, 3)):
            tensor.external_data.add(key=key, value=entries[key])
        if rng.random() < 0.7:
            tensor.ClearField("raw_data")


def branch(model: onnx.ModelProto, rng: random.Random) -> None:
    """Add a node with subgraphs, some of them recursive."""
    inner = onnx.GraphProto()
    inner.CopyFrom(model.graph)
    for _ in range(rng.choice((0, 1, 3))):
        deeper = onnx.GraphProto()
        deeper.CopyFrom(inner)
        inner.node.append(helper.make_node("If", ["k"], ["inside"], then_branch=deeper, else_branch=deeper))
    name = rng.choice(_all_names(model))
    model.graph.node.append(
        helper.make_node(
            rng.choice(("If", "Loop", "Scan")), [name, name], ["out"], then_branch=inner, else_branch=inner, body=inner
        )
    )


def function(model: onnx.ModelProto, rng: random.Random) -> None:
    """Add an operator that the model defines, which may call itself."""
    if model.graph.node:
        node = rng.choice(model.graph.node)
        kind = rng.choice(("Mine", "Mine", node.op_type))
        inner = helper.make_node(rng.choice(("Relu", "Mine")), ["a"], ["b"], domain=rng.choice(("", "mine")))
        model.functions.append(
            helper.make_function(
                "mine", kind, ["a"], ["b"], [inner], [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
            )
        )
        model.opset_import.append(helper.make_opsetid("mine", 1))
        node.op_type, node.domain = kind, "mine"
        del node.input[1:], node.attribute[:]


def _all_names(model: onnx.ModelProto) -> list[str]:
    found = [value.name for value in (*model.graph.input, *model.graph.output, *model.graph.initializer)]
    return [*found, *(name for node in model.graph.node for name in (*node.input, *node.output))] or ["x"]


_OF_STRUCTURE: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    *(
        cycle,
        missing_initializer,
        odd_name,
        wrong_type,
        wrong_type,
        odd_size,
        odd_size,
        odd_constant,
        odd_data,
        odd_attribute,
        odd_attribute,
    ),
    *(
        other_operator,
        other_nodes,
        other_inputs,
        other_inputs,
        other_outputs,
        other_version,
        external_data,
        branch,
        function,
    ),
)
