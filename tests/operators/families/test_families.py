"""Every family, on odd and prime shapes, with default and random configs, against the unscheduled function."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.families.batch_matmul import BatchMatmul
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.devices.backends.opencl.fp16_accesses import needs_fp16
from romou.devices.targets import Target
from support.kernels.operators import (
    assert_agrees,
    conv,
    conv_transpose,
    direct_config,
    each_kind,
    error_of,
    has_device,
    matmul,
    quick_configs,
    random_arrays,
    random_configs,
    reference,
    target_of,
    task_of,
)
from support.suite.exhaustive import exhaustive

SEED = 20
BYTES = {"has_integers": True, "weight_type": "uint8", "weight_zero": 9, "data_type": "int8", "data_zero": -3}
SHAPES = [
    conv(31, (17, 17), 37, (7, 1), padding=(3, 0, 3, 0)),
    conv(31, (17, 17), 37, (1, 7), padding=(0, 3, 0, 3)),
    conv(8, (13, 11), 12, (3, 3), padding=(1, 1, 1, 1)),
    conv(16, (9, 9), 16, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1), batch=2),
    conv(16, (9, 10), 20, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0)),
    conv(64, (14, 14), 16, (1, 1)),
    conv(3, (23, 23), 8, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
    conv(8, (12, 12), 8, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    conv(128, (1, 1), 10, (1, 1)),
    conv(16, (13, 13), 16, (3, 3), padding=(1, 1, 1, 1), groups=16),
    conv(18, (13, 13), 18, (5, 5), stride=(2, 2), padding=(2, 2, 2, 2), groups=18),
    conv(6, (7, 7), 12, (3, 3), padding=(1, 1, 1, 1), groups=6),
    conv(16, (9, 9), 24, (3, 3), padding=(1, 1, 1, 1), groups=2),
    conv(12, (9, 9), 9, (3, 3), padding=(1, 1, 1, 1), groups=3),
    Dense(m=1, k=64, n=37, dtype="float32"),
    Dense(m=13, k=31, n=1001, dtype="float32"),
    Dense(m=128, k=96, n=64, dtype="float32"),
    Dense(m=1, k=37, n=31, dtype="float32"),
    conv_transpose(8, (5, 7), 12, (4, 4), stride=(2, 2), padding=(1, 1, 1, 1)),
    conv_transpose(3, (5, 4), 6, (4, 3), stride=(3, 2), padding=(1, 0, 2, 1), output_padding=(1, 0), batch=2),
    conv_transpose(6, (5, 3), 6, (3, 3), stride=(2, 2), padding=(2, 2, 2, 2), groups=6),
    matmul((2,), 13, 31, 10),
    # Heads of attention, read from rows and written to rows.
    matmul((2, 3), 13, 16, 17, lhs_axes=(0, 2, 1, 3), rhs_axes=(0, 2, 3, 1)),
    matmul((2, 3), 13, 17, 16, rhs_axes=(0, 2, 1, 3), out_axes=(0, 2, 1, 3)),
    matmul((2, 3), 5, 12, 8, lhs_batch=(2, 1), rhs_batch=(1, 3)),
    matmul((), 1, 37, 31, is_transposed=True),
    # Parts of one buffer: rows of nine heads, and of three times the columns.
    matmul((2, 3), 13, 16, 17, lhs_axes=(0, 2, 1, 3), rhs_axes=(0, 2, 3, 1), lhs_part=(2, 9, 0), rhs_part=(2, 9, 3)),
    matmul((2,), 5, 12, 8, rhs_part=(2, 24, 16)),
    conv(10, (9, 10), 7, (3, 3), padding=(1, 1, 1, 1), **BYTES),
    conv(18, (9, 8), 18, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1), groups=18, **BYTES),
    conv(12, (9, 9), 9, (3, 3), padding=(1, 1, 1, 1), groups=3, **BYTES),
]
MATMULS = [matmul((2,), 7, 32, 12), matmul((2,), 7, 32, 10), matmul((2,), 7, 32, 10, is_transposed=True)]


# Other shapes of every family are run by test_family_contract.py.
@random_configs
@each_kind("work", SHAPES, opencl=(0, 6, 7, 11, 15, 20, 24, 26, 28, 29, 30), cuda=(4, 22, 28), vulkan=(2, 10, 27, 29))
def test_configs_agree_with_the_unscheduled_function(
    work: Conv2d | Dense | BatchMatmul, target: Target, drawn: int
) -> None:
    task, rng = task_of(work), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    # Without a GPU, CUDA kernels are only compiled, so fewer suffice.
    count = drawn if has_device(target) else drawn // 4
    for config in [task.default_config(target), *(quick_configs(task, target, rng, count) if count else ())]:
        assert_agrees(target, task, config, arrays, expected, 1e-5)


# Knobs of each way, and of how it reads.
SHARED = [
    {"split_k": k, "local": local, "local_buffers": buffers}
    for k, local, buffers in ((1, 0, 1), (1, 4, 1), (1, 2, 2), (2, 0, 1), (8, 0, 1))
]
READS = [
    {"vector_width": width, "arrangement": order}
    for width, order in ((1, "blocked"), (2, "striped"), (4, "blocked"), (4, "striped"))
]


# On OpenCL each way with two reads, each read with two ways or more; on CUDA each way once.
@each_kind(
    "knobs",
    [{**way, **read} for way in SHARED for read in READS],
    opencl=(0, 5, 8, 13, 19),
    cuda=(6, 12),
    vulkan=(9,),
)
def test_each_way_to_share_work(knobs: dict[str, int | str], target: Target) -> None:
    """Local memory and split reductions meet every vector width and arrangement, on a shape that no tile divides."""
    task, rng = task_of(conv(32, (7, 9), 10, (3, 3), padding=(1, 1, 1, 1))), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    config = direct_config(task, target).replace(**{"tile_o": 2, "tile_w": 2, "wg_o": 2, "wg_w": 4, **knobs})
    assert task.space(target).is_valid(config)
    assert_agrees(target, task, config, arrays, expected, 1e-5)


# A right side without vectors is not staged.
PRODUCTS = [(0, 1, 4, 1), (0, 4, 0, 1), (1, 4, 0, 1), (2, 1, 4, 1), (2, 1, 2, 2), (2, 4, 0, 1)]


@each_kind("way", PRODUCTS, opencl=(0, 2, 4, 5), cuda=(1, 3), vulkan=(1,))
def test_each_way_to_share_a_product(way: tuple[int, int, int, int], target: Target) -> None:
    """Right sides contiguous along lanes, along steps, or neither, and tiles of several texels all agree.

    No tile divides the shape.
    """
    place, split_k, local, local_buffers = way
    task, rng = task_of(MATMULS[place]), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    config = direct_config(task, target).replace(
        split_k=split_k, local=local, local_buffers=local_buffers, tile_o=2, tile_w=2, wg_o=2, wg_w=4
    )
    assert task.space(target).is_valid(config)
    assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize("configs", [3, pytest.param(20, marks=exhaustive)])
@pytest.mark.parametrize("work", SHAPES, ids=lambda w: w.name)
def test_the_space_excludes_what_cannot_be_scheduled(work: Conv2d | Dense | BatchMatmul, configs: int) -> None:
    task, target = task_of(work), target_of("opencl")
    space = task.space(target)
    for config in space.sample(np.random.default_rng(SEED), configs):
        assert not (config["split_k"] > 1 and config["local"])
        task.schedule(config, target)  # InvalidConfigError would end the test
    assert space.is_valid(task.default_config(target))


@each_kind(
    "work",
    [SHAPES[0], SHAPES[9], SHAPES[11], SHAPES[15], SHAPES[18], SHAPES[20], *MATMULS],
    opencl=(0, 2, 4, 8),
    cuda=(1, 7),
)
def test_half_precision_storage_sums_in_single(work: Conv2d | Dense | BatchMatmul, target: Target) -> None:
    """Sums are rounded once at the end, so close to double precision, on a device that need not compute in fp16."""
    task, rng = task_of(replace(work, dtype="float16")), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task_of(work), [a.astype("float32") for a in arrays])
    assert error_of(reference(task, arrays), expected) < 1e-3
    config = task.default_config(target)
    assert_agrees(target, task, config, arrays, expected, 1e-3)
    source = build_task(task, config, target).imports[0].inspect_source()
    assert not needs_fp16(source)
    assert "cuda_fp16" not in source
    assert re.search(r"(float4?|vec4) acc", source)


def test_half_precision_arithmetic_is_for_devices_that_have_it() -> None:
    task = task_of(replace(SHAPES[2], dtype="float16"))
    assert (
        task.space(target_of("opencl")).knobs["accumulate"]
        == task.space(target_of("cuda")).knobs["accumulate"]
        == ("float32",)
    )
    phone = Target("opencl -device=adreno640")
    assert task.space(phone).knobs["accumulate"] == ("float32", "float16", "mixed")
    assert task_of(SHAPES[2]).space(phone).knobs["accumulate"] == ("float32",)
    source = (
        build_task(task, direct_config(task, phone).replace(accumulate="float16"), phone).imports[0].inspect_source()
    )
    assert "half4 acc" in source
    assert "float4 acc" not in source
    source = build_task(task, direct_config(task, phone).replace(accumulate="mixed"), phone).imports[0].inspect_source()
    assert "float4 acc" in source
    assert "half4 block" in source
