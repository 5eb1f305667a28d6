"""ONNX's backend node tests and the bundled graphs as cases: a model, inputs, and the expected outputs. Also runs and
judges a case.

Older wheels of onnx hold the node tests as files, newer ones generate them, always with the same seed. Neither needs a
network.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.numpy_helper

if TYPE_CHECKING:
    from romou.runtime.module import TunedModel

# The origin of a right result: kernels of Romou's families or nothing to compute, at least one kernel of TVM's own
# rules, at least one node on the host.
KERNEL, PLAIN, HOST = "kernels", "plain schedule", "on the host"
REFUSED, WRONG, TRACEBACK, CRASH, OVER_TIME = "refused", "wrong", "traceback", "crash", "over time"
OUTCOMES = (KERNEL, PLAIN, HOST, REFUSED, WRONG, TRACEBACK, CRASH, OVER_TIME)
# Outcomes of tests that run entirely on the device.
ON_DEVICE = (KERNEL, PLAIN)
# Outcomes that a release may not have.
FAULTS = (WRONG, TRACEBACK, CRASH, OVER_TIME)

# Their values are drawn at random, so only shape and dtype are compared.
_RANDOM = re.compile(r"test_(bernoulli|training_dropout|random)")
# Elements of an input that a model could hold as a constant.
_MOST_CONSTANT = 64
# Relative L2 error by dtype: wider than rounding, narrower than any wrong formula.
_L2 = {"float64": 1e-6, "float32": 2e-4, "float16": 2e-3, "bfloat16": 1e-2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with one set of inputs, in the order of the graph's.

    operator: the operator under test
    inputs, outputs: None for random inputs and onnxruntime's outputs
    rtol, atol: tolerances of one element
    """

    name: str
    operator: str
    model: bytes
    inputs: list[Any] | None
    outputs: list[Any] | None
    rtol: float = 1e-3
    atol: float = 1e-7


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a case.

    detail: why it is not right
    host_nodes: nodes that ran on the host
    plain: nodes with a schedule of TVM's
    with_constants: the outcome of a test on the host if its small inputs, all except the first, are constants of the
    model. Empty if not tried.
    """

    outcome: str
    detail: str = ""
    host_nodes: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    with_constants: str = ""


def node_cases() -> list[Case]:
    """Return all node tests of the installed onnx, sorted by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of overflows that the tests want
        tests = load_model_tests(kind="node")
    models = {test.name: test.model or onnx.load(Path(str(test.model_dir)) / "model.onnx") for test in tests}
    cases = []
    for test in tests:
        model = models[test.name]
        # The expanded body of a function counts for the function.
        named = models.get(re.sub(r"_expanded(_ver\d+)?$", "", test.name), model)
        inputs, outputs = (
            test.data_sets[0] if test.data_sets else _read_data(Path(str(test.model_dir)) / "test_data_set_0", model)
        )
        cases.append(
            Case(
                name=test.name,
                operator=named.graph.node[-1].op_type,
                model=model.SerializeToString(),
                inputs=[_array(value) for value in inputs],
                outputs=[_array(value) for value in outputs],
                rtol=test.rtol,
                atol=test.atol,
            )
        )
    return sorted(cases, key=lambda case: case.name)


def bundled_cases() -> list[Case]:
    """Return the bundled graphs with random inputs. A deep network is judged only by the L2 error."""
    from romou import models

    graphs = {name: models.load(name).SerializeToString() for name in models.names()}
    return [
        Case(name=f"bundled:{name}", operator="bundled graphs", model=graph, inputs=None, outputs=None, atol=math.inf)
        for name, graph in graphs.items()
    ]


def run_case(case: Case, target: str) -> Result:
    """Compile a case, run it and compare its outputs. Romou's errors are passed on."""
    return _with_other(_run, case, target)


def compile_case(case: Case, target: str) -> Result:
    """Compile a case and return the outcome that `run_case` would give a right result."""
    return _with_other(_compile, case, target)


def _with_other(attempt: Callable[[Case, str], Result], case: Case, target: str) -> Result:
    from romou.base.errors import RomouError

    result = attempt(case, target)
    other = with_constants(case) if result.outcome == HOST else None
    if other is None:
        return result
    try:
        return replace(result, with_constants=attempt(other, target).outcome)
    except RomouError:
        return replace(result, with_constants=REFUSED)


