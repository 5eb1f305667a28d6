"""Make implicit padding explicit, so that inference, onnxruntime and kernels agree on it.

With auto_pad=SAME_*, onnxruntime may start windows inside the input. ONNX's inference counts a last ceil_mode window
that starts in the padding, and ignores output_padding under auto_pad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from romou.compiler.frontend.infer import infer, without_outputs
from romou.compiler.frontend.onnx_graph import Graph, Shapes, shapes_of
from tvm_patches.onnx_converters.node import attributes_of
from tvm_patches.onnx_converters.padding import same_pads, transposed_pads

_POOLS = ("MaxPool", "AveragePool", "LpPool")
# Operator -> index of its weight, which has the window's extents.
_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}


def explicit_windows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with auto_pad=SAME_* as pads, and with ceil_mode without windows that read only padding.

    Return `model` itself if no node needs this.
    """
    if not any(map(_is_open, model.graph.node)):
        return model
    graph, is_wrong = Graph(model), False
    graph.touch()
    while _rewrite(graph, _inferred(graph.result())):
        is_wrong = True
    result = graph.result()
    if is_wrong:
        # Recorded shapes behind a node with a wrongly inferred shape may be wrong, too.
        del result.graph.value_info[:]
        for output in result.graph.output:
            for d in output.type.tensor_type.shape.dim:
                d.Clear()
    return result


def _is_open(node: onnx.NodeProto) -> bool:
    if node.op_type not in (*_POOLS, *_WEIGHTS, "ConvTranspose"):
        return False
    attributes = {
        a.name: onnx.helper.get_attribute_value(a)
        for a in node.attribute
        if a.name in ("auto_pad", "ceil_mode", "output_shape")
    }
    return (
        attributes.get("auto_pad", b"").startswith(b"SAME")
        or bool(attributes.get("ceil_mode"))
        or "output_shape" in attributes
    )


def _inferred(model: onnx.ModelProto) -> Shapes:
    bare = without_outputs(model)
    del bare.graph.value_info[:]
    return shapes_of(infer(bare).graph)


def _rewrite(graph: Graph, shapes: Shapes) -> bool:
    """Rewrite nodes up to the first one with a wrongly inferred shape. Return whether there is one."""
    for node in filter(_is_open, graph.nodes):
        attributes = attributes_of(
            node.op_type, graph.opset, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        )
        extents = shapes.get(node.input[0], ())[2:]
        kernel = attributes.get("kernel_shape") or shapes.get(node.input[_WEIGHTS.get(node.op_type, 1)], ())[2:]
        if not extents or len(kernel) != len(extents):
            continue
        if node.op_type == "ConvTranspose":
            pads = transposed_pads(attributes, extents, kernel)
            if pads is not None and min(pads) >= 0:
                _set(node, pads, without=("auto_pad", "output_shape"))
                if attributes.get("output_shape") is None:
                    return True
        elif attributes["auto_pad"].startswith("SAME"):
            ones = [1] * len(extents)
            before, after = same_pads(
                attributes["auto_pad"],
                extents,
                kernel,
                attributes.get("strides", ones),
                attributes.get("dilations", ones),
            )
            _set(node, [*before, *after], without=("auto_pad", "ceil_mode"))
        elif attributes.get("ceil_mode") and _drop_last_windows(graph, node, attributes, extents, kernel):
            return True
    return False


def _drop_last_windows(
    graph: Graph, node: onnx.NodeProto, attributes: dict[str, Any], extents: Sequence[int], kernel: Sequence[int]
) -> bool:
    """Change pads so that no last window starts behind the input. Return whether there was such a window."""
    rank, ones = len(extents), [1] * len(extents)
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    pads = list(attributes.get("pads", [0] * 2 * rank)) if attributes["auto_pad"] == "NOTSET" else [0] * 2 * rank
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    rooms = [e + b + a - span for e, b, a, span in zip(extents, pads[:rank], pads[rank:], spans, strict=True)]
    counts = [-(-room // s) + 1 for room, s in zip(rooms, strides, strict=True)]
    is_left_out = [(c - 1) * s >= e + b for c, s, e, b in zip(counts, strides, extents, pads[:rank], strict=True)]
    if not any(is_left_out):
        return False
    # Pad up to the end of the last window that remains.
    after = [
        (c - 1 - is_out) * s + span - e - b
        for c, is_out, s, span, e, b in zip(counts, is_left_out, strides, spans, extents, pads[:rank], strict=True)
    ]
    rounds_up = [room % s != 0 and not is_out for room, s, is_out in zip(rooms, strides, is_left_out, strict=True)]
    if not any(rounds_up):
        _set(node, pads, without=("auto_pad", "ceil_mode"))
        return True
    fitting = pads[:rank] + [a if is_out else p for a, p, is_out in zip(after, pads[rank:], is_left_out, strict=True)]
    if min(fitting) >= 0:
        _set(node, fitting, without=("auto_pad",))
    elif attributes.get("count_include_pad"):
        # A node before pads, or cuts off. Its zeros are counted, and those that ceil_mode adds are not.
        _set(node, [0] * 2 * rank, without=("auto_pad", "count_include_pad"))
        _pad_before(graph, node, fitting)
    else:
        _set(
            node,
            pads[:rank] + [a if up else p for a, p, up in zip(after, pads[rank:], rounds_up, strict=True)],
            without=("auto_pad", "ceil_mode"),
        )
    return True


def _pad_before(graph: Graph, node: onnx.NodeProto, pads: Sequence[int]) -> None:
    """Insert a Pad before a node. Negative pads cut off."""
    rank = len(pads) // 2
    whole = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
    padded = graph.free(f"{node.input[0]}_padded")
    if graph.opset < 11:
        pad = onnx.helper.make_node("Pad", [node.input[0]], [padded], node.name, pads=whole)
    else:
        tensor = graph.constant(f"{padded}_pads", np.array(whole, np.int64))
        pad = onnx.helper.make_node("Pad", [node.input[0], tensor], [padded], node.name)
    node.input[0] = padded
    graph.replace(node, pad, node)


def _set(node: onnx.NodeProto, pads: Sequence[int], without: Sequence[str]) -> None:
    kept = [a for a in node.attribute if a.name not in ("pads", *without)]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("pads", [int(p) for p in pads])])
