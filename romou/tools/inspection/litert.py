"""Nodes that LiteRT's GPU delegate would leave to the CPU, by its own list of operators (litert.json)."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from romou.compiler.frontend.host_groups import node_name

if TYPE_CHECKING:
    from onnx import NodeProto

# Spatial axes of a window in a volume.
_OF_VOLUME = 3


def litert_lines(nodes: Sequence[NodeProto]) -> tuple[str, ...]:
    """Return what the delegate refuses, an operator and its nodes in a line, what is not judged, and by which list.

    A node is refused if one of the LiteRT operators with its meaning is not in the list. Shapes and types, which the
    delegate checks as well, are not looked at.
    """
    refused: dict[str, list[str]] = defaultdict(list)
    unknown: dict[str, None] = {}
    for node in nodes:
        operators = _operators_of(node)
        if operators is None:
            unknown[node.op_type] = None
            continue
        for operator in operators:
            if operator not in _list()["accepted"]:
                refused[operator].append(node_name(node))
    lines = [f"Refuses {operator}: {', '.join(names)}." for operator, names in refused.items()]
    if unknown:
        lines.append(f"Not judged, because each converter has its own operators for them: {', '.join(unknown)}.")
    commit = _list()["commit"][:8]
    return (*(lines or ["Refuses none."]), f"By LiteRT's list at commit {commit}. Shapes and types are not judged.")


def _operators_of(node: NodeProto) -> list[str] | None:
    """Return LiteRT's operators with the meaning of a node, or None if it has none of its own."""
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    table = _list()["of_onnx"]
    if len(attributes.get("kernel_shape", ())) == _OF_VOLUME:
        table = _list()["of_volumes"]
    text = table.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if text is None and "mode" in attributes and isinstance(attributes["mode"], bytes):
        text = _list()["of_modes"].get(f"{node.op_type} {attributes['mode'].decode()}")
    return None if text is None else text.split()


@functools.cache
def _list() -> dict[str, Any]:
    return dict(json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")))
