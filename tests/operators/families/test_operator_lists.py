"""Every operator of benchmarks/data has a template. One of each kind is compiled, by the OpenCL driver and by NVRTC.

`tests/stress/check_operators.py` compiles and runs all of them.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm

from operator_lists import attention, boda_layers, conv43, paper_operators, transposed_convolutions
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from support.kernels.operators import assert_agrees, compile_only, each_kind, random_arrays, reference, task_of
from support.suite.exhaustive import few

OPERATORS = [*conv43(), *paper_operators()]
# The first of each kernel, stride and batch, depthwise or not.
ONE_OF_EACH = list({(w.kernel, w.stride, w.batch, w.groups > 1): w for w in reversed(OPERATORS)}.values())


def test_the_lists_are_whole() -> None:
    assert len(conv43()) == 43
    assert len(paper_operators()) == 97
    assert len(set(boda_layers())) == 183
    heavy = {w for w in boda_layers(has_fully_connected=True) if w.batch == 5 and w.flops > 1e8}
    assert heavy == set(conv43())
    assert 10 <= len(ONE_OF_EACH) <= 30


def test_every_operator_has_a_template_and_a_default_config(target: Target) -> None:
    for work in (*OPERATORS, *boda_layers(), *attention(), *transposed_convolutions()):
        task = task_of(work, has_epilogue=False)
        config = task.default_config(target)
        assert task.space(target).is_valid(config), work.name


def in_small_form(work: Conv2d) -> Conv2d:
    """Return the convolution with few channels and pixels. Odd extents stay odd, and batches differ."""
    channels, outputs = (8 + count % 8 + count // 128 for count in (work.in_channels, work.out_channels))
    side = min(work.in_hw[0], 2 * work.kernel[0] + 5)
    return dataclasses.replace(
        work,
        batch=1 + work.batch // 5,
        in_channels=min(channels, work.in_channels),
        out_channels=outputs,
        in_hw=(side, side),
    )


SMALL = sorted({in_small_form(work) for work in boda_layers(has_fully_connected=True)}, key=repr)


@pytest.mark.parametrize("work", few(SMALL, *range(0, len(SMALL), 24)), ids=lambda work: work.name)
def test_default_kernels_of_boda_s_layers_are_right_in_small_form(work: Conv2d, opencl_device: object) -> None:
    task = task_of(work, has_epilogue=False)
    target = Target("opencl")
    arrays = random_arrays(task, np.random.default_rng(3))
    assert_agrees(target, task, task.default_config(target), arrays, reference(task, arrays), 1e-5)


# On OpenCL tests of the families run such kernels.
@each_kind("work", ONE_OF_EACH, opencl=range(0, len(ONE_OF_EACH), 3), cuda=range(1, len(ONE_OF_EACH), 3))
def test_default_configs_compile(work: Conv2d, target: Target) -> None:
    task = task_of(work, has_epilogue=False)
    module = build_task(task, task.default_config(target), target)
    if target.kind == "cuda":
        compile_only(module, target)
    else:
        tvm.get_global_func("romou.opencl.compile")(module, 0)
