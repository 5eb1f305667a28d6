"""Weights in the memory of a wave, in fp16: Mesa takes the text of Qualcomm's compiler, and that of all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from romou.base.errors import BuildError
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Workload
from romou.devices.backends.launch import COPIED
from romou.devices.mobile_compilers import KernelStatistics
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import conv, task_of

TARGET = Target("opencl -device=adreno740 -waves=search")
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


@pytest.mark.parametrize(
    "work",
    [conv(13, (5, 7), 16, (1, 1)), conv(7, (7, 9), 8, (3, 3)), Dense(m=5, k=37, n=24)],
    ids=["1x1", "3x3", "product"],
)
def test_both_texts_compile(
    work: Workload, compile_once: Callable[[Sequence[str], str], list[list[KernelStatistics] | BuildError]]
) -> None:
    task = task_of(dataclasses.replace(work, dtype="float16")).with_free_images()
    space = task.space(TARGET)
    forced = {"wave": COPIED, "weight": "buffer", "wg_o": 1, "local": 0, "split_k": 1, "vector_width": 4}
    drawn = (config.replace(**forced) for config in space.sample(np.random.default_rng(5), 600))
    config = next(
        config
        for config in drawn
        if config.get("algorithm", "direct") == "direct"
        and config["tile_o"] * config["tile_h"] * config["tile_w"] <= 4
        and space.knows(config)
        and space.is_valid(config)
    )
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET, config=config)
    for source in (kernel.source, DECLARED + kernel.source):
        (answer,) = compile_once([source], "a630")
        assert isinstance(answer, list), answer
        assert answer[0].private_memory_bytes == answer[0].spills == 0
