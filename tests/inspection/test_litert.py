"""Operators that LiteRT's GPU delegate refuses, by its own list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import NodeProto, helper

import romou
from romou.tools.inspection import litert
from romou.tools.inspection.litert import litert_lines
from romou.tools.report.check_page import check_lines
from support.models.small_networks import NetworkBuilder

DATA = json.loads(Path(litert.__file__).with_suffix(".json").read_text(encoding="utf-8"))
BY = "By LiteRT's list at commit 007226f4. Shapes and types are not judged."


def node(operator: str, domain: str = "", **attributes: object) -> NodeProto:
    return helper.make_node(operator, ["x"], ["y"], name=f"/{operator}", domain=domain, **attributes)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (node("ArgMax"), "Refuses ARG_MAX: ArgMax (/ArgMax)."),
        (node("Conv", kernel_shape=[3, 3, 3]), "Refuses CONV_3D: Conv (/Conv)."),
        (node("Conv", kernel_shape=[3, 3]), "Refuses none."),
        (node("Conv", kernel_shape=[3]), "Refuses none."),
        (node("Resize", mode="linear"), "Refuses none."),
        (node("Dropout"), "Refuses none."),
        *(
            (each, f"Not judged, because each converter has its own operators for them: {each.op_type}.")
            for each in (node("Resize", mode="cubic"), node("Erf"), node("Add", "com.microsoft"), node("LRN"))
        ),
        (
            node("LpPool", kernel_shape=[2, 2, 2]),
            "Not judged, because each converter has its own operators for them: LpPool.",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else given.op_type,
)
def test_an_operator_is_accepted_refused_or_not_judged(given: NodeProto, line: str) -> None:
    assert litert_lines([given]) == (line, BY)


def test_nodes_of_one_operator_are_a_line() -> None:
    expand = [helper.make_node("Expand", ["x", "s"], [f"y{n}"], name=f"/{n}") for n in range(2)]
    assert litert_lines([*expand, node("Loop")])[:2] == (
        "Refuses BROADCAST_TO: Expand (/0), Expand (/1).",
        "Refuses WHILE: Loop (/Loop).",
    )


def test_a_volume_does_not_make_other_operators_unknown() -> None:
    """Only windows of volumes have operators of their own."""
    assert set(DATA["of_volumes"]) < set(DATA["of_onnx"])
    assert litert_lines([node("ConvTranspose", kernel_shape=[2, 2, 2])])[0].startswith("Refuses CONV_3D_TRANSPOSE")


def test_each_name_of_the_table_is_a_name_of_litert() -> None:
    """A misspelt name would be refused. Of LiteRT's operators, these are known to be no part of the list."""
    names = {
        name
        for table in ("of_onnx", "of_volumes", "of_modes")
        for text in DATA[table].values()
        for name in text.split()
    }
    assert names - set(DATA["accepted"]) == {
        *("ARG_MAX", "ARG_MIN", "AVERAGE_POOL_3D", "BROADCAST_TO", "CONV_3D", "CONV_3D_TRANSPOSE", "GATHER_ND", "IF"),
        *("LOG_SOFTMAX", "MAX_POOL_3D", "NON_MAX_SUPPRESSION_V4", "RANGE", "SCATTER_ND", "SHAPE", "WHERE", "WHILE"),
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
    }
    assert len(DATA["accepted"]) == len(set(DATA["accepted"]))
    assert len(DATA["commit"]) == 40


def test_check_names_what_is_refused_on_a_phone() -> None:
    g = NetworkBuilder({"x": (1, 4, 8, 8)})
    network = g.model(g.add("LogSoftmax", g.conv("x", 4, 8), axis=1))
    report = romou.check(network, device="adreno640")
    assert report.litert[0].startswith("Refuses LOG_SOFTMAX: LogSoftmax (")
    assert report.litert[-1] == BY
    assert dict(check_lines(report))["LiteRT's GPU delegate"] == list(report.litert)
    assert romou.check(network, target="cuda -device=nvidia_h200").litert == ()
