"""GridSample in every mode, inside of the input and far outside of it."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import tvm

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, random_arrays, reference
from support.models.nodes import assert_as_onnxruntime, model_of
from tvm_patches.quiet import quiet_stderr

PHONE = Target("opencl -device=adreno640")
PADDINGS = ("zeros", "border", "reflection")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_positions_outside_of_the_input(mode: str) -> None:
    """Up to two times the input's size away."""
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((1, 2, 5, 6)).astype("float32"),
        "grid": (rng.random((1, 9, 11, 2)) * 10 - 5).astype("float32"),
    }
    nodes = {
        f"{padding}{aligned}": (
            "GridSample",
            "x grid",
            {"mode": mode, "padding_mode": padding, "align_corners": aligned},
        )
        for padding, aligned in itertools.product(PADDINGS, (0, 1))
    }
    assert_as_onnxruntime(model_of(nodes, inputs, opset=20), inputs, 1e-4)


def test_three_axes() -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((2, 3, 4, 5, 6)).astype("float32"),
        "grid": (rng.random((2, 3, 2, 5, 3)) * 3 - 1.5).astype("float32"),
    }
    nodes = {padding: ("GridSample", "x grid", {"padding_mode": padding}) for padding in PADDINGS}
    assert_as_onnxruntime(model_of(nodes, inputs, opset=20), inputs, 1e-4)


def test_infinities_beside_a_position_do_not_reach_it() -> None:
    """Elements outside of the input are zeros, not products of a weight of zero."""
    x = np.full((1, 1, 3, 3), np.inf, "float32")
    inputs = {"x": x, "grid": np.full((1, 1, 1, 2), -3, "float32")}
    assert_as_onnxruntime(model_of({"y": ("GridSample", "x grid")}, inputs, opset=20), inputs)


def test_formulas_of_a_position_stand_once() -> None:
    """Not once for each of the 16 elements around it, which took 17 s to compile."""
    inputs = {"x": np.zeros((1, 3, 5, 6), "float32"), "grid": np.zeros((1, 9, 11, 2), "float32")}
    model = model_of({"y": ("GridSample", "x grid", {"mode": "cubic", "padding_mode": "reflection"})}, inputs, opset=20)
    kernels = romou.compile(model, target="opencl -device=adreno640", strict=True, verify=False).sources()
    assert ["floor(" in text for name, text in sorted(kernels.items())] == [True, True, False]


def test_channels_share_a_position(opencl_device: tvm.runtime.Device) -> None:
    """A work-item reads a position once for its channels, without a branch for each. Tiles need not divide them."""
    rng = np.random.default_rng(1)
    inputs = {
        "x": rng.standard_normal((2, 19, 7, 9)).astype("float32"),
        "grid": (rng.random((2, 5, 3, 2)) * 3 - 1.5).astype("float32"),
    }
    model = model_of({"y": ("GridSample", "x grid")}, inputs, opset=20)
    assert_as_onnxruntime(model, inputs, target=str(PHONE))
    with quiet_stderr():
        (kernel,) = (k for k in romou.inspect(model, target=str(PHONE)) if k.name == "gridsample_kernel")
        tasks, _ = extract_tasks(fuse_operators(import_onnx(model).mod, PHONE))
    assert int(kernel.config["tile"]) > 1
    # Two taps along each of two axes: four indices and four weights. The only branch is the one at the last channels.
    assert len(re.findall(r"= lv1?_ptr\[", kernel.source)) == 8
    assert "condval" not in kernel.source
    (task,) = (each for each in tasks if each.template.family == "pool")
    arrays = random_arrays(task, rng)
    (indices,) = (each for each in arrays if each.dtype == np.int32)
    indices[:] = rng.integers(-1, 7, indices.shape)
    expected = reference(task, arrays)
    for config in [task.default_config(PHONE), *task.space(PHONE).sample(rng, 2)]:
        assert_agrees(PHONE, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_samples_of_a_grid_keep_their_type(mode: str) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((1, 2, 6, 7)).astype("float16"),
        "grid": (rng.random((1, 5, 4, 2)) * 2 - 1).astype("float16"),
    }
    model = model_of({"y": ("GridSample", "x grid", {"mode": mode})}, inputs)
    model.opset_import[0].version = 20
    found = romou.compile(model, target="opencl", strict=True, verify=False).run(inputs)["y"]
    wide = {name: array.astype("float32") for name, array in inputs.items()}
    model = model_of({"y": ("GridSample", "x grid", {"mode": mode})}, wide)
    model.opset_import[0].version = 20
    expected = run_onnxruntime(model, wide)
    assert expected is not None
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected[0], 2e-2, 2e-2)
