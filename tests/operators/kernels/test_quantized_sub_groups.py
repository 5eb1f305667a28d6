"""Parts of sums of products with quantized weights that meet in sub-groups: results, texts, local memory, the space."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pytest
import tvm

from romou.base.space import Config
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.task import TunableTask
from romou.compiler.tir.expressions import bytes_of
from romou.devices.backends import backend
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.measure.verify import poison
from support.devices.platforms import INTEL
from support.kernels.operators import assert_agrees, built, compile_only, error_of, run, target_of
from support.models.quantized import QuantizedCase, quantized_task
from support.suite.exhaustive import few

ADRENO, MALI = Target("opencl -device=adreno730 -half=storage"), Target("opencl -device=mali_g610 -half=storage")
VULKAN, CUDA = Target("vulkan"), target_of("cuda")
CASES = [
    QuantizedCase(m=1, k=1000, n=37, zero="uint8"),
    QuantizedCase(m=3, k=1003, n=21, block=64),
    QuantizedCase(m=3, k=1020, n=39, bits=8, dtype="float16", zero="float"),
    QuantizedCase(m=1, k=2050, n=19, bits=2, dtype="float16"),
    QuantizedCase(m=1, k=1020, n=37, block=4, zero="table"),
]
Shape: TypeAlias = tuple[int, int, int, int]
# Work-items along the weight's rows, parts of a sum, rows of the weight and of the activations of a work-item. A
# sub-group has all parts, or local memory holds those that are left.
LARGE = [(16, 4, 4, 1), (8, 8, 1, 2), (32, 2, 2, 3), (16, 16, 4, 1), (32, 8, 1, 1), (4, 16, 8, 2)]
SMALL = [(4, 2, 4, 1), (4, 4, 1, 2), (4, 2, 2, 3), (4, 8, 2, 1), (4, 16, 4, 1)]


def size_of(target: Target) -> int:
    assert target.limits.sub_groups is not None
    return target.limits.sub_groups.size


def config_of(task: TunableTask, target: Target, shape: Shape, **knobs: object) -> Config:
    """Return a config with these work-items, in sub-groups. It may be invalid."""
    names, choices = ("group_rows", "group_parts", "item_rows", "item_data"), task.space(target).knobs
    wanted = {
        **dict(zip(names, shape, strict=True)),
        "item_chunks": 1,
        "staged_data": 0,
        "zero_point": "block",
        "unpack": choices["unpack"][0],
        "sub_group": size_of(target),
        "tensor_cores": "none",
        **knobs,
    }
    return task.default_config(target).replace(**{name: value for name, value in wanted.items() if name in choices})


def fitting(target: Target, shape: Shape) -> list[tuple[QuantizedCase, TunableTask, Config]]:
    """Return the cases that these work-items fit, with their configs."""
    tasks = [(case, quantized_task(case)) for case in CASES]
    every = [(case, task, config_of(task, target, shape)) for case, task in tasks]
    fit = [(case, task, config) for case, task, config in every if task.space(target).is_valid(config)]
    assert fit, f"{shape} fit no case"
    return fit


def arguments(case: QuantizedCase, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    drawn = case.draw(seed)
    return [drawn.data, *case.matrix(drawn).arrays, poison((case.m, case.n), case.dtype)], drawn.result


def bound_of(case: QuantizedCase) -> float:
    return 1e-5 if case.dtype == "float32" else 1e-3


@pytest.mark.parametrize("number", few(range(len(LARGE)), 0, 1, 3))
def test_sub_groups_on_intels_runtime(number: int, pytestconfig: pytest.Config) -> None:
    """Adreno's kernels run there, because a runtime for CPUs takes sub-groups of 64."""
    INTEL.require(pytestconfig)
    platforms = [facts["platform"] for facts in backend("opencl").list_devices()]
    device = tvm.opencl(platforms.index(INTEL.title))
    for seed, (case, task, config) in enumerate(fitting(ADRENO, LARGE[number])):
        arrays, expected = arguments(case, seed)
        found = run(task, config, arrays, ADRENO, device)
        assert error_of(found, expected) < bound_of(case), case


