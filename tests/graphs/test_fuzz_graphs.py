"""Random graphs, each in one of four ways. The fuzzer finds planted faults."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import romou
from fuzz_graphs import FAULTS, ON_HOST, RIGHT, USUAL_WAYS, WRONG, bounds, differs, fuzz, shrunk, wrong_output
from graph_cases import Case, by_definition, compute, reference, together
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


def _seed_of(part: int) -> int:
    """Return the seed of a part. The first part's is new with each content of the checkout."""
    if part:
        return part
    words = ("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD^{tree}")
    tree = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return int(np.random.SeedSequence(int(tree or "0", 16)).generate_state(1)[0])


# Several parts, so that test processes share them.
@pytest.mark.parametrize("part", range(12))
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=exhaustive)])
def test_random_graphs(part: int, is_long: bool, child: ChildProcess) -> None:
    seed, cases = (int(np.random.SeedSequence().generate_state(1)[0]), 400) if is_long else (_seed_of(part), 24)
    variables = " ".join(f"{name}={value}" for name, value in OPTIONS.items())
    print(f"seed {seed}: {variables} python tests/stress/fuzz_graphs.py --seed {seed} --cases {cases}")
    results = fuzz(range(cases), seed=seed, child=child)
    faults = [result for result in results if result.outcome in FAULTS]
    assert not faults, "\n".join(
        f"graph {one.number} of seed {seed} ({one.way}), {one.operators}: {one.outcome}\n{one.detail}" for one in faults
    )
    counts = Counter(result.outcome for result in results)
    assert counts[RIGHT] + counts[ON_HOST] >= 0.9 * cases
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


def test_where_two_references_differ_either_is_right() -> None:
    """Onnxruntime gives the nearest number for a sum that overflows, ONNX's reference wraps around."""
    node = onnx.helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    x = np.array([2**31 - 1, 5], "int32")
    graph = Case((node,), ("x",), (), ("y",), {"x": x, "y": compute(node, [x])[0]})
    defined, wrapped = by_definition(graph)["y"], np.array(-(2**31) + 4, "int32")
    assert (int(graph.values["y"]), int(defined)) == (2**31 - 1, int(wrapped))
    assert differs(wrapped, [graph.values["y"]])
    assert differs(wrapped, [graph.values["y"]], defined) is None
    assert differs(wrapped - 1, [graph.values["y"]], defined)
    floats = [np.array(values, "float32") for values in ([1, np.nan], [1, 2], [1, 3])]
    assert differs(floats[1], floats[:1], floats[1]) is None
    assert differs(floats[2], floats[:1], floats[1])
    assert differs(floats[2], floats[:1], may_lose_nan=True) is None


def test_a_number_at_a_border_falls_to_both_sides() -> None:
    """Eight random movements have the same sign once in 128 times."""
    nodes = (
        onnx.helper.make_node("Mul", ["x", "x"], ["z"]),
        onnx.helper.make_node("Floor", ["z"], ["y"]),
        onnx.helper.make_node("ReduceLogSumExp", ["n"], ["w"]),
    )
    values = {"x": np.full(500, 2, "float32"), "n": np.zeros(1, "int32")}
    for node in nodes:
        values[node.output[0]] = compute(node, [values[name] for name in dict.fromkeys(node.input)])[0]
    right, spread = bounds(Case(nodes, ("x", "n"), (), ("y", "w"), values), 0.0)
    for name, whole in (("y", 4), ("w", 0)):
        assert (right[name] == whole).all()
    assert (np.min([one["y"] for one in spread], axis=0) < 4).all()
    assert (np.max([one["y"] for one in spread], axis=0) >= 4).all()


