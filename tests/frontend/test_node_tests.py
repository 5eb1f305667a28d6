"""A fixed part of ONNX's backend node tests: none may be wrong, or end in anything but a result or one error. And the
check itself finds each of these.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from check_onnx import ORIGINS, check, chosen, further_away, origins, page, run_of, table, total
from onnx_cases import (
    FAULTS,
    HOST,
    KERNEL,
    ON_DEVICE,
    OVER_TIME,
    PLAIN,
    REFUSED,
    TRACEBACK,
    WRONG,
    Case,
    Result,
    node_cases,
)
from support.suite.exhaustive import exhaustive


# Each 271st takes ten seconds of processor time.
@pytest.mark.parametrize("every", [271, pytest.param(5, marks=exhaustive)])
def test_a_part_of_the_node_tests(every: int) -> None:
    part = chosen(node_cases(), "", every)
    results = check(part, "opencl", limit_s=300.0, is_quiet=True)
    assert not {name: result for name, result in results.items() if result.outcome in FAULTS}
    counts = [result.outcome in ON_DEVICE for result in results.values()]
    assert sum(counts) > len(part) / 2
    assert sum(counts) + [result.outcome for result in results.values()].count(HOST) > 0.8 * len(part)
    assert not further_away(results, json.loads(ORIGINS.read_text(encoding="utf-8")))


# The first test of every sixth operator is compiled, which takes a tenth of running it.
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=exhaustive)])
def test_no_operator_leaves_the_kernels(every: int) -> None:
    """An operator that newly goes to the host, or to a schedule of TVM's own, is listed with its change."""
    kept = json.loads(ORIGINS.read_text(encoding="utf-8"))
    first = {min(name for names in ended.values() for name in names) for ended in kept.values()}
    part = [case for case in node_cases() if case.name in first][::every]
    assert len(part) > 0.8 * len(first) / every, (
        "the installed onnx has other tests: write tests/stress/onnx_origins.json anew"
    )
    results = check(part, "opencl", limit_s=300.0, is_quiet=True, is_run=False)
    assert not further_away(results, kept)


def test_a_step_away_from_the_kernels_is_told() -> None:
    kept = {"Relu": {KERNEL: ["a", "b"], HOST: ["c"]}, "Sort": {PLAIN: ["d"]}}
    now = {"a": KERNEL, "b": PLAIN, "c": KERNEL, "d": REFUSED, "new": WRONG}
    changes = further_away({name: Result(outcome=outcome) for name, outcome in now.items()}, kept)
    assert changes == {"b": "kernels -> plain schedule", "d": "plain schedule -> refused"}


def case(name: str, op: str, right: list[object], x: object = (1.0, -4.0), **attributes: object) -> Case:
    inputs = np.array(x, "float32")
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, inputs.shape)],
        [helper.make_tensor_value_info("y", 1, np.shape(right[0]))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Case(name=name, operator=op, model=model.SerializeToString(), inputs=[inputs], outputs=right)


@pytest.fixture(scope="module")
def planted() -> list[Case]:
    relu = np.array([1, 0], "float32")
    good = case("good", "Relu", [relu])
    return [
        good,
        replace(good, name="value", outputs=[relu + np.float32(3e-3)]),
        replace(good, name="norm", outputs=[np.array([1.001, 0], "float32")], atol=np.inf),
        replace(good, name="nan", outputs=[np.array([1, np.nan], "float32")]),
        replace(good, name="dtype", outputs=[relu.astype("float64")]),
        replace(good, name="shape", outputs=[relu.reshape(1, 2)]),
        replace(good, name="count", outputs=[relu, relu]),
        case("host", "Det", [np.float32(2).reshape(())], x=((1, 0), (0, 2))),
        replace(good, name="broken", model=b"no protobuf"),
        replace(good, name="refused", model=onnx.ModelProto().SerializeToString()),
    ]


def test_the_check_finds_what_is_planted(planted: list[Case]) -> None:
    results = check(planted, "opencl", is_quiet=True)
    expected = {"good": KERNEL, "host": HOST, "broken": TRACEBACK, "refused": REFUSED}
    assert {name: result.outcome for name, result in results.items()} == {
        one.name: expected.get(one.name, WRONG) for one in planted
    }
    assert results["host"].host_nodes == ("Det (y)",)
    run = run_of(planted, results, "opencl")
    assert total(run).startswith(
        "10 tests: 1 kernels, 0 plain schedule, 1 on the host, 1 refused, 6 wrong, 1 traceback, 0 crash"
    )
    assert "| Relu | 9 | 1 |  |  | 1 | 6 | 1 |  |" in table(run)
    assert origins(run)["Det"] == {HOST: ["host"]}
    assert "| wrong: output 0: dtype float32, expected float64 | dtype |" in page(run)


def test_a_test_over_time_is_told(planted: list[Case]) -> None:
    assert check(planted[:1], "opencl", limit_s=0.01, is_quiet=True)["good"].outcome == OVER_TIME
