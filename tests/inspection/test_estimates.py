"""Registers and traffic, read off lowered TIR."""

from __future__ import annotations

import operators
from tvm.script import tirx as T

from romou.analysis.estimates import Traffic, estimate_registers, estimate_traffic
from romou.inspection.kernels import InspectedKernel, inspect_function
from romou.target import Target

TARGET = Target("opencl -device=adreno640")


@T.prim_func(s_tir=True)
def dot(a: T.Buffer((256,), "float32"), b: T.Buffer((256,), "float32"), c: T.Buffer((4,), "float32")) -> None:
    acc = T.alloc_buffer((4,), "float32", scope="local")
    acc[0:4] = T.Broadcast(T.float32(0), 4)
    for i in range(64):
        acc[0:4] = acc[T.Ramp(0, 1, 4)] + T.Broadcast(a[i], 4) * b[T.Ramp(i * 4, 1, 4)]
    c[0:4] = acc[T.Ramp(0, 1, 4)]


@T.prim_func(s_tir=True)
def chain(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
    first: T.let[T.float32] = a[0]
    second: T.let[T.float32] = first * T.float32(2)
    for i in range(8):
        b[i] = second
    b[9] = a[1]


def test_traffic_is_that_of_the_innermost_loop() -> None:
    # A turn loads one float of a and four of b for four products; initialisation and the last store are outside.
    assert estimate_traffic(dot) == Traffic(buffer_bytes=20, image_bytes=0, local_bytes=0, multiply_adds=4)


def test_registers_are_those_live_at_once() -> None:
    # In the loop: the accumulators, the counter and the five values that the statement loads.
    assert estimate_registers(dot) == 4 + 1 + 5
    # `first` is dead when `second` lives through the loop, with the counter.
    assert estimate_registers(chain) == 2


def kernel_of(**changes: object) -> InspectedKernel:
    task = operators.task_of(operators.conv(64, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)))
    config = task.default_config(TARGET).replace(**{"tile_o": 1, "tile_w": 1, "split_k": 1, **changes})
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET, task=task.name, config=config)
    return kernel


def test_larger_register_tiles_need_more_registers_and_fewer_bytes() -> None:
    small, large = kernel_of(), kernel_of(tile_w=4)
    assert small.traffic.multiply_adds == 16
    assert large.traffic.multiply_adds == 64
    assert large.registers >= small.registers + 3 * 4
    assert small.traffic.image_bytes >= 4 * 16  # the weight: four lanes of input channels, a texel of output channels for each
    assert small.traffic.buffer_bytes == 16
    assert large.traffic.buffer_bytes == 4 * 16


def test_a_kernel_taken_apart() -> None:
    task = operators.small_tasks()[0]
    config = task.default_config(TARGET)
    func = task.schedule(config, TARGET)["main"]
    (kernel,) = inspect_function(func, TARGET, name="conv", task=task.name, config=config, with_passes=True)
    assert kernel.name == "conv_kernel"
    assert kernel.function == "conv"
    assert "__kernel void conv_kernel(" in kernel.source
    assert kernel.work_group == (config["wg_w"], config["wg_o"], config["split_k"])
    names = [step.name for step in kernel.passes]
    assert names.index("tirx.VectorizeLoop") < names.index("address_images") < names.index("tirx.FlattenBuffer") < names.index("tirx.MakePackedAPI")
    (vectors,) = (step for step in kernel.passes if step.name == "tirx.VectorizeLoop")
    assert vectors.has_changed
    assert "T.vectorized" in vectors.before
    assert "T.vectorized" not in vectors.after
    # Without Romou's pipeline: what TVM makes of the same schedule.
    (plain,) = inspect_function(func, TARGET, tir_pipeline="default")
    assert plain.operations.in_loops > 0
