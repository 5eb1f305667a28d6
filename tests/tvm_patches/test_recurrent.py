"""RNN, GRU and LSTM: onnxruntime's numbers with every option, and the same number of kernels for a thousand steps as
for three.
"""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from support.devices.platforms import INTEL, RUSTICL, Platform
from support.servers import forked
from support.suite.exhaustive import few

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
# Activations -> how many of alpha and beta onnxruntime takes for them.
ACTIVATIONS = {"Tanh": 0, "Sigmoid": 0, "Relu": 0, "Softsign": 0, "LeakyRelu": 1, "Elu": 1, "ThresholdedRelu": 1}
ACTIVATIONS |= {"HardSigmoid": 2, "Affine": 2, "ScaledTanh": 2}
PHONES = ("opencl -device=adreno640", "opencl -device=mali_g76", "vulkan -device=mali_g715")


class Node:
    """A recurrent node with weights from a seed. Each of `options`, optional inputs and attributes,
    is used by chance.
    """

    def __init__(
        self, operator: str, direction: str, seed: int, *, steps: int, hidden: int, batch: int = 2, inputs: int = 5
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.operator, self.steps, self.batch, self.hidden = operator, steps, batch, hidden
        self.directions, gates = 1 + (direction == "bidirectional"), GATES[operator] * hidden
        self.given = {"x": 2 * self.normal(steps, batch, inputs)}
        self.weights = {
            "w": self.normal(self.directions, gates, inputs),
            "r": self.normal(self.directions, gates, hidden),
        }
        self.attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
        self.names = ["x", "w", "r", *[""] * 5]

    def normal(self, *shape: int) -> np.ndarray:
        return (0.3 * self.rng.standard_normal(shape)).astype("float32")

    def with_options(self) -> Node:
        states = (self.directions, self.batch, self.hidden)
        options = {
            3: ("b", self.normal(self.directions, 2 * GATES[self.operator] * self.hidden)),
            4: ("lengths", self.rng.integers(1, self.steps + 1, self.batch).astype("int32")),
            5: ("h", self.normal(*states)),
        }
        if self.operator == "LSTM":
            options |= {6: ("c", self.normal(*states)), 7: ("p", self.normal(self.directions, 3 * self.hidden))}
        for at, (name, value) in options.items():
            if self.rng.random() < 0.6:
                self.names[at] = name
                (self.given if self.rng.random() < 0.5 and at in (4, 5, 6) else self.weights)[name] = value
        if self.rng.random() < 0.5:
            self.attributes["clip"] = float(self.rng.uniform(0.3, 2))
        if self.operator == "LSTM":
            self.attributes["input_forget"] = int(self.rng.random() < 0.3)
        if self.operator == "GRU":
            self.attributes["linear_before_reset"] = int(self.rng.random() < 0.5)
        if self.rng.random() < 0.5:
            names = [str(n) for n in self.rng.choice(list(ACTIVATIONS), self.directions * FUNCTIONS[self.operator])]
            alphas, betas = ([0.3 for n in names if ACTIVATIONS[n] >= count] for count in (1, 2))
            self.attributes |= {"activations": names} | ({"activation_alpha": alphas} if alphas else {})
            self.attributes |= {"activation_beta": betas} if betas else {}
        return self

    def model(self, *outputs: str, opset: int = 17) -> onnx.ModelProto:
        names = self.names[: max(i for i, name in enumerate(self.names) if name) + 1]
        node = helper.make_node(self.operator, names, outputs, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in self.given.items()
        ]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph([node], "recurrent", inputs, results, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(
    model: onnx.ModelProto, given: Mapping[str, np.ndarray], target: str = "opencl", tolerance: float = 2e-5
) -> romou.TunedModel:
    expected = run_onnxruntime(model, given)
    assert expected is not None, "onnxruntime takes the model"
    compiled = romou.compile(model, target=target, verify=False, strict=True)
    found = compiled.run(given)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(np.abs(b).max()))
    return compiled


@pytest.mark.parametrize("seed", few(range(2, 4), 1))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", list(GATES))
def test_options(operator: str, direction: str, seed: int) -> None:
    node = Node(
        operator, direction, seed, steps=seed + 2, hidden=(4, 9, 32, 67)[seed], batch=seed % 3 + 1
    ).with_options()
    outputs = ("y", "y_h", "y_c")[: 2 + (operator == "LSTM")]
    # Any of the results, at least one.
    wanted = [name if node.rng.random() < 0.6 else "" for name in outputs]
    check(node.model(*(wanted if any(wanted) else outputs)), node.given)


def check_each_operator() -> None:
    """Check each operator, in a separate process."""
    for operator in GATES:
        node = Node(operator, "bidirectional", 3, steps=4, hidden=20).with_options()
        check(node.model("y", "y_h"), node.given)
    # Work-items share sums, and add up their partial sums in local memory.
    node = Node("GRU", "bidirectional", 5, steps=4, hidden=36).with_options()
    for phone in ("adreno640", "mali_g76"):
        check(node.model("y", "y_h"), node.given, f"opencl -device={phone}")
    print("right")


@pytest.mark.parametrize("platform", [INTEL, RUSTICL], ids=lambda platform: platform.name)
def test_other_compilers(platform: Platform, request: pytest.FixtureRequest) -> None:
    platform.require(request.config)
    code = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}; import test_recurrent;"
        " test_recurrent.check_each_operator()"
    )
    done = forked.run("-c", code, env=platform.environment())
    assert done.stdout.splitlines()[-1:] == ["right"], done.stdout + done.stderr


