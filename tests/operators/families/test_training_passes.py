"""Three training passes of a convolution, with changing weights, in each algorithm, against the plain definitions."""

from __future__ import annotations

import numpy as np
import pytest

from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.families.conv2d_backward_filter import training_passes
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, conv, random_arrays, reference, run, task_of
from support.suite.exhaustive import exhaustive, few

SEED = 6
TARGET = Target("opencl")
SAME = (1, 1, 1, 1)
LAYERS = [
    conv(6, (13, 11), 10, (3, 3), padding=SAME, batch=7),
    conv(5, (11, 14), 9, (5, 5), padding=(2, 1, 2, 2), batch=2),
    conv(3, (23, 22), 7, (7, 5), padding=(2, 0, 1, 2), stride=(4, 2), batch=7),
    conv(8, (14, 13), 16, (3, 2), "float16", padding=(2, 1, 2, 0), dilation=(2, 1), groups=2, batch=7),
    conv(6, (9, 11), 9, (3, 3), padding=SAME, stride=(2, 1), groups=3),
    conv(10, (9, 11), 10, (3, 3), padding=SAME, stride=(1, 2), groups=10, batch=2),
]


def passes_of(layer: Conv2d) -> list[TunableTask]:
    return [task_of(work, has_epilogue=False, is_weight_computed=True) for work in training_passes(layer)]


@pytest.mark.parametrize("count", [1, pytest.param(8, marks=exhaustive)], ids=["the last", "each"])
@pytest.mark.parametrize("layer", few(LAYERS, 1, 3), ids=lambda w: w.name)
def test_algorithms_agree_with_the_plain_definition(layer: Conv2d, count: int, opencl_device: object) -> None:
    """Weights are packed, or transformed, in each call."""
    limit = 1e-4 if layer.dtype == "float32" else 1e-2
    for task in passes_of(layer):
        arrays = random_arrays(task, np.random.default_rng(SEED))
        expected = reference(task, arrays)
        for config in task.starts(TARGET)[-count:]:
            assert_agrees(TARGET, task, config, arrays, expected, limit)


def test_pieces_are_added_in_one_order(opencl_device: object) -> None:
    """Two kernels share only the workspace of a sum in pieces, and results are the same bit for bit."""
    task = passes_of(conv(4, (17, 19), 6, (3, 3), padding=SAME, batch=7))[2]
    (config,) = (c for c in task.starts(TARGET) if c["algorithm"] == "pieces8")
    arrays = random_arrays(task, np.random.default_rng(SEED))
    assert_agrees(TARGET, task, config, arrays, reference(task, arrays), 1e-4)
    first, again = (run(task, config, arrays, TARGET, TARGET.backend.device()) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    (kernels,) = build_task(task, config, TARGET).imports
    source = str(kernels.inspect_source())
    assert source.count("__kernel") >= 2
    assert "atom" not in source


def test_a_long_sum_is_cut_until_the_device_is_busy() -> None:
    """AlexNet's first layer has only 2178 work-items for the filter gradient, so its sum is split.

    With enough work-items, the sum stays whole.
    """
    large = Target("cuda -device=nvidia_h200")
    first = conv(3, (224, 224), 96, (11, 11), padding=(2,) * 4, stride=(4, 4), batch=128)
    assert str(passes_of(first)[2].default_config(large)["algorithm"]).startswith("pieces")
    assert passes_of(first)[2].default_config(Target("opencl -device=adreno640"))["algorithm"] == "direct"


def test_an_unscaled_gradient_inserts_no_zeros() -> None:
    """With a stride of four, an input pixel meets a ninth of the window's 121 taps, rounded up.

    All other products would be with zeros.
    """
    _, by_input, _ = training_passes(conv(3, (224, 224), 96, (11, 11), padding=(2,) * 4, stride=(4, 4), batch=128))
    assert by_input.phases.kernel == (3, 3)
    assert by_input.out_hw == (224, 224)
