"""All errors inside Romou or TVM name the kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm

import romou
from romou.base.errors import BuildError, DeviceError
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.families.elementwise import Elementwise
from romou.devices.targets import Target
from support.models.nodes import model_of

TARGET = Target("opencl")
INPUTS = {"x": np.ones((3, 4), np.float32)}


def built(model: onnx.ModelProto) -> None:
    """Compile a model as `romou.compile` does before it tries other kernels."""
    Compilation.of(import_model(model, None), TARGET).with_default_kernels()


def test_a_schedule_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> tvm.IRModule:
        raise IndexError("list index out of range")

    monkeypatch.setattr(Elementwise, "schedule", fail)
    with pytest.raises(
        BuildError,
        match=r"the kernel relu \(elementwise_\w+\) cannot be built: IndexError: list index out of range\n.*[Rr]eport",
    ):
        built(model_of({"y": ("Relu", "x")}, INPUTS))


def test_a_pass_that_fails_on_one_of_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> tvm.ir.Expr:
        raise ValueError("no such form")

    monkeypatch.setattr("romou.compiler.passes.nan._keeping", fail)
    with pytest.raises(BuildError, match=r"the kernel relu cannot be built: ValueError: no such form"):
        built(model_of({"y": ("Softmax", "x"), "z": ("Relu", "y")}, INPUTS))


@pytest.mark.parametrize(
    ("target", "hint"),
    [("opencl -device=adreno740", "The model is compiled for adreno740"), ("opencl", "`romou doctor` says")],
)
def test_a_driver_that_refuses_the_kernels(target: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("clBuildProgram failed: half precision is not supported")

    compiled = romou.compile(model_of({"y": ("Relu", "x")}, INPUTS), target=target, verify=False)
    monkeypatch.setattr("romou.devices.backends.programs.Programs.prepare", refuse)
    with pytest.raises(DeviceError, match=rf"(?s)half precision is not supported\n.*{hint}"):
        compiled.run(INPUTS)
