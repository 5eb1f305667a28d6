"""Updates of inputs in place: the output is the tensor of the input, and only if nothing else reads that input."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import romou
from romou.runtime.module.stepper import Stepper

TEXT = """
<ir_version: 11, opset_import: ["": 24]>
graph (float[2, 12, 8] past, float[2, 3, 8] new, int64[2] at) => (float[2, 12, 8] present, float[2, 12, 8] y)
{
    present = TensorScatter <axis = 1> (past, new, at)
    y = Neg (READ)
}
"""


@functools.cache
def compiled(read: str) -> romou.TunedModel:
    model = onnx.parser.parse_model(TEXT.replace("READ", read))
    return romou.compile(model, target="opencl -device=host", verify=False)


def is_in_place(model: romou.TunedModel) -> bool:
    machine = Stepper(model, {"past": "present"}).model._machine()
    return bool(machine._invoke()[0].data_ptr() == machine.input_tensor(0).data_ptr())


@pytest.mark.parametrize(("read", "expected"), [("present", True), ("past", False)])
def test_only_an_input_that_nothing_else_reads(read: str, expected: bool) -> None:
    model = compiled(read)
    rng = np.random.default_rng(0)
    past, new = (rng.standard_normal((2, rows, 8)).astype("float32") for rows in (12, 3))
    given = {"past": past.copy(), "new": new, "at": np.array([2, 9])}
    present = past.copy()
    for batch, at in enumerate(given["at"]):
        present[batch, at : at + 3] = new[batch]
    # The third run is captured.
    for _ in range(3):
        outputs = model.run(given)
        np.testing.assert_array_equal(outputs["present"], present)
        np.testing.assert_array_equal(outputs["y"], -present if read == "present" else -past)
    np.testing.assert_array_equal(given["past"], past)
    assert is_in_place(model) == expected


@pytest.mark.parametrize("read", ["present", "past"])
def test_state_goes_from_step_to_step(read: str) -> None:
    stepper = Stepper(compiled(read), {"past": "present"})
    state = np.zeros((2, 12, 8), "float32")
    for step in range(4):
        new, before = np.full((2, 3, 8), step + 1, "float32"), state.copy()
        for batch, at in enumerate((step, 2 * step)):
            state[batch, at : at + 3] = new[batch]
        (y,) = stepper.run({"new": new, "at": np.array([step, 2 * step])})
        np.testing.assert_array_equal(y, -state if read == "present" else -before)
    stepper.reset()
    (y,) = stepper.run({"new": np.zeros((2, 3, 8), "float32"), "at": np.array([0, 0])})
    assert not y.any()


def test_two_models_share_a_state() -> None:
    """Also if one of them has run before, and reads other tensors."""
    state, new = {"past": "present"}, np.ones((2, 3, 8), "float32")
    at = np.array([4, 8])
    other = compiled("past")
    other.run({"past": np.zeros((2, 12, 8), "float32"), "new": new, "at": at})
    first = Stepper(compiled("present"), state)
    second = Stepper(other, state, first)
    first.run({"new": new, "at": at})
    (before,) = second.run({"new": 2 * new, "at": at + 1})
    (after,) = first.run({"new": new, "at": at})
    assert (before[0, 4:7].min(), before.sum()) == (-1, -48)
    assert (after[0, 7].max(), after.sum()) == (-2, -80)


STATIC = """
<ir_version: 11, opset_import: ["": 24]>
graph (float[1, 4, 1, 8] q, float[1, 2, 1, 8] k, float[1, 2, 1, 8] v,
       float[1, 2, 12, 8] past_k, float[1, 2, 12, 8] past_v, int64[1] at, int64[1] used)
    => (float[1, 4, 1, 8] y, float[1, 2, 12, 8] all_k, float[1, 2, 12, 8] all_v)
{
    all_k = TensorScatter <axis = 2> (past_k, k, at)
    all_v = TensorScatter <axis = 2> (past_v, v, at)
    y = Attention (q, all_k, all_v, , , , used)
}
"""


def test_a_static_cache_of_onnx() -> None:
    """Opset 24 writes a cache by TensorScatter. Attention reads how much of it is in use."""
    model = onnx.parser.parse_model(STATIC)
    state = {"past_k": "all_k", "past_v": "all_v"}
    compiled_model = romou.compile(model, target="opencl -device=host", verify=False)
    assert (compiled_model.host_nodes, compiled_model.summary().by_tvm) == ((), ())
    stepper, reference, rng = Stepper(compiled_model, state), ReferenceEvaluator(model), np.random.default_rng(0)
    caches = {name: np.zeros((1, 2, 12, 8), "float32") for name in state}
    for step in range(12):
        heads = {"q": (1, 4, 1, 8), "k": (1, 2, 1, 8), "v": (1, 2, 1, 8)}
        given = {name: rng.standard_normal(shape).astype("float32") for name, shape in heads.items()}
        given |= {"at": np.array([step]), "used": np.array([step + 1])}
        expected, *new = reference.run(None, {**given, **caches})
        caches = dict(zip(caches, new, strict=True))
        np.testing.assert_allclose(stepper.run(given)[0], expected, atol=1e-5)
