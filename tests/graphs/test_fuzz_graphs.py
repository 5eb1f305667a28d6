"""Random graphs, each in one of four ways. The fuzzer finds planted faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import romou
from fuzz_graphs import FAULTS, ON_HOST, RIGHT, USUAL_WAYS, bounds, differs, fuzz, shrunk, wrong_output
from graph_cases import Case, compute, reference
from random_graphs import case
from romou.runtime.workers.child import ChildProcess
from support.suite.exhaustive import exhaustive

# LLVM's optimizations for a CPU, half of the time that PoCL takes for a kernel, are not what these graphs try.
OPTIONS = {"ROMOU_OPENCL_BUILD_OPTIONS": "-cl-opt-disable"}


@pytest.fixture(scope="module")
def child() -> Iterator[ChildProcess]:
    """Return a process for all parts, which imports TVM and starts the drivers once."""
    process = ChildProcess("graph", environment=OPTIONS)
    yield process
    process.kill()


# Several parts, so that test processes share them. A new seed may find a new fault in any change: that is for the
# exhaustive run.
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("is_new", [False, pytest.param(True, marks=exhaustive)])
def test_random_graphs(part: int, is_new: bool, child: ChildProcess) -> None:
    seed, cases = (int(np.random.SeedSequence().generate_state(1)[0]), 800) if is_new else (part + 1, 50)
    variables = " ".join(f"{name}={value}" for name, value in OPTIONS.items())
    print(f"seed {seed}: {variables} python tests/stress/fuzz_graphs.py --seed {seed} --cases {cases}")
    results = fuzz(range(cases), seed=seed, child=child)
    faults = [result for result in results if result.outcome in FAULTS]
    assert not faults, "\n".join(
        f"graph {one.number} of seed {seed} ({one.way}), {one.operators}: {one.outcome}\n{one.detail}" for one in faults
    )
    counts = Counter(result.outcome for result in results)
    assert counts[RIGHT] + counts[ON_HOST] >= 0.95 * cases
    assert {result.way for result in results} == set(USUAL_WAYS)


def test_graphs_are_the_same_each_time_and_of_many_operators() -> None:
    graphs = [case(5, number) for number in range(150)]
    assert [graph.model() for graph in graphs] == [case(5, number).model() for number in range(150)]
    assert len({node.op_type for graph in graphs for node in graph.nodes}) > 70
    assert len({len(array.shape) for graph in graphs for array in graph.values.values()}) >= 7
    assert len({array.dtype for graph in graphs for array in graph.values.values()}) >= 8
    assert any(not array.size for number in range(2000) for array in case(5, number).values.values())


def _chain() -> Case:
    """Return a graph of Abs, Sqrt, Neg, Exp."""
    operators = ("Abs", "Sqrt", "Neg", "Exp")
    nodes = tuple(onnx.helper.make_node(operator, [f"t{i}"], [f"t{i + 1}"]) for i, operator in enumerate(operators))
    values = {"t0": np.linspace(-3, 5, 24, dtype="float32").reshape(4, 6)}
    for node in nodes:
        values[node.output[0]] = compute(node, [values[node.input[0]]])[0]
    return Case(nodes, ("t0",), (), ("t4",), values)


def test_a_planted_fault_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third node's negation gives another sign when it is compiled."""
    real = romou.compile

    def wrong(model: onnx.ModelProto, **options: Any) -> Any:
        for node in model.graph.node:
            node.op_type = "Abs" if node.op_type == "Neg" else node.op_type
        return real(model, **options)

    graph = _chain()
    assert wrong_output(graph, "buffers") == (None, ())
    monkeypatch.setattr(romou, "compile", wrong)
    problem, _ = wrong_output(graph, "buffers")
    assert problem is not None
    assert [node.op_type for node in shrunk(graph, "buffers").nodes] == ["Neg"]


def test_what_differs() -> None:
    right, spread = bounds(_chain(), 0.0)
    expected = [right["t4"], *(values["t4"] for values in spread)]
    assert differs(right["t4"], expected) is None
    assert differs(right["t4"] * np.float32(1 + 2e-5), expected) is None
    t4 = right["t4"]
    for wrong in (t4 * np.float32(1.01), np.full_like(t4, np.nan), np.zeros_like(t4), t4.astype("float64"), t4[:1]):
        assert differs(wrong, expected)


def test_perturbed_values_show_what_rounding_decides() -> None:
    """A floor of nearly whole numbers may fall to either side, one of others may not."""
    node = onnx.helper.make_node("Floor", ["x"], ["y"])
    for value, is_unsure in ((3.0, True), (3.5, False)):
        graph = Case(
            (node,), ("x",), (), ("y",), {"x": np.full((64,), value, "float32"), "y": np.full((64,), 3, "float32")}
        )
        assert bool((np.round(reference(graph, seed=1)["y"]) != reference(graph)["y"]).any()) == is_unsure
