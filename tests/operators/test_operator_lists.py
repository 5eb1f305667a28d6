"""Every operator of benchmarks/data has a template. One of each kind is compiled, by the OpenCL driver and by NVRTC.

`tests/stress/check_operators.py` compiles and runs all of them.
"""

from __future__ import annotations

import tvm

from operator_lists import attention, conv43, paper_operators, transposed_convolutions
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from support.kernels.operators import compile_only, each_kind, task_of

OPERATORS = [*conv43(), *paper_operators()]
# The first of each kernel, stride and batch, depthwise or not.
ONE_OF_EACH = list({(w.kernel, w.stride, w.batch, w.groups > 1): w for w in reversed(OPERATORS)}.values())


def test_the_lists_are_whole() -> None:
    assert len(conv43()) == 43
    assert len(paper_operators()) == 97
    assert 10 <= len(ONE_OF_EACH) <= 30


def test_every_operator_has_a_template_and_a_default_config(target: Target) -> None:
    for work in (*OPERATORS, *attention(), *transposed_convolutions()):
        task = task_of(work, has_epilogue=False)
        config = task.default_config(target)
        assert task.space(target).is_valid(config), work.name


# On OpenCL tests of the families run such kernels.
@each_kind("work", ONE_OF_EACH, opencl=range(0, len(ONE_OF_EACH), 3), cuda=range(1, len(ONE_OF_EACH), 3))
def test_default_configs_compile(work: Conv2d, target: Target) -> None:
    task = task_of(work, has_epilogue=False)
    module = build_task(task, task.default_config(target), target)
    if target.kind == "cuda":
        compile_only(module, target)
    else:
        tvm.get_global_func("romou.opencl.compile")(module, 0)
