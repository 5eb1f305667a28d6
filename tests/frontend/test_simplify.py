"""Simplification of a graph before import: parameters that shapes decide, functions, loops and branches with a known
course, and the checks of the import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

import romou
from romou.base.errors import ModelError, UsageError
from romou.compiler.frontend.fold import by_depth, fold
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.importing import import_onnx
from tvm_patches.onnx_converters.node import CONVERTERS

Shapes = Mapping[str, Sequence[int | str]]


def model_of(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return onnx.shape_inference.infer_shapes(model)


def run(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of the imported module on the CPU, without Romou's kernels."""
    imported = import_onnx(model)
    assert imported.host_groups == ()
    executable = tvm.compile(relax.transform.LegalizeOps()(imported.mod), target="llvm")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](
        *[tvm.runtime.tensor(inputs[name]) for name in imported.inputs]
    )
    return [found.numpy()] if not isinstance(found, Sequence) else [one.numpy() for one in found]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


CASES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "a parameter that the result's shape decides": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[3, 7] x, int64[1] k, int64[1] axes) => (float[3, 2] y, int64[3, 2] at, float[3, 1] s) {
            y, at = TopK(x, k)
            s = ReduceSum(x, axes)
        }""",  # noqa: E501
        {"x": floats(3, 7), "k": np.array([2]), "axes": np.array([1])},
    ),
    "bounds that the run tells": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[5, 9] x, int64[2] from, int64[2] to, int64[2] step, int64[4] pads)
            => (float[3, 4] y, float[7, 9] z) {
            y = Slice(x, from, to, "", step)
            z = Pad<mode="reflect">(x, pads)
        }""",  # noqa: E501
        {
            "x": floats(5, 9),
            "from": np.array([-1, 1]),
            "to": np.array([-9, 9]),
            "step": np.array([-2, 2]),
            "pads": np.array([2, 1, 0, -1]),
        },
    ),
    "a function of the model's own": (
        """<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[3, 5] x) => (float[3, 5] y) { y = own.twice <by = 2.5>(x) }
        <domain: "own", opset_import: ["": 17]> twice <by> (a) => (b) { f = Constant <value_float: float = @by>() b = Mul(a, f) }""",  # noqa: E501
        {"x": floats(3, 5)},
    ),
    "a function of the standard": (
        """<ir_version: 10, opset_import: ["": 23]> g (float[1, 2, 5, 4] q, float[1, 2, 3, 4] k, float[1, 2, 3, 4] v) => (float[1, 2, 5, 4] y) {
            y = Attention<is_causal = 1>(q, k, v)
        }""",  # noqa: E501
        {"q": floats(1, 2, 5, 4), "k": floats(1, 2, 3, 4), "v": floats(1, 2, 3, 4)},
    ),
    "a loop of five steps": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] last, float[5, 3] all) {
            n = Constant <value = int64 {5}>()
            last, all = Loop<body = body (int64 i, bool c, float[3] s) => (bool d, float[3] t, float[3] row) {
                d = Identity(c) f = Cast<to = 1>(i) t = Add(s, f) row = Mul(t, x)
            }>(n, "", x)
        }""",
        {"x": floats(3)},
    ),
    **{
        f"a loop whose condition is {name}": (
            f"""<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] last, float[5, 3] all) {{
            n = Constant <value = int64 {{{count}}}>() yes = Constant <value = bool {{1}}>() zero = Constant <value = int64 {{0}}>()
            steps = Constant <value = int64 {{4}}>()
            last, at, all = Loop<body = body (int64 i, bool c, float[3] s, int64 k) => (bool d, float[3] t, int64 m, float[3] row) {{
                one = Constant <value = int64 {{1}}>() m = Add(k, one) {condition}
                f = Cast<to = 1>(k) t = Add(s, f) row = Mul(t, x)
            }}>(n, yes, x, zero)
        }}""",  # noqa: E501
            {"x": floats(3)},
        )
        for name, count, condition in (
            ("a comparison of the iteration", 9, "d = Less(i, steps)"),
            ("computed from the one before", 5, "e = Not(c) g = Not(e) d = And(c, g)"),
            ("computed from a counter that the loop carries", 9, "h = Sub(m, one) d = Less(h, steps)"),
        )
    },
    "branches in a branch": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) {
            r = Abs(x) m = ReduceMax<keepdims = 0>(r) one = Constant <value = float {1}>() c = Greater(m, one)
            y = If<then_branch = a () => (float[4] p) { p = Relu(r) }, else_branch = b () => (float[4] q) {
                q = If<then_branch = e () => (float[4] u) { u = Exp(r) }, else_branch = f () => (float[4] v) { v = Neg(r) }>(c)
            }>(c)
        }""",  # noqa: E501
        {"x": floats(4) / 4},
    ),
    "a branch that the run chooses": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[3, 5] x) => (float[3, 5] y) {
            axes = Constant <value = int64[2] {0, 1}>() zero = Constant <value = float {0}>()
            s = ReduceSum<keepdims = 0>(x, axes) c = Greater(s, zero)
            y = If<then_branch = a () => (float[3, 5] p) { p = Neg(x) }, else_branch = b () => (float[3, 5] q) { q = Abs(x) }>(c)
        }""",  # noqa: E501
        {"x": floats(3, 5)},
    ),
    "sequences of several lengths": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[3, 2, 5] x, float[2, 12, 5] w, float[2, 12, 3] r, float[2, 24] b, int32[2] lengths)
            => (float[3, 2, 2, 3] y, float[2, 2, 3] h, float[2, 2, 3] c) {
            y, h, c = LSTM<hidden_size = 3, direction = "bidirectional">(x, w, r, b, lengths)
        }""",  # noqa: E501
        {
            "x": floats(3, 2, 5),
            "w": floats(2, 12, 5),
            "r": floats(2, 12, 3),
            "b": floats(2, 24),
            "lengths": np.array([3, 1], np.int32),
        },
    ),
    "attributes of an old opset": (
        """<ir_version: 8, opset_import: ["": 9]> g (float[4, 6] x) => (float[2, 4] y, float[1, 6] m) {
            y = Slice<starts = [-3, 1], ends = [-1, 5]>(x)
            m = ReduceMax<axes = [0]>(x)
        }""",
        {"x": floats(4, 6)},
    ),
    "integers": (
        """<ir_version: 8, opset_import: ["": 17]> g (int32[2, 6] x, int32[2, 6] e, int32[2, 6] d) => (int32[2, 6] p, int32[2, 1] m, int32[2, 6] f) {
            p = Pow(x, e)
            m = ReduceMean<axes = [1]>(x)
            f = Mod<fmod = 1>(x, d)
        }""",  # noqa: E501
        {
            name: np.array(values, np.int32).reshape(2, 6)
            for name, values in (("x", range(-6, 6)), ("e", [2, 3] * 6), ("d", [4, -5, 3] * 4))
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_onnxruntime(case: str) -> None:
    text, inputs = CASES[case]
    model = model_of(text)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for found, wanted in zip(run(model, inputs), expected, strict=True):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert relative_l2_error(found, wanted) < 1e-5


# A model's nodes with a scalar for axes: a weight, a node, and inside a function of the model.
SCALARS = (
    "<int64 axes = {1}> { y = OPERATOR(x, axes) }",
    "{ axes = Constant<value_int = 1>() y = OPERATOR(x, axes) }",
    """{ y = own.Function(x) } <domain: "own", opset_import: ["": 18]>
        Function (a) => (b) { axes = Constant<value = int64 {1}>() b = OPERATOR(a, axes) }""",
)


@pytest.mark.parametrize("nodes", SCALARS, ids=["weight", "node", "function"])
@pytest.mark.parametrize(
    ("operator", "shape"), [("Unsqueeze", "3, 1, 1, 5"), ("Squeeze", "3, 5"), ("ReduceMax", "3, 1, 5")]
)
def test_axes_that_are_a_scalar(operator: str, shape: str, nodes: str) -> None:
    """onnxruntime takes them for Unsqueeze only."""
    head = f"""<ir_version: 8, opset_import: ["": 18, "own": 1]> g (float[3, 1, 5] x) => (float[{shape}] y)"""
    inputs = {"x": floats(3, 1, 5)}
    vector = SCALARS[0].replace("int64", "int64[1]")
    expected = run_onnxruntime(model_of(f"{head} {vector}".replace("OPERATOR", operator)), inputs)
    assert expected is not None
    found = run(model_of(f"{head} {nodes}".replace("OPERATOR", operator)), inputs)
    np.testing.assert_array_equal(found[0], expected[0])


def test_a_loop_that_data_may_end_runs_on_the_host() -> None:
    text, _ = CASES["a loop whose condition is a comparison of the iteration"]
    model = model_of(
        text.replace("d = Less(i, steps)", "big = ReduceMax<keepdims = 0>(s) e = Cast<to = 7>(big) d = Less(e, steps)")
    )
    assert import_onnx(model).host_groups == (("Loop (last)",),)


def test_opset_6_aligns_an_operand_by_its_axis() -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)],
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 3)),
                helper.make_tensor_value_info("b", TensorProto.FLOAT, (3,)),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, 3))],
        ),
        opset_imports=[helper.make_opsetid("", 6)],
        ir_version=4,
    )
    inputs = {"x": floats(2, 3, 3), "b": floats(3)}
    np.testing.assert_array_equal(run(model, inputs)[0], inputs["x"] + inputs["b"][:, None])


