"""Reference losses and gradients of small ONNX graphs: by NumPy in double precision, tap by tap, and by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = Mapping[str, np.ndarray]


def by_numpy(model: onnx.ModelProto, inputs: Arrays) -> tuple[float, dict[str, np.ndarray]]:
    """Return the mean cross entropy of the model's output and `inputs["labels"]`, and its gradient by every tensor of
    the graph.
    """
    values: dict[str, np.ndarray] = {
        t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer
    }
    values |= {name: array.astype(np.float64) for name, array in inputs.items() if name != "labels"}
    backward = []
    for node in model.graph.node:
        settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        result, gradients_of = _FORWARD[node.op_type](*[values[name] for name in node.input], **settings)
        values[node.output[0]] = result
        backward.append((node, gradients_of))
    output, labels = values[model.graph.output[0].name], inputs["labels"]
    shifted = output - output.max(axis=1, keepdims=True)
    likely = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    right = np.zeros_like(likely)
    right[rows, labels] = 1
    found = {model.graph.output[0].name: (likely - right) / len(labels)}
    for node, gradients_of in reversed(backward):
        for name, gradient in zip(node.input, gradients_of(found[node.output[0]]), strict=True):
            found[name] = found.get(name, 0) + gradient
    return float(-np.log(likely[rows, labels]).mean()), found


_Backward = Callable[[np.ndarray], Sequence[np.ndarray]]


def _conv(x: np.ndarray, w: np.ndarray, b: np.ndarray, **given: Any) -> tuple[np.ndarray, _Backward]:
    (sh, sw), (dh, dw), groups = given.get("strides", (1, 1)), given.get("dilations", (1, 1)), given.get("group", 1)
    top, left, bottom, right = given.get("pads", (0, 0, 0, 0))
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    oh, ow = (
        (extent - (k - 1) * d - 1) // s + 1
        for extent, k, d, s in zip(padded.shape[2:], w.shape[2:], (dh, dw), (sh, sw), strict=True)
    )
    taps = list(np.ndindex(*w.shape[2:]))
    split = w.reshape(groups, -1, *w.shape[1:])

    def window(a: np.ndarray, i: int, j: int) -> np.ndarray:
        return a[:, :, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]

    def grouped(a: np.ndarray) -> np.ndarray:
        return a.reshape(a.shape[0], groups, -1, oh, ow)

    total = sum(
        np.einsum("ngihw,goi->ngohw", grouped(window(padded, i, j)), split[..., i, j], optimize=True) for i, j in taps
    )

    def gradients_of(y: np.ndarray) -> Sequence[np.ndarray]:
        by_x, by_w, own = np.zeros_like(padded), np.zeros_like(split), grouped(y)
        for i, j in taps:
            by_w[..., i, j] = np.einsum("ngihw,ngohw->goi", grouped(window(padded, i, j)), own, optimize=True)
            window(by_x, i, j)[...] += np.einsum("ngohw,goi->ngihw", own, split[..., i, j], optimize=True).reshape(
                x.shape[0], -1, oh, ow
            )
        return (
            by_x[:, :, top : top + x.shape[2], left : left + x.shape[3]],
            by_w.reshape(w.shape),
            y.sum(axis=(0, 2, 3)),
        )

    return total.reshape(x.shape[0], -1, oh, ow) + b[None, :, None, None], gradients_of


def _pool(x: np.ndarray, is_max: bool, given: Mapping[str, Any]) -> tuple[np.ndarray, _Backward]:
    (kh, kw), (sh, sw) = given["kernel_shape"], given.get("strides", (1, 1))
    top, left, bottom, right = given.get("pads", (0, 0, 0, 0))
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-np.inf if is_max else 0)
    oh, ow = (padded.shape[2] - kh) // sh + 1, (padded.shape[3] - kw) // sw + 1

    def window(a: np.ndarray, i: int, j: int) -> np.ndarray:
        return a[:, :, i : i + (oh - 1) * sh + 1 : sh, j : j + (ow - 1) * sw + 1 : sw]

    taps = np.stack([window(padded, i, j) for i, j in np.ndindex(kh, kw)])
    chosen = taps.argmax(axis=0)

    def gradients_of(y: np.ndarray) -> Sequence[np.ndarray]:
        by_x = np.zeros_like(padded)
        for number, (i, j) in enumerate(np.ndindex(kh, kw)):
            window(by_x, i, j)[...] += y * (chosen == number) if is_max else y / (kh * kw)
        return [by_x[:, :, top : top + x.shape[2], left : left + x.shape[3]]]

    return taps.max(axis=0) if is_max else taps.mean(axis=0), gradients_of


def _concat(*parts: np.ndarray, axis: int) -> tuple[np.ndarray, _Backward]:
    ends = np.cumsum([part.shape[axis] for part in parts])[:-1]
    return np.concatenate(parts, axis), lambda y: np.split(y, ends, axis)


def _gemm(a: np.ndarray, b: np.ndarray, c: np.ndarray, transB: int) -> tuple[np.ndarray, _Backward]:
    assert transB, "weights as PyTorch exports them"
    return a @ b.T + c, lambda y: (y @ b, y.T @ a, y.sum(axis=0))


_FORWARD: dict[str, Callable[..., tuple[np.ndarray, _Backward]]] = {
    "Conv": _conv,
    "Relu": lambda x: (np.maximum(x, 0), lambda y: [y * (x > 0)]),
    "MaxPool": lambda x, **given: _pool(x, True, given),
    "AveragePool": lambda x, **given: _pool(x, False, given),
    "GlobalAveragePool": lambda x: (
        x.mean(axis=(2, 3), keepdims=True),
        lambda y: [np.broadcast_to(y / (x.shape[2] * x.shape[3]), x.shape)],
    ),
    "Concat": _concat,
    "Add": lambda a, b: (a + b, lambda y: (y, y)),
    "Flatten": lambda x: (x.reshape(len(x), -1), lambda y: [y.reshape(x.shape)]),
    "Gemm": _gemm,
}


def by_torch(model: onnx.ModelProto, inputs: Arrays, torch: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Return the same by PyTorch, also in double precision, on its GPU if it has one."""
    device, functions = "cuda" if torch.cuda.is_available() else "cpu", torch.nn.functional
    weights = {
        t.name: torch.tensor(numpy_helper.to_array(t).astype(np.float64), device=device, requires_grad=True)
        for t in model.graph.initializer
    }
    values = {
        **weights,
        **{
            name: torch.tensor(array if name == "labels" else array.astype(np.float64), device=device)
            for name, array in inputs.items()
        },
    }

    def padding(given: Mapping[str, Any]) -> list[int]:
        top, left, bottom, right = given.get("pads", (0, 0, 0, 0))
        assert (top, left) == (bottom, right), "PyTorch pads both sides alike"
        return [top, left]

    forward: dict[str, Callable[..., Any]] = {
        "Conv": lambda x, w, b, **g: functions.conv2d(
            x, w, b, g.get("strides", (1, 1)), padding(g), g.get("dilations", (1, 1)), g.get("group", 1)
        ),
        "Relu": functions.relu,
        "MaxPool": lambda x, **g: functions.max_pool2d(x, g["kernel_shape"], g.get("strides", (1, 1)), padding(g)),
        "AveragePool": lambda x, **g: functions.avg_pool2d(x, g["kernel_shape"], g.get("strides", (1, 1)), padding(g)),
        "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
        "Concat": lambda *parts, axis: torch.cat(parts, axis),
        "Add": torch.add,
        "Flatten": lambda x: x.flatten(1),
        "Gemm": lambda a, b, c, transB: a @ b.T + c,
    }
    for node in model.graph.node:
        settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        values[node.output[0]] = forward[node.op_type](*[values[name] for name in node.input], **settings)
    loss = functions.cross_entropy(values[model.graph.output[0].name], values["labels"])
    loss.backward()
    return float(loss.detach()), {name: weight.grad.cpu().numpy() for name, weight in weights.items()}


