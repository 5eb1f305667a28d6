"""Functions of one task that write different slices of a tensor: each has a kernel, made from a copy of the first one's
schedule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.devices.backends.cuda.nvrtc import compile_cuda
from support.kernels.operators import has_device, kind_id, target_of
from support.models.small_networks import NetworkBuilder, random_inputs
from support.suite.exhaustive import in_turn


def pools() -> onnx.ModelProto:
    """Return three consecutive pools, all of them concatenated, as in detectors."""
    g = NetworkBuilder({"image": (1, 16, 7, 7)})
    made = [g.conv("image", 16, 12, (1, 1))]
    for _ in range(3):
        made.append(g.add("MaxPool", made[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    return g.model(g.conv(g.add("Concat", *made, axis=1), 48, 8, (1, 1)))


def dense_block() -> onnx.ModelProto:
    """Return convolutions that each read all earlier results."""
    g = NetworkBuilder({"image": (1, 12, 9, 9)})
    made = ["image"]
    for k in range(4):
        made.append(
            g.add(
                "LeakyRelu",
                g.conv(g.add("Concat", *made, axis=1) if k else "image", 12 + 8 * k, 8, pads=[1] * 4),
                alpha=0.2,
            )
        )
    return g.model(made[-1])


def group_norms() -> onnx.ModelProto:
    """Return two normalizations in groups of channels, concatenated with their inputs."""
    g, groups = NetworkBuilder({"image": (1, 8, 6, 6)}), 4
    ones, zeros = (g.constant(np.full(groups, value, "float32")) for value in (1, 0))
    rows, back = (g.constant(np.asarray(shape, "int64")) for shape in ((0, groups, -1), (1, 8, 6, 6)))
    x, made = "image", []
    for _ in range(3):
        x = g.conv(x, 8, 8, pads=[1] * 4)
        norm = g.add("Reshape", g.add("InstanceNormalization", g.add("Reshape", x, rows), ones, zeros), back)
        made += [x, g.add("Sigmoid", g.add("Mul", norm, g.weight(8, 1, 1)))]
        x = made[-1]
    return g.model(g.add("Concat", made[2], made[3], made[5], axis=1))


@in_turn
@pytest.mark.parametrize("make", [pools, dense_block, group_norms], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "kind", ["opencl", "opencl -device=adreno640", "opencl -device=mali_g76", "vulkan", "cuda"], ids=kind_id
)
def test_each_has_a_kernel(make: Callable[[], onnx.ModelProto], kind: str) -> None:
    model, target = make(), target_of(kind)
    compiled = romou.compile(model, target=target, verify=False, strict=True)
    assert not compiled.host_nodes
    if not has_device(target):
        assert target.kind == "cuda", f"no {target.backend.title} device"
        for source in compiled.sources().values():
            assert compile_cuda(source, str(target.tvm_target.attrs["arch"])).startswith(b"\x7fELF")
        return
    inputs = random_inputs(model, seed=3)
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    for found, expected in zip(compiled.run(inputs), reference, strict=True):
        assert relative_l2_error(found, expected) < 1e-5