def test_what_a_function_computes_of_constants_is_folded() -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["": 18]> g (float[3, 5, 7] x, int64[2] size) => (float[3, 4, 9] y) { y = CenterCropPad<axes = [1, 2]>(x, size) }"""  # noqa: E501
    )
    assert {node.op_type for node in import_onnx(model).folded.graph.node} <= {"Pad", "Slice"}


def test_a_tensor_of_another_type_than_onnxs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a converter is wrong, the node goes to the host instead."""
    monkeypatch.setitem(CONVERTERS, "Mish", lambda node: relax.op.astype(node.input(0), "float16"))
    model = model_of("""<ir_version: 8, opset_import: ["": 18]> g (float[3] x) => (float[3] y) { y = Mish(x) }""")
    model.graph.node[0].name = "odd"
    assert import_onnx(model).host_groups == (("Mish (odd)",),)


def test_an_operator_of_another_domain_is_not_taken_for_the_standards() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[3] x) => (float[3] y) { y = own.Relu(x) }"""
    )
    with pytest.raises(ModelError, match=r"own\.Relu"):
        import_onnx(model)


def test_inputs_that_shapes_decide_are_told(caplog: pytest.LogCaptureFixture) -> None:
    text, _ = CASES["a parameter that the result's shape decides"]
    import_onnx(model_of(text))
    assert "the shapes that the model declares decide k, axes: a run with another value is refused" in caplog.text
    caplog.clear()
    text, _ = CASES["bounds that the run tells"]
    import_onnx(model_of(text))
    assert "is refused" not in caplog.text


SHAPED = """<ir_version: 8, opset_import: ["": 18]> g (float[3, 4] x, int64[3] shape, int64[1] axes, int64[1] k)
    => (float[2, 3, 2] y, float[3, 1] s, float[3, 2] t, int64[3, 2] at) {
    y = Reshape(x, shape)
    s = ReduceSum(x, axes)
    t, at = TopK(x, k)
}"""


def test_a_run_that_contradicts_declared_shapes_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SHAPED)
    compiled = romou.compile(model, target="opencl")
    assert compiled.summary().relative_l2_error is not None, "the outputs were compared"
    assert {name: value.tolist() for name, value in compiled.settled.items()} == {
        "shape": [2, 3, 2],
        "axes": [1],
        "k": [2],
    }
    right = {"x": floats(3, 4), "shape": np.array([2, 3, 2]), "axes": np.array([1]), "k": np.array([2])}
    expected = run_onnxruntime(model, right)
    assert expected is not None
    loaded = romou.load(compiled.save(tmp_path / "m.romou"))
    for same in ({}, {"shape": np.array([-1, 3, 2])}, {"axes": np.array([-1])}):
        for a, b in zip(loaded.run(right | same), expected, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-5)
    others = {"shape": ([3, 2, 2], [5, 1, 2]), "axes": ([0], [7]), "k": ([3], [9])}
    for name, values in others.items():
        for value in values:
            with pytest.raises(
                UsageError, match=rf"input '{name}' = \[{', '.join(map(str, value))}\] contradicts the model"
            ):
                loaded.run(right | {name: np.array(value)})


def test_an_input_of_another_length_than_shapes_ask_for_is_refused() -> None:
    model = onnx.parser.parse_model(SHAPED.replace("int64[1] k", "int64[2] k"))
    with pytest.raises(ModelError):
        import_onnx(model)


def test_batch_norms_of_constants_are_a_product_and_a_sum() -> None:
    """They follow any operator. A norm with the batch's own statistics is left unchanged."""
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal(5).astype(np.float32) for _ in range(3)] + [rng.random(5).astype(np.float32) + 0.01]
    names = [f"batch_norm/{name}" for name in ("scale", "shift", "mean", "variance")]

    def model(*norm: str, **how: int) -> onnx.ModelProto:
        norms = [helper.make_node("BatchNormalization", ["a", *names], ["y", *norm], epsilon=1e-3, **how)]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 5, 3, 4]) for name in "xy"]
        constants = [onnx.numpy_helper.from_array(w, name) for w, name in zip(weights, names, strict=True)]
        graph = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["a"]), *norms], "norms", ends[:1], ends[1:], constants
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def imported(model: onnx.ModelProto) -> list[str]:
        return [node.op_type for node in import_onnx(model).folded.graph.node]

    assert imported(model()) == ["Relu", "Mul", "Add"]
    assert imported(model("mean", "variance", training_mode=1)) == ["Relu", "BatchNormalization"]
    x = floats(2, 5, 3, 4)
    assert relative_l2_error(run(model(), {"x": x})[0], run_onnxruntime(model(), {"x": x})[0]) < 1e-6