def squeezenet_head(
    batch: int, size: int, fires: int = 2, classes: int = 10, channels: int = 96, seed: int = 0
) -> onnx.ModelProto:
    """Return the start of SqueezeNet 1.0 up to its first fire modules, with random weights and a classifier of their
    channels' means.

    channels: of the first convolution, 96 in SqueezeNet. The fire modules are in proportion.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []

    def weight(*shape: int) -> str:
        scale = float(np.prod(shape[1:]) or 1) ** -0.5 * 1.4 if len(shape) > 1 else 0.1
        weights.append(
            numpy_helper.from_array((rng.standard_normal(shape) * scale).astype("float32"), f"w{len(weights)}")
        )
        return str(weights[-1].name)

    def add(op: str, *inputs: str, **settings: Any) -> str:
        nodes.append(helper.make_node(op, list(inputs), [f"t{len(nodes)}"], **settings))
        return f"t{len(nodes) - 1}"

    def conv(x: str, before: int, after: int, kernel: int, **settings: Any) -> str:
        return add(
            "Relu",
            add("Conv", x, weight(after, before, kernel, kernel), weight(after), kernel_shape=[kernel] * 2, **settings),
        )

    squeezed, expanded = channels // 6, channels * 2 // 3
    x, now = (
        add("MaxPool", conv("image", 3, channels, 7, strides=[2, 2]), kernel_shape=[3, 3], strides=[2, 2]),
        channels,
    )
    for _ in range(fires):
        s = conv(x, now, squeezed, 1)
        x, now = (
            add("Concat", conv(s, squeezed, expanded, 1), conv(s, squeezed, expanded, 3, pads=[1] * 4), axis=1),
            2 * expanded,
        )
    x = add("Gemm", add("Flatten", add("GlobalAveragePool", x)), weight(classes, now), weight(classes), transB=1)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, size, size])
    graph = helper.make_graph(
        nodes,
        "squeezenet_head",
        [image],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [batch, classes])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def relative_error(found: np.ndarray, right: np.ndarray) -> float:
    """Return the relative L2 error, in double precision."""
    return float(np.linalg.norm(found.astype(np.float64) - right) / np.linalg.norm(right.astype(np.float64)))