@pytest.mark.parametrize("number", few(range(len(SMALL)), 0, 3))
def test_sub_groups_through_vulkan(number: int, vulkan_device: tvm.runtime.Device) -> None:
    for seed, (case, task, config) in enumerate(fitting(VULKAN, SMALL[number])):
        arrays, expected = arguments(case, seed)
        assert_agrees(VULKAN, task, config, arrays, expected, bound_of(case))


@pytest.mark.parametrize("staged", [0, 256])
def test_pairs_add_up_in_fp32(staged: int, vulkan_device: tvm.runtime.Device) -> None:
    case = QuantizedCase(m=2, k=1000, n=37, zero="uint8", dtype="float16")
    task, (arrays, expected) = quantized_task(case), arguments(case, 0)
    config = config_of(task, VULKAN, (4, 4, 2, 2), unpack="pairs", staged_data=staged)
    assert_agrees(VULKAN, task, config, arrays, expected, bound_of(case))


@pytest.mark.parametrize("number", few(range(len(LARGE)), 1, 2, 3))
def test_nvrtc_compiles_warps(number: int) -> None:
    """Warps have the parts of up to 16 rows."""
    across, *rest = LARGE[number]
    for _, task, config in fitting(CUDA, (min(across, 16), *rest)):
        module = built(task, config, CUDA)
        assert "sub_group_shuffle_xor_of_32(" in str(module.imports[0].inspect_source())
        compile_only(module, CUDA)


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_local_memory_holds_the_parts_that_are_left(shape: Shape) -> None:
    """A sub-group that has all parts of its sums takes neither local memory nor a barrier."""
    case = QuantizedCase(m=4, k=4096, n=64, dtype="float16")
    task = quantized_task(case)
    config = config_of(task, ADRENO, shape)
    (kernel,) = inspect_function(task.schedule(config, ADRENO)["main"], ADRENO, config=config)
    parts = shape[0] * shape[1] // size_of(ADRENO)
    counted = task.template.form(ADRENO.limits).usage(columns_of([config])).local_memory_bytes
    assert [*counted] == [(parts > 1) * 4 * parts * shape[0] * shape[2] * shape[3]]
    buffers = task.schedule(config, ADRENO)["main"].body.block.alloc_buffers
    assert counted == sum(bytes_of(b.shape, str(b.dtype)) for b in buffers if str(b.scope()) == "shared")
    assert ("barrier(" in kernel.source) == ("__local" in kernel.source) == (parts > 1)
    assert kernel.source.count("sub_group_shuffle_xor_of_64(") > 1


def test_which_devices_have_the_choice() -> None:
    task = quantized_task(CASES[0])
    assert task.space(ADRENO).knobs["sub_group"] == (1, 64)
    # They have reductions of whole sub-groups, and no shuffles.
    assert task.space(MALI).knobs["sub_group"] == (1,)
    assert "sub_group" not in task.space(Target("opencl -device=adreno640")).knobs
    for target in (ADRENO, MALI, VULKAN, CUDA):
        assert task.default_config(target)["sub_group"] == 1


def test_which_groups_fit() -> None:
    """Several parts in a sub-group, whole sub-groups, and no kernel that has no parts."""
    task = quantized_task(QuantizedCase(m=64, k=1024, n=256, dtype="float16"))
    space, config = task.space(CUDA), config_of(task, CUDA, (16, 4, 4, 1))
    for knobs in ({"group_rows": 32}, {"group_rows": 8, "group_parts": 2}, {"group_rows": 4, "group_parts": 4}):
        assert space.is_valid(config.replace(**knobs, sub_group=1)), knobs
        assert not space.is_valid(config.replace(**knobs)), knobs
    tensor_cores = space.narrowed({"tensor_cores": ("mma",)}).sample(np.random.default_rng(0), 20)
    assert {one["sub_group"] for one in tensor_cores} == {1}


def test_configs_of_devices_without_sub_groups_run_where_there_are_some() -> None:
    """Such a config lacks the knob, as those of records that were written before this family had it."""
    task = quantized_task(CASES[0])
    config = task.default_config(Target("opencl -device=adreno640"))
    assert "sub_group" not in config
    assert task.space(ADRENO).completed(config)["sub_group"] == 1
