"""romou.training.gradients on the device, compared with NumPy in double precision. NumPy is compared with finite
differences of the loss.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import romou
from romou.base.errors import ModelError, UsageError
from support.docs.documents import blocks
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import exhaustive
from training_reference import by_numpy, relative_error, squeezenet_head

SEED = 5


def convolutions(batch: int) -> onnx.ModelProto:
    """Return a chain of convolutions with odd sizes, strides, dilations, whole-texel groups, cut groups and depthwise,
    and pools.
    """
    g = NetworkBuilder({"image": (batch, 3, 19, 17)}, seed=SEED)
    x = g.add("Relu", g.conv("image", 3, 8, (5, 3), strides=[2, 1], pads=[2, 0, 1, 1]))
    x = g.add("Relu", g.conv(x, 8, 16, (3, 3), groups=2, dilations=[2, 1], pads=[2, 1, 2, 1]))
    x = g.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = g.add("Relu", g.conv(x, 16, 6, (3, 2), groups=2, strides=[1, 3], pads=[0, 1, 2, 0]))
    y = g.conv(x, 6, 6, (3, 3), groups=6, strides=[2, 1], dilations=[2, 2], pads=[2, 2, 2, 2])
    z = g.conv(x, 6, 6, (1, 1), strides=[2, 1])
    x = g.add("AveragePool", g.add("Add", y, z), kernel_shape=[2, 2])
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    return g.model(g.add("Gemm", x, g.weight(5, 6), g.weight(5), transB=1))


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"image": rng.standard_normal(shape).astype("float32"), "labels": rng.integers(0, 5, shape[0])}


def families_of(tuned: romou.TunedModel) -> set[str]:
    known = ("conv2d_backward_filter", "conv2d_transpose", "conv2d", "group_conv2d", "depthwise")
    return {next((name for name in known if row.name.startswith(f"{name}_")), "other") for row in tuned.summary().rows}


@pytest.mark.parametrize(
    ("model", "precision", "limit"),
    [
        (convolutions(7), "float32", 1e-4),
        *(
            pytest.param(*case, marks=exhaustive)
            for case in ((convolutions(1), "float32", 1e-4), (convolutions(7), "float16", 2e-2))
        ),
        pytest.param(squeezenet_head(1, 23, 1, channels=12), "float16", 2e-2, marks=exhaustive),
    ],
    ids=["batch 7", "batch 1", "batch 7, fp16", "SqueezeNet's head, fp16"],
)
def test_a_step_is_that_of_numpy(
    model: onnx.ModelProto, precision: str, limit: float, opencl_device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss, gradients, and the loss after a step of SGD agree. The backward convolutions are kernels of Romou's
    families.
    """
    # Numbers are all that counts here: PoCL's optimiser would take most of the time.
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    step, inputs = romou.training.gradients(model, precision=precision), inputs_of(model)
    tuned = romou.compile(step, target="opencl")
    assert families_of(tuned) >= {"conv2d", "conv2d_transpose", "conv2d_backward_filter"}
    found = dict(zip(step.outputs, tuned.run({**inputs, **step.parameters}), strict=True))
    loss, expected = by_numpy(model, inputs)
    assert float(found["loss"]) == pytest.approx(loss, rel=limit)
    errors = {name: relative_error(found[f"{name}.grad"], expected[name]) for name in step.parameters}
    assert len(errors) == len(model.graph.initializer)
    assert max(errors.values()) < limit, errors
    for tensor in model.graph.initializer:
        tensor.raw_data = (
            (step.parameters[tensor.name] - np.float32(0.05) * found[f"{tensor.name}.grad"]).astype("float32").tobytes()
        )
    assert by_numpy(model, inputs)[0] < loss, "a small step down the gradient makes the loss smaller"


def test_numpy_is_what_differences_say() -> None:
    """NumPy's gradients equal finite differences in double precision, for an element of each weight."""
    model = convolutions(2)
    inputs = inputs_of(model)
    _, gradients = by_numpy(model, inputs)
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        place = tuple(np.argwhere(np.abs(gradients[tensor.name]) == np.abs(gradients[tensor.name]).max())[0])
        losses = []
        for side in (1e-6, -1e-6):
            moved = values.copy()
            moved[place] += side
            other = onnx.ModelProto()
            other.CopyFrom(model)
            (one,) = (t for t in other.graph.initializer if t.name == tensor.name)
            one.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
            losses.append(by_numpy(other, inputs)[0])
        assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(gradients[tensor.name][place], rel=1e-4), tensor.name


def test_only_what_is_asked_for_is_differentiated() -> None:
    model = convolutions(1)
    name = model.graph.initializer[0].name
    step = romou.training.gradients(model, wrt=[name, "image"], loss="mean_squared_error")
    assert step.outputs == ("loss", f"{name}.grad", "image.grad")
    assert list(step.parameters) == [name]
    assert step.inputs["labels"] == ((1, 5), "float32")


def test_an_operator_without_gradient_is_named() -> None:
    g = NetworkBuilder({"image": (1, 4, 6, 6)})
    x = g.add("Erf", g.conv("image", 4, 4, (3, 3)))
    model = g.model(g.add("Flatten", x))
    with pytest.raises(ModelError, match=r"the operator erf \(of \(1, 4, 4, 4\)\) has no gradient"):
        romou.training.gradients(model)


def test_what_cannot_be_differentiated_is_said() -> None:
    model = convolutions(1)
    with pytest.raises(UsageError, match="wrt: the model has no weight or input 'imag'; did you mean 'image'"):
        romou.training.gradients(model, wrt=["imag"])
    with pytest.raises(
        UsageError, match="loss='hinge': expected one of 'cross_entropy', 'mean_squared_error', or None"
    ):
        romou.training.gradients(model, loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(
        ModelError, match=r"the output has the shape \(1, 5\); without a loss it has to be a single number"
    ):
        romou.training.gradients(model, loss=None)
    model.graph.output.append(helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="2 outputs"):
        romou.training.gradients(onnx.shape_inference.infer_shapes(model))


def test_the_pages_example_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    g = NetworkBuilder({"image": ("batch", 3, "height", "width")}, seed=SEED)
    x = g.add("Flatten", g.add("GlobalAveragePool", "image"))
    onnx.save(g.model(g.add("Gemm", x, g.weight(10, 3), g.weight(10), transB=1)), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    (example,) = [
        block.text for block in blocks("python") if block.path.name == "training.md" and "import" in block.text
    ]
    exec(
        example.replace("trials=200", "trials=0").replace("(32, 3, 64, 64)", "(2, 3, 8, 8)").replace("10, 32", "10, 2"),
        {},
    )
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 3
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("ends_in", ["Softmax", "LogSoftmax", ""])
def test_a_second_softmax_has_a_warning(ends_in: str, caplog: pytest.LogCaptureFixture) -> None:
    g = NetworkBuilder({"x": (2, 8)}, seed=SEED)
    x = g.add("Gemm", "x", g.weight(5, 8), transB=1)
    x = g.add("Identity", g.add(ends_in, x, axis=-1)) if ends_in else x
    romou.training.gradients(g.model(x))
    assert ["ends in a Softmax" in record.getMessage() for record in caplog.records] == [True] * (ends_in == "Softmax")
