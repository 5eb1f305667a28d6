"""The inside of the loops of generated kernels: no division, no bounds check of an image, a fifth of the integer
operations at most.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_visit

from romou.base.space import Config
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from support.kernels.operators import conv, task_of
from support.suite.exhaustive import exhaustive, in_turn

TARGET = Target("opencl -device=adreno640")
# Without these passes, our pipeline equals TVM's own passes on the same schedule.
OURS = ("eliminate_addresses", "share_loads", "vectorize_pointers", "spell_arithmetic")

# The number of random configs besides the default one.
drawn_configs = pytest.mark.parametrize("drawn", [1, pytest.param(12, marks=exhaustive)], ids="{} drawn".format)

ODD = [
    conv(31, (17, 17), 37, (7, 1), padding=(3, 0, 3, 0)),
    conv(29, (13, 11), 23, (3, 3), padding=(1, 1, 1, 1), batch=2),
    conv(16, (9, 10), 20, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0)),
    conv(61, (13, 13), 19, (1, 1)),
    conv(3, (23, 23), 8, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
    conv(8, (12, 12), 8, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    conv(17, (13, 13), 17, (3, 3), padding=(1, 1, 1, 1), groups=17),
    conv(16, (9, 9), 24, (3, 3), padding=(1, 1, 1, 1), groups=2),
    conv(15, (7, 7), 9, (3, 3), padding=(1, 1, 1, 1), groups=3),
    Dense(m=13, k=31, n=101, dtype="float32"),
    Dense(m=1, k=37, n=31, dtype="float32"),
]
LARGE = [
    conv(64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1)),
    conv(256, (28, 28), 256, (1, 1)),
    conv(3, (224, 224), 64, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
    conv(192, (17, 17), 192, (7, 1), padding=(3, 0, 3, 0)),
    conv(32, (112, 112), 32, (3, 3), padding=(1, 1, 1, 1), groups=32),
]


@functools.cache
def task_in_images(work: Conv2d | Dense) -> TunableTask:
    return task_of(work).with_free_images()


@functools.cache
def kernels_of(task: TunableTask, config: Config, without: tuple[str, ...] = ()) -> list[InspectedKernel]:
    return inspect_function(task.schedule(config, TARGET)["main"], TARGET, without=without)


def kernel_of(task: TunableTask, config: Config, without: tuple[str, ...] = ()) -> InspectedKernel:
    (kernel,) = kernels_of(task, config, without)
    return kernel


def direct_config(task: TunableTask) -> Config:
    """Return the default config, with an algorithm of one kernel."""
    config = task.default_config(TARGET)
    return config.replace(algorithm="direct") if "algorithm" in config else config


def branches_in_loops(func: tirx.PrimFunc) -> int:
    found = depth = 0

    def loop(stmt: tirx.For, visitor: object) -> None:
        nonlocal depth
        depth += 1
        visitor.visit(stmt.body)  # type: ignore[attr-defined]
        depth -= 1

    def branch(node: object, visitor: object) -> None:
        nonlocal found
        is_branch = not isinstance(node, tvm.ir.Call) or getattr(node.op, "name", "") == "prim.if_then_else"
        found += bool(depth) and is_branch
        visitor.default_visit(node)  # type: ignore[attr-defined]

    structural_visit(func.body, [(tirx.For, loop), ((tirx.IfThenElse, tirx.Select, tvm.ir.Call), branch)])
    return found


@drawn_configs
@pytest.mark.parametrize("work", ODD, ids=lambda w: w.name)
def test_no_division_inside_a_loop(work: Conv2d | Dense, drawn: int) -> None:
    task = task_in_images(work)
    for config in [task.default_config(TARGET), *task.space(TARGET).sample(np.random.default_rng(2), drawn)]:
        for kernel in kernels_of(task, config):
            left = kernel.text_operations
            assert (kernel.operations.divisions_in_loops, left.divisions_in_loops, left.modulos_in_loops) == (
                0,
                0,
                0,
            ), config


@drawn_configs
@pytest.mark.parametrize("work", [w for w in ODD if isinstance(w, Conv2d) and w.groups != 3], ids=lambda w: w.name)
def test_no_branch_inside_a_loop_of_an_image_kernel(work: Conv2d, drawn: int) -> None:
    task = task_in_images(work)
    # Staging in local memory deals texels out to work-items: the last round is not full.
    configs = [
        c for c in task.space(TARGET).sample(np.random.default_rng(3), 400) if c["data"] == "image" and not c["local"]
    ]
    assert len(configs) >= 5
    for config in [task.default_config(TARGET), *configs[:drawn]]:
        # The last one of several writes out tiles, which may stick out over the image's edge.
        summing = kernels_of(task, config)[:2]
        assert [branches_in_loops(kernel.lowered) for kernel in summing] == [0] * len(summing), config


def test_a_buffer_kernel_checks_its_padding() -> None:
    """The counting can see a branch."""
    task = task_of(ODD[1])
    assert branches_in_loops(kernel_of(task, task.default_config(TARGET).replace(unroll="lanes")).lowered) > 0


@in_turn
@pytest.mark.parametrize("work", LARGE, ids=lambda w: w.name)
@pytest.mark.parametrize("place", ["buffer", "image"])
def test_integer_operations_fall_by_four_fifths(work: Conv2d, place: str) -> None:
    task = task_in_images(work)
    config = direct_config(task).replace(data=place, weight=place, output=place)
    ours, tvms = (kernel_of(task, config, without).operations.in_loops_weighted for without in ((), OURS))
    assert tvms > 0
    assert ours <= 0.2 * tvms, f"{tvms} -> {ours}"


def test_thread_ids_are_read_once() -> None:
    task = task_in_images(LARGE[0])
    source = kernel_of(task, direct_config(task)).source
    for call in ("get_group_id(0)", "get_group_id(1)", "get_local_id(0)", "get_local_id(1)"):
        assert source.count(call) <= 1, call
    assert "get_group_id(0)" in source


def test_no_registers_behind_pointers() -> None:
    """Register tiles are vectors with named lanes, for any split of the work."""
    for work in (LARGE[0], LARGE[4], ODD[9], ODD[0]):
        task = task_in_images(work)
        for config in [
            task.default_config(TARGET),
            *(c for c in task.space(TARGET).sample(np.random.default_rng(4), 4) if c["vector_width"] == 4),
        ]:
            for kernel in kernels_of(task, config):
                assert "_local_ptr +" not in kernel.source, config
                assert "(float*)" not in kernel.source, config