def test_a_number_next_to_a_whole_one_may_be_the_whole_one() -> None:
    """A negative number to the power of itself is NaN, unless it is whole."""
    node = onnx.helper.make_node("Pow", ["x", "x"], ["y"])
    x = np.full(8, np.nextafter(np.float32(-1), np.float32(0)), "float32")
    graph = Case((node,), ("x",), (), ("y",), {"x": x, "y": compute(node, [x])[0]})
    right, spread = bounds(graph, 0.0)
    assert np.isnan(right["y"]).all()
    expected = [right["y"], *(values["y"] for values in spread)]
    assert differs(np.full(8, -1, "float32"), expected) is None
    assert differs(np.full(8, 1, "float32"), expected[:1])


def test_large_integers_have_several_right_last_bits() -> None:
    """Their means are sums in double precision, in any order."""
    nodes = (
        onnx.helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0),
        onnx.helper.make_node("ReduceMean", ["n"], ["z"], keepdims=0),
    )
    values = {"x": np.array([2**60 + 12345, 2**61, -(2**59)], "int64"), "n": np.array([2**40 + 12345, 5, 7], "int64")}
    for node in nodes:
        values[node.output[0]] = compute(node, [values[node.input[0]]])[0]
    right, spread = bounds(Case(nodes, ("x", "n"), (), ("y", "z"), values), 0.0)
    expected = {name: [right[name], *(one[name] for one in spread)] for name in ("y", "z")}
    assert differs(right["y"] + 512, expected["y"]) is None
    assert differs(right["y"] + 10**6, expected["y"])
    assert differs(right["z"] + 1, expected["z"])


def test_graphs_of_one_model_are_told_apart() -> None:
    """A fault among them belongs to the graph that shows it in a model with no other, or to all of them."""
    one = together({"a_": _chain(), "b_": _chain()})
    assert one.outputs == ("a_t4", "b_t4")
    assert wrong_output(one, "buffers") == (None, ())

    class Child:
        def __init__(self, alone: list[str]) -> None:
            self.alone = iter(alone)

        def call(self, function: str, *arguments: Any, timeout_s: float) -> Any:
            is_alone = function.endswith("run_case")
            return (next(self.alone), "Neg", "") if is_alone else (None, "a fault of all")

    def outcomes(alone: list[str]) -> list[str]:
        child: Any = Child(alone)
        return [result.outcome for result in fuzz(range(3), seed=1, ways=("buffers",), child=child)]

    assert outcomes([RIGHT, WRONG, RIGHT]) == [RIGHT, WRONG, RIGHT]
    assert outcomes([RIGHT, RIGHT, RIGHT]) == [WRONG, RIGHT, RIGHT]


def test_perturbed_values_show_what_rounding_decides() -> None:
    """A floor of nearly whole numbers may fall to either side, one of others may not."""
    node = onnx.helper.make_node("Floor", ["x"], ["y"])
    for value, is_unsure in ((3.0, True), (3.5, False)):
        graph = Case(
            (node,), ("x",), (), ("y",), {"x": np.full((64,), value, "float32"), "y": np.full((64,), 3, "float32")}
        )
        assert bool((np.round(reference(graph, seed=1)["y"]) != reference(graph)["y"]).any()) == is_unsure


def test_a_tangent_of_a_large_angle_may_be_any_number() -> None:
    """The next float after 1.7e37 is near a pole, so that a power with another last bit is far beyond the others."""
    nodes = tuple(onnx.helper.make_node(name, [a], [b]) for name, a, b in (("Abs", "x", "z"), ("Tan", "z", "y")))
    angles = np.array([1.7244214e37, 1.0], "float32")
    values = {"x": angles, "z": angles, "y": np.tan(angles.astype("float64")).astype("float32")}
    right, spread = bounds(Case(nodes, ("x",), (), ("y",), values), 0.0)
    expected = [right["y"], *(one["y"] for one in spread)]
    far, near = expected[0] + np.float32([1e6, 0]), expected[0] + np.float32([0, 1e-2])
    assert differs(far, expected)
    assert differs(far, expected, has_poles=True) is None
    assert differs(near, expected, has_poles=True)
