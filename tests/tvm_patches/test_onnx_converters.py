"""Converters that replace the wheel's: the simple form, the same numbers, and a sign for when to drop them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx as wheels_from_onnx
from tvm_ffi.structural import structural_walk

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.importing import import_onnx
from support.models.small_networks import NetworkBuilder, random_inputs
from tvm_patches.onnx_converters import from_onnx


def operators(model: onnx.ModelProto, *, patched: bool) -> list[str]:
    found: list[str] = []
    mod = from_onnx(model)[0] if patched else wheels_from_onnx(model, keep_params_in_input=False)
    structural_walk(mod["main"].body, (relax.Call, lambda call: found.append(getattr(call.op, "name", "?"))))
    return found


def clip_model(low: float | None = 0.0, high: float | None = 6.0) -> onnx.ModelProto:
    g = NetworkBuilder({"x": (2, 3)})
    bounds = ["" if bound is None else g.constant(np.float32(bound)) for bound in (low, high)]
    return g.model(g.add("Clip", "x", *bounds))


def max_model() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (2, 3)})
    return g.model(g.add("Max", "x", g.weight(2, 3), g.weight(1, 3)))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (clip_model(), ["relax.maximum", "relax.minimum"]),
        (clip_model(low=None), ["relax.minimum"]),
        (clip_model(high=None), ["relax.maximum"]),
        (max_model(), ["relax.maximum", "relax.maximum"]),
    ],
)
def test_the_simple_form(model: onnx.ModelProto, expected: list[str]) -> None:
    assert sorted(operators(model, patched=True)) == expected


@pytest.mark.parametrize("operator", ["Clip", "Max", "Min"])
def test_a_constant_that_is_not_a_number_stays(operator: str, opencl_device: tvm.runtime.Device) -> None:
    """A part of the operator has only constants: TVM would compute it without NaN."""
    g = NetworkBuilder({"x": ()})
    constants = [g.constant(np.array([np.nan, 1.0, -3.0], "float32")), g.constant(np.float32(-1))]
    model = g.model(g.add(operator, *constants, "x"))
    inputs = {"x": np.array(2, "float32")}
    (expected,), (found,) = (
        run_onnxruntime(model, inputs),
        romou.compile(model, target="opencl", strict=True).run(inputs),
    )
    assert np.isnan(expected).sum() == 1
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("model", [clip_model(), max_model()])
def test_the_wheel_still_needs_it(model: onnx.ModelProto) -> None:
    """If this fails, the wheel emits the simple form: drop the converter."""
    assert len(operators(model, patched=False)) > len(operators(model, patched=True))


def transpose_model(**attributes: object) -> onnx.ModelProto:
    g = NetworkBuilder({"x": (1, 3, 5, 7)})
    return g.model(g.add("ConvTranspose", "x", g.weight(3, 4, 3, 4), strides=[2, 3], **attributes))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_of_a_wanted_shape(auto_pad: str) -> None:
    model = transpose_model(output_shape=[10, 19], auto_pad=auto_pad)
    imported = import_onnx(model)
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    executable = tvm.compile(imported.mod, target="llvm")
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(a) for a in inputs.values()])
    assert result.shape == (1, 4, 10, 19)
    assert relative_l2_error(result.numpy(), expected[0]) < 1e-5


def test_the_wheel_still_passes_by_the_wanted_shape() -> None:
    """If this fails, the wheel reads the attribute: drop the converter."""
    mod = wheels_from_onnx(transpose_model(output_shape=[10, 19]), keep_params_in_input=False)
    assert [int(d) for d in mod["main"].ret_ty.shape.values] == [1, 4, 11, 22]


def names_model() -> onnx.ModelProto:
    g = NetworkBuilder({"/conv1/x": (2, 3), "_conv1_x": (2, 3), "an input": (2, 3)})
    return g.model(g.add("Add", g.add("Add", "/conv1/x", "_conv1_x"), "an input"))


def test_names_of_inputs_are_identifiers() -> None:
    imported = import_onnx(names_model())
    names = [parameter.name for parameter in imported.mod["main"].params]
    assert len(set(names)) == 3
    assert all(name.isidentifier() for name in names)
    assert list(imported.inputs) == ["/conv1/x", "_conv1_x", "an input"]


def test_a_kernel_has_no_parameter_of_an_invalid_name(opencl_device: tvm.runtime.Device) -> None:
    """Fails in the wheel: OpenCL's compiler finds no identifier."""
    model = names_model()
    inputs = random_inputs(model)
    (found,) = romou.compile(model, target="opencl", strict=True).run(inputs)
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    assert relative_l2_error(found, reference[0]) < 1e-5
