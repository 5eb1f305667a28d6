"""romou.quantize: weights rounded to the nearest code, their errors, and the model as a device runs it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import numpy_helper

import romou
from romou.base.errors import UsageError
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.frontend.round_weights import rounded_codes
from support.models.small_networks import NetworkBuilder, random_inputs


def network() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (2, 3, 64)})
    hidden = g.add("Relu", g.add("MatMul", "x", g.weight(64, 40)))
    return g.model(g.add("Add", g.add("MatMul", hidden, g.weight(40, 24)), g.weight(24)))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_are_nearest(bits: int) -> None:
    rng = np.random.default_rng(bits)
    weight = rng.standard_normal((5, 70)).astype(np.float32)
    weight[1, :32] = 0.0
    codes, scales = rounded_codes(weight, bits, 32)
    middle, steps = 1 << bits - 1, np.repeat(scales.astype(np.float64), 32, axis=1)[:, :70]
    levels = (np.arange(2 * middle) - middle)[:, None, None] * steps
    nearest = np.abs(levels - weight).min(axis=0)
    assert np.allclose(np.abs((codes.astype(np.float64) - middle) * steps - weight), nearest, atol=1e-6)
    # The number with the largest magnitude of each block is exact.
    assert (codes[0].reshape(-1)[np.abs(weight[0, :32]).argmax()] == 0) == (scales[0, 0] != 0)


def test_a_model(opencl_device: tvm.runtime.Device) -> None:
    model = network()
    quantized = romou.quantize(model, bits=8, block=16)
    assert [node.op_type for node in quantized.model.graph.node if "Mat" in node.op_type] == ["MatMulNBits"] * 2
    assert len(quantized.errors) == 2
    assert all(1e-4 < error < 1e-2 for error in quantized.errors.values())
    onnx.checker.check_model(quantized.model)
    inputs = random_inputs(model)
    expected, reference = (run_onnxruntime(m, inputs) for m in (model, quantized.model))
    assert expected is not None
    assert reference is not None
    (result,) = romou.compile(quantized.model, target="opencl").run(inputs)
    assert relative_l2_error(result, reference[0]) < 1e-3
    assert 1e-4 < relative_l2_error(result, expected[0]) < 2e-2


def test_errors_grow_with_fewer_bits_and_longer_blocks() -> None:
    errors = [
        max(romou.quantize(network(), bits=bits, block=block).errors.values())
        for bits, block in ((8, 16), (4, 16), (4, 32), (2, 32))
    ]
    assert errors == sorted(errors)
    assert errors[-1] > 10 * errors[0]


def test_weights_that_are_shared_or_short_stay() -> None:
    """A weight with another reader stays as well, and one of fewer rows than a block is not rounded."""
    g = NetworkBuilder({"x": (2, 64)})
    weight = g.weight(64, 64)
    short = g.add("MatMul", g.add("MatMul", "x", weight), g.add("Transpose", weight, perm=[1, 0]))
    model = g.model(g.add("MatMul", short, g.weight(64, 8)))
    quantized = romou.quantize(model, block=128)
    assert quantized.model == model
    assert not quantized.errors
    kept = {tensor.name for tensor in romou.quantize(model).model.graph.initializer}
    assert weight in kept
    assert numpy_helper.to_array(model.graph.initializer[0]).shape == (64, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits=3: kernels exist for 2, 4, 8"),
        ({"block": 24}, "block=24 is no power of two from 16 on"),
    ],
)
def test_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        romou.quantize(network(), **options)
