"""Nodes that run on the host because TVM compiles them to wrong kernels.

Nodes that cannot be imported or compiled need no entry, because the compiler finds them by trying. Drop an entry when
`tests/stress/check_onnx.py --only` says right without it.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from romou.compiler.frontend.host_groups import Values, inputs_of

# Kernels compute with none of these types.
_SHORT_FLOATS = frozenset(
    getattr(onnx.TensorProto, name, -1)
    for name in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0")
)


def _attribute(node: onnx.NodeProto, name: str, default: object) -> object:
    values = [onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return values[0] if values else default


# Operator -> (condition, reason).
UNSERVED: dict[str, tuple[Callable[[onnx.NodeProto], object], str]] = {
    "If": (lambda node: True, "kernels have no control flow"),
    "RoiAlign": (lambda node: _attribute(node, "mode", b"avg") == b"max", "TVM takes the maximum of other samples"),
}

# Operator -> element types that its kernels compute wrongly.
UNSERVED_TYPES: dict[str, frozenset[int]] = {
    **dict.fromkeys(("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"), _SHORT_FLOATS),
}


def unserved(model: onnx.ModelProto) -> set[int]:
    """Return the positions of the nodes that the tables name, and of nodes with short floats."""
    positions = {
        i for i, node in enumerate(model.graph.node) if node.op_type in UNSERVED and UNSERVED[node.op_type][0](node)
    }
    if any(
        value.type.tensor_type.elem_type in _SHORT_FLOATS for value in (*model.graph.input, *model.graph.output)
    ) or any(node.op_type in UNSERVED_TYPES for node in model.graph.node):
        elements = {name: kind.tensor_type.elem_type for name, kind in Values(model).types.items()}
        for i, node in enumerate(model.graph.node):
            if any(
                elements.get(name) in UNSERVED_TYPES.get(node.op_type, _SHORT_FLOATS)
                for name in (*inputs_of(node), *node.output)
            ):
                positions.add(i)
    return positions
