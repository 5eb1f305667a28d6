"""Weights in the memory of a wave, in fp16: Mesa takes the text of Qualcomm's compiler, and that of all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from romou.base.errors import BuildError
from romou.compiler.operators.workload import Workload
from romou.devices.backends.launch import COPIED
from romou.devices.mobile_compilers import KernelStatistics
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import task_of
from support.kernels.waves import COPIED_WORKS, TARGET, drawn

# The functions of the extension, with the types of their parameters.
DECLARED = """#define cl_qcom_subgroup_constant_load 1
#define QCOM_CLK_CONST_LOAD_SYNC 0
#define qcom_get_physical_sub_group_id() ((int)get_group_id(0))
#define qcom_sub_group_sync(flag) wait(flag)
#define qcom_sub_group_constant_load8(to, from, slot, unit, count) load8(to, from, slot, unit, count)
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
void wait(int flag) {}
void load8(__constant half8* to, __constant half8* from, int slot, int unit, int count) {}
"""


@pytest.mark.parametrize("work", COPIED_WORKS.values(), ids=COPIED_WORKS)
def test_both_texts_compile(
    work: Workload, compile_once: Callable[[Sequence[str], str], list[list[KernelStatistics] | BuildError]]
) -> None:
    task = task_of(dataclasses.replace(work, dtype="float16")).with_free_images()
    # Large tiles may spill.
    config = min(drawn(task, COPIED, 8), key=lambda each: each["tile_o"] * each["tile_h"] * each["tile_w"])
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET, config=config)
    for source in (kernel.source, DECLARED + kernel.source):
        (answer,) = compile_once([source], "a630")
        assert isinstance(answer, list), answer
        assert answer[0].private_memory_bytes == answer[0].spills == 0