def test_nodes_that_are_twice_or_unread_go() -> None:
    """Outputs, what a subgraph reads and random draws stay, and so does a node with another attribute or type."""
    model = model_of(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x, bool c) => (float[2, 3] y, float[2, 3] same, float[3, 2] z, float[2, 3] w, float[2, 3] d) {
            a = Exp(x) b = Exp(x) y = Add(a, b) same = Exp(x)
            p = Transpose<perm = [1, 0]>(a) q = Transpose<perm = [1, 0]>(b) o = Transpose<perm = [0, 1]>(b) z = Add(p, q)
            inner = Exp(x) r = Relu(x)
            w = If<then_branch = t () => (float[2, 3] u) { u = Add(inner, o) }, else_branch = e () => (float[2, 3] v) { v = Neg(r) }>(c)
            m = RandomNormalLike(x) n = RandomNormalLike(x) d = Sub(m, n)
            unread = Sin(x) also = Cos(unread)
        }"""  # noqa: E501
    )
    lean = fold(model)
    counts = Counter(node.op_type for node in lean.graph.node)
    assert counts == {"Exp": 3, "Add": 2, "Transpose": 2, "Relu": 1, "If": 1, "RandomNormalLike": 2, "Sub": 1}
    inputs = {"x": floats(2, 3), "c": np.array(True)}
    for found, right in zip(run_onnxruntime(lean, inputs)[:4], run_onnxruntime(model, inputs)[:4], strict=True):
        np.testing.assert_array_equal(found, right)


def test_branches_take_turns() -> None:
    """Kernels of one depth do not wait for each other, so they follow one another."""
    model = model_of(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y) {
            one = Constant <value = float {1}>() a = Relu(x) b = Exp(a) c = Add(b, one) d = Neg(x) e = Sin(d) f = Cos(e) y = Mul(c, f)
        }"""  # noqa: E501
    )
    order = [node.op_type for node in by_depth(fold(model)).graph.node if node.op_type != "Constant"]
    assert order == ["Relu", "Neg", "Exp", "Sin", "Add", "Cos", "Mul"]