def with_constants(case: Case) -> Case | None:
    """Return the case with small inputs, all except the first, as initializers: axes, shapes and sizes, which models
    hold as constants. None if there are none.
    """
    model = onnx.load_from_string(case.model)
    weights = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in weights]
    inputs = list(case.inputs or ())
    fixed = {
        i: onnx.numpy_helper.from_array(array, value.name)
        for i, (value, array) in enumerate(zip(values, inputs, strict=False))
        if i
        and isinstance(array, np.ndarray)
        and array.size <= _MOST_CONSTANT
        and array.dtype.kind != "O"
        and value.type.HasField("tensor_type")
    }
    if not fixed:
        return None
    model.graph.initializer.extend(fixed.values())
    kept = [value for i, value in enumerate(values) if i not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return replace(
        case, model=model.SerializeToString(), inputs=[array for i, array in enumerate(inputs) if i not in fixed]
    )


def _compiled(case: Case, target: str) -> tuple[onnx.ModelProto, dict[str, Any], TunedModel, Result]:
    """Return (model, inputs, compiled, result if its outputs are right)."""
    import romou
    from romou.base.inputs import random_inputs

    model = onnx.load_from_string(case.model)
    weights = {tensor.name for tensor in model.graph.initializer}
    values = {value.name: value for value in model.graph.input if value.name not in weights}
    inputs = dict(zip(values, case.inputs or (), strict=False))
    shapes = {name: np.shape(array) for name, array in inputs.items() if _is_open(values[name])}
    # The outputs are compared below, on the case's own inputs.
    compiled = romou.compile(model, target=target, shapes=shapes, verify=False)
    inputs = inputs or random_inputs(compiled.inputs, seed=0) | compiled.settled
    host_nodes, plain = tuple(compiled.host_nodes), compiled.summary().by_tvm
    origin = HOST if host_nodes else PLAIN if plain else KERNEL
    return model, inputs, compiled, Result(outcome=origin, host_nodes=host_nodes, plain=plain)


def _compile(case: Case, target: str) -> Result:
    return _compiled(case, target)[-1]


def _run(case: Case, target: str) -> Result:
    from romou.compiler.frontend.reference import run_onnxruntime

    model, inputs, compiled, result = _compiled(case, target)
    expected = run_onnxruntime(model, inputs) if case.outputs is None else case.outputs
    assert expected is not None
    fault = _difference(case, list(compiled.run(inputs)), expected)
    return replace(result, outcome=WRONG, detail=fault) if fault else result


def _difference(case: Case, outputs: list[np.ndarray], expected: list[Any]) -> str:
    """Return the fault of the outputs, or an empty text."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, expected {len(expected)}"
    for number, (output, right) in enumerate(zip(outputs, map(np.asarray, expected), strict=True)):
        if output.dtype != right.dtype:
            return f"output {number}: dtype {output.dtype}, expected {right.dtype}"
        if output.shape != right.shape:
            return f"output {number}: shape {output.shape}, expected {right.shape}"
        fault = "" if _RANDOM.match(case.name) else _unequal(output, right, case.rtol, case.atol)
        if fault:
            return f"output {number}: {fault}"
    return ""


def _unequal(output: np.ndarray, right: np.ndarray, rtol: float, atol: float) -> str:
    from romou.compiler.frontend.reference import relative_l2_error

    if right.dtype.name.startswith("float8"):
        return (
            ""
            if np.array_equal(output.astype("float32"), right.astype("float32"), equal_nan=True)
            else "elements differ"
        )
    if right.dtype.name not in _L2:
        return (
            ""
            if np.array_equal(output, right)
            else f"{np.count_nonzero(output != right)} of {right.size} elements differ"
        )
    a, b = output.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "not finite where the other is, or of another sign"
    # A sum that cancels has the rounding of its terms.
    rounding = 8 * 2.0 ** -{"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[right.dtype.name]
    slack = max(atol, rounding * float(np.abs(b[finite]).max(initial=0.0)))
    if not np.allclose(a[finite], b[finite], rtol=rtol, atol=slack):
        return f"an element differs by {np.abs(a[finite] - b[finite]).max():.2e}"
    error = relative_l2_error(output, right)
    is_tiny = np.allclose(a[finite], b[finite], rtol=0, atol=1e-7)
    return "" if error <= _L2[right.dtype.name] or is_tiny else f"relative L2 error {error:.2e}"


def _is_open(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return value.type.HasField("tensor_type") and (
        not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim)
    )


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read_data(folder: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    """Return (inputs, outputs) of a test that is kept as files."""

    def read(prefix: str, values: Any) -> list[Any]:
        return [_read_value(folder / f"{prefix}_{number}.pb", value) for number, value in enumerate(values)]

    return read("input", model.graph.input), read("output", model.graph.output)


def _read_value(path: Path, value: onnx.ValueInfoProto) -> Any:
    data = path.read_bytes()
    if value.type.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if value.type.HasField("optional_type"):
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))
