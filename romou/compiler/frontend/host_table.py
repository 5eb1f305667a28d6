"""Nodes that run on the host because TVM compiles them to wrong kernels.

Nodes that cannot be imported or compiled need no entry, because the compiler finds them by trying. Drop an entry when
`tests/stress/check_onnx.py --only` says right without it.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from romou.compiler.frontend.host_groups import SHORT, Values
from romou.compiler.frontend.onnx_graph import inputs_of
from tvm_patches.host_nodes import OPERATOR as HOST_NODES

# Operators whose kernels convert short types, or move their elements.
_CONVERTING = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})
_MOVING = frozenset(
    {
        "Concat",
        "Constant",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Reshape",
        "ReverseSequence",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
        HOST_NODES,
    }
)


def _attribute(node: onnx.NodeProto, name: str, default: object) -> object:
    values = [onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return values[0] if values else default


# Operator -> (condition, reason).
UNSERVED: dict[str, tuple[Callable[[onnx.NodeProto], object], str]] = {
    "If": (lambda node: True, "kernels have no control flow"),
    "RoiAlign": (lambda node: _attribute(node, "mode", b"avg") == b"max", "TVM takes the maximum of other samples"),
}


def unserved(model: onnx.ModelProto) -> set[int]:
    """Return the positions of the nodes that the table names, and of nodes that compute with short types."""
    positions = {
        i for i, node in enumerate(model.graph.node) if node.op_type in UNSERVED and UNSERVED[node.op_type][0](node)
    }
    has_short = any(
        value.type.tensor_type.elem_type in SHORT for value in (*model.graph.input, *model.graph.output)
    ) or any(node.op_type in _CONVERTING for node in model.graph.node)
    elements = Values(model).elements if has_short else {}
    for i, node in enumerate(model.graph.node):
        is_served = node.op_type in _CONVERTING | _MOVING
        if not is_served and any(elements.get(name) in SHORT for name in (*inputs_of(node), *node.output)):
            positions.add(i)
    return positions