@pytest.mark.parametrize("batch", few([5, 8], 0))
@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640"])
def test_sequences_share_weights(target: str, batch: int) -> None:
    """Work-items have four sequences, even if the batch is no multiple of four."""
    for operator in GATES:
        node = Node(operator, "bidirectional", batch, steps=3, hidden=28, batch=batch).with_options()
        check(node.model("y", "y_h"), node.given, target)


@pytest.mark.parametrize(("target", "hidden"), [("opencl", 176), ("opencl -device=adreno640", 64)])
def test_one_kernel_runs_all_steps_of_few_units(target: str, hidden: int) -> None:
    """More units, or more sequences of a work-item, have a kernel for the first states and one for a step."""
    counts = []
    for units, batch in ((hidden, 1), (hidden + 8, 1), (hidden, 4)):
        node = Node("LSTM", "bidirectional", 6, steps=3, hidden=units, batch=batch).with_options()
        text = "".join(check(node.model("y", "y_h", "y_c"), node.given, target).sources().values())
        counts.append(len(re.findall(r"__kernel[^{]*lstm", text)))
    assert counts == [1, 2, 2]


@pytest.mark.parametrize("operator", list(GATES))
def test_many_units_of_phones(operator: str) -> None:
    """Work groups share a sequence, and the host launches each step."""
    node = Node(operator, "bidirectional", 7, steps=3, hidden=148).with_options()
    check(node.model("y", "y_h"), node.given, PHONES[0])


@pytest.mark.parametrize("target", PHONES[:2])
@pytest.mark.parametrize("operator", list(GATES))
def test_numbers_of_phones(operator: str, target: str) -> None:
    node = Node(operator, "bidirectional", 7, steps=3, hidden=44).with_options()
    check(node.model("y", "y_h"), node.given, target)


@pytest.mark.parametrize("operator", list(GATES))
def test_vulkan(operator: str, vulkan_device: object) -> None:
    node = Node(operator, "bidirectional", 11, steps=40, hidden=24).with_options()
    check(node.model("y", "y_h"), node.given, "vulkan")


@pytest.mark.parametrize("operator", list(GATES))
def test_fp16(operator: str) -> None:
    """Sums and states are fp32: the error does not grow with the steps."""
    node = Node(operator, "bidirectional", 2, steps=100, hidden=32)
    expected = run_onnxruntime(node.model("y"), node.given)
    compiled = romou.compile(node.model("y"), precision="float16", io_precision="float32", verify=False, strict=True)
    assert expected is not None
    assert relative_l2_error(compiled.run(node.given)[0], expected[0]) < 4e-3


def test_batch_first() -> None:
    """layout=1, which onnxruntime's CPU does not run, is a transpose of the other."""
    node = Node("LSTM", "bidirectional", 1, steps=5, hidden=12, batch=3)
    node.names[5], node.given["h"] = "h", node.normal(2, 3, 12)
    expected = run_onnxruntime(node.model("y", "y_h", "y_c"), node.given)
    assert expected is not None
    node.attributes["layout"] = 1
    node.given = {name: np.ascontiguousarray(value.transpose(1, 0, 2)) for name, value in node.given.items()}
    found = romou.compile(node.model("y", "y_h", "y_c"), verify=False, strict=True).run(node.given)
    for a, b, axes in zip(found, expected, [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)], strict=True):
        np.testing.assert_allclose(a, b.transpose(axes), atol=1e-5)


def live_bytes() -> int:
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    return int(json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))["live_bytes"])


def test_three_hundred_steps() -> None:
    """Three hundred steps take the kernels and weights of three, and the plan equals the device's allocations."""
    node = Node("LSTM", "bidirectional", 4, steps=300, hidden=128, batch=1, inputs=64)
    before = live_bytes()
    compiled = check(node.model("y", "y_h", "y_c"), node.given)
    memory, held = compiled.summary().memory, live_bytes() - before
    assert memory is not None
    few = Node("LSTM", "bidirectional", 4, steps=3, hidden=128, batch=1, inputs=64)
    of_few = romou.compile(few.model("y", "y_h", "y_c"), verify=False, strict=True)
    assert len(compiled.sources()) <= len(of_few.sources()) + 1
    in_file = sum(weight.nbytes for weight in node.weights.values())
    assert in_file <= memory.weights <= in_file + 8192
    # Inputs, and a page for each small tensor.
    assert memory.weights <= held <= memory.total + 16 * 4096
    compiled.release()


def test_capture_is_the_same() -> None:
    node = Node("GRU", "forward", 9, steps=30, hidden=16)
    compiled = romou.compile(node.model("y"), verify=False, strict=True)
    compiled.capture = True
    first = compiled.run(node.given)[0]
    assert not np.array_equal(compiled.run({"x": -node.given["x"]})[0], first)
    np.testing.assert_array_equal(compiled.run(node.given)[0], first)
    assert "command buffer" in compiled.launching


@pytest.mark.parametrize("target", PHONES)
def test_a_thousand_steps(target: str) -> None:
    """There is no limit of steps and no growing list of arguments. A saved model holds the weights once."""
    kernels = [
        romou.compile(node.model("y"), target=target, strict=True)
        for node in (Node("LSTM", "forward", 0, steps=n, hidden=64) for n in (3, 1000))
    ]
    texts = [re.sub(r"\d+", "", "".join(sorted(compiled.sources()))) for compiled in kernels]
    assert len(texts[1]) <= len(texts[0]) + 100
    # OpenCL's kernels also have pointers of their own.
    heads = ("".join(re.findall(r"__kernel[^{]*", text)) or text for text in kernels[1].sources().values())
    arguments = [re.findall(r"(?:__global|buffer |__read_only)", head) for head in heads]
    assert all(arguments)
    assert max(map(len, arguments)) <= 8
