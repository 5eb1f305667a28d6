"""Updates of inputs in place: the output is the tensor of the input, and only if nothing else reads that input."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

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