def test_outputs_that_become_constants_keep_their_positions() -> None:
    """Only a folded node reads the first part of the split; the second one stays the second."""
    model = model_of(
        """<ir_version: 10, opset_import: ["": 21]> g (float[5] x) => (float[2] second, float[1] last, float[5] y)
        <float[4] c = {1, 2, 3, 4}, int64[2] sizes = {2, 2}, int64[1] from = {2}, int64[1] to = {0}, int64[1] axis = {0}, int64[1] step = {-2}> {
            first, second = Split<axis=0>(c, sizes)
            last = Slice(first, from, to, axis, step)
            y = Neg(x)
        }"""  # noqa: E501
    )
    (second, last, _) = run(model, {"x": floats(5)})
    np.testing.assert_array_equal(second, [3, 4])
    np.testing.assert_array_equal(last, [2])


def test_parts_without_elements_keep_their_sizes() -> None:
    """A part of a Concat that has no elements is two columns wide."""
    model = model_of(
        """<ir_version: 10, opset_import: ["": 21]> g (float[0, 3] x) => (float[0, 21] y)
        <float[0, 2] one = {}, float[0, 16] other = {}> {
            y = Concat<axis=1>(one, x, other)
        }"""
    )
    (y,) = run(model, {"x": np.zeros((0, 3), np.float32)})
    assert y.shape == (0, 21)
