"""A kernel taken apart: traffic and registers, read off lowered TIR."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from tvm.script import tirx as T

from romou.base.errors import InvalidConfigError
from romou.base.space import Config
from romou.compiler.operators.analysis.counts import Traffic, busiest_traffic
from romou.devices.targets import Target
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.regression.operators import stable_measures
from romou.tools.report.inspected import kernel_table
from romou.tuner.pruning import judge
from romou.tuner.pruning.tasks import pruned_task
from support.kernels import operators
from support.kernels.kernel_usage import read_usage
from support.suite.exhaustive import few

TARGET = Target("opencl -device=adreno640")


@T.prim_func(s_tir=True)
def dot(a: T.Buffer((256,), "float32"), b: T.Buffer((256,), "float32"), c: T.Buffer((4,), "float32")) -> None:
    acc = T.alloc_buffer((4,), "float32", scope="local")
    acc[0:4] = T.Broadcast(T.float32(0), 4)
    for i in range(64):
        acc[0:4] = acc[T.Ramp(0, 1, 4)] + T.Broadcast(a[i], 4) * b[T.Ramp(i * 4, 1, 4)]
    c[0:4] = acc[T.Ramp(0, 1, 4)]


def test_traffic_is_that_of_the_innermost_loop() -> None:
    # An iteration loads one float of a and four of b for four products; initialisation and the last store are outside.
    assert busiest_traffic(dot) == Traffic(buffer_bytes=20, image_bytes=0, local_bytes=0, multiply_adds=4)


def kernel_of(**changes: object) -> InspectedKernel:
    task = operators.task_of(operators.conv(64, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)))
    config = task.direct_config(TARGET).replace(**{"tile_o": 1, "tile_w": 1, "split_k": 1, **changes})
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET, task=task.name, config=config)
    return kernel


def test_larger_register_tiles_need_more_registers_and_fewer_bytes() -> None:
    small, large = kernel_of(), kernel_of(tile_w=4)
    assert small.traffic.multiply_adds == 16
    assert large.traffic.multiply_adds == 64
    assert large.registers.live >= small.registers.live + 3 * 4
    assert (
        small.traffic.image_bytes >= 4 * 16
    )  # the weight: four lanes of input channels, a texel of output channels for each
    assert small.traffic.buffer_bytes == 16
    assert large.traffic.buffer_bytes == 4 * 16


@pytest.mark.parametrize("pick", few([min, max], 0))
def test_inspection_and_pruning_tell_the_same_registers(pick: Callable[..., Config]) -> None:
    """The number that `romou inspect` shows is the one that the verdict on the same kernel names, be the kernel kept or
    excluded.
    """
    task = operators.task_of(operators.conv(64, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)))
    drawn = [
        c
        for c in task.space(TARGET).sample(np.random.default_rng(0), 400)
        if (c["algorithm"], c["local"]) == ("direct", 0)
    ]
    config = pick(drawn, key=lambda c: c["tile_o"] * c["tile_w"])
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET, task=task.name, config=config)
    shown = kernel.to_dict()
    usage = read_usage([kernel.lowered], task.template, config)
    verdict = judge(usage, TARGET.spec)["registers"]
    assert verdict.used == usage.needed_registers == shown["needed_registers"]
    assert round(usage.registers) == shown["registers"] == stable_measures([kernel], task, config, TARGET)["registers"]
    console = Console(file=io.StringIO(), width=120)
    console.print(kernel_table(kernel, {}))
    printed = console.file.getvalue()
    assert re.search(rf"registers \(32 bit\) +│ +{shown['registers']} ", printed)
    assert f"{shown['needed_registers']:g}" in printed
    assert f"registers: {shown['needed_registers']:g}, " in str(verdict)
    # The last look before code generation names it, too.
    strict = replace(pruned_task(task, TARGET), given_slacks={"registers": 0.01})
    with pytest.raises(
        InvalidConfigError, match=f"excluded before code generation: registers: {shown['needed_registers']:g}, "
    ):
        strict.check(kernel.lowered, config, TARGET)


def test_a_kernel_taken_apart() -> None:
    task = operators.small_tasks()[0]
    config = task.default_config(TARGET)
    func = task.schedule(config, TARGET)["main"]
    (kernel,) = inspect_function(func, TARGET, name="conv", task=task.name, config=config, with_passes=True)
    assert kernel.name == "conv_kernel"
    assert kernel.function == "conv"
    sides = ", ".join(map(str, kernel.work_group))
    assert f"__kernel __attribute__((reqd_work_group_size({sides}))) void conv_kernel(" in kernel.source
    assert kernel.work_group == (config["wg_w"], config["wg_o"], config["split_k"] * config["wg_h"])
    names = [step.name for step in kernel.passes]
    assert (
        names.index("tirx.VectorizeLoop")
        < names.index("address_images")
        < names.index("tirx.FlattenBuffer")
        < names.index("tirx.MakePackedAPI")
    )
    (vectors,) = (step for step in kernel.passes if step.name == "tirx.VectorizeLoop")
    assert vectors.has_changed
    assert "T.vectorized" in vectors.before
    assert "T.vectorized" not in vectors.after
    # TVM's kernel for the same schedule, without Romou's pipeline.
    (plain,) = inspect_function(func, TARGET, tir_pipeline="default")
    assert plain.operations.in_loops > 0
