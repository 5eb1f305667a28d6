"""Every family, on odd and prime shapes, under its default and under random configs, against the unscheduled function."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from operators import assert_agrees, conv, conv_transpose, error_of, has_device, matmul, quick_configs, random_arrays, reference, target_of, task_of

from romou.schedules.families.batch_matmul import BatchMatmul
from romou.schedules.families.dense import Dense
from romou.schedules.workload import Conv2d
from romou.target import Target
from romou.tasks.build import build_task

SEED = 20
# Where there is no GPU, CUDA kernels are only compiled: fewer do.
CONFIGS_PER_SHAPE, COMPILED_PER_SHAPE = 2, 1


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
]
MATMULS = [matmul((2,), 7, 32, 12), matmul((2,), 7, 32, 10), matmul((2,), 7, 32, 10, is_transposed=True)]


@pytest.mark.parametrize("work", SHAPES, ids=lambda w: w.name)
def test_configs_agree_with_the_unscheduled_function(work: Conv2d | Dense | BatchMatmul, target: Target) -> None:
    task, rng = task_of(work), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    drawn = quick_configs(task, target, rng, CONFIGS_PER_SHAPE if has_device(target) else COMPILED_PER_SHAPE)
    for config in [task.default_config(target), *drawn]:
        assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize(("split_k", "local", "local_buffers"), [(1, 0, 1), (1, 4, 1), (1, 2, 2), (2, 0, 1), (8, 0, 1)])
@pytest.mark.parametrize(("vector_width", "arrangement"), [(1, "blocked"), (2, "striped"), (4, "blocked"), (4, "striped")])
def test_each_way_to_share_work(split_k: int, local: int, local_buffers: int, vector_width: int, arrangement: str, target: Target) -> None:
    """Local memory and split reductions meet every vector width and arrangement, on a shape that no tile divides."""
    task, rng = task_of(conv(32, (7, 9), 10, (3, 3), padding=(1, 1, 1, 1))), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    tiles = {"tile_o": 2, "tile_w": 2, "wg_o": 2, "wg_w": 4, "local_buffers": local_buffers}
    config = task.default_config(target).replace(split_k=split_k, local=local, vector_width=vector_width, arrangement=arrangement, **tiles)
    assert task.space(target).is_valid(config)
    assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize(
    ("work", "split_k", "local", "local_buffers"),
    # What has no vectors on the right is not staged.
    [(MATMULS[0], 1, 4, 1), (MATMULS[0], 4, 0, 1), (MATMULS[1], 4, 0, 1), (MATMULS[2], 1, 4, 1), (MATMULS[2], 1, 2, 2), (MATMULS[2], 4, 0, 1)],
)
def test_each_way_to_share_a_product(work: BatchMatmul, split_k: int, local: int, local_buffers: int, target: Target) -> None:
    """Right sides whose lanes are neighbours in memory, neither, and whose steps are; tiles of several texels; no tile divides the shape."""
    task, rng = task_of(work), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    config = task.default_config(target).replace(split_k=split_k, local=local, local_buffers=local_buffers, tile_o=2, tile_w=2, wg_o=2, wg_w=4)
    assert task.space(target).is_valid(config)
    assert_agrees(target, task, config, arrays, expected, 1e-5)


@pytest.mark.parametrize("work", SHAPES, ids=lambda w: w.name)
def test_the_space_excludes_what_cannot_be_scheduled(work: Conv2d | Dense | BatchMatmul) -> None:
    task, target = task_of(work), target_of("opencl")
    space = task.space(target)
    for config in space.sample(np.random.default_rng(SEED), 10):
        assert not (config["split_k"] > 1 and config["local"])
        task.schedule(config, target)  # InvalidConfigError would end the test
    assert space.is_valid(task.default_config(target))


@pytest.mark.parametrize("work", [SHAPES[0], SHAPES[9], SHAPES[11], SHAPES[15], SHAPES[18], SHAPES[20], *MATMULS], ids=lambda w: w.name)
def test_half_precision_storage_sums_in_single(work: Conv2d | Dense | BatchMatmul, target: Target) -> None:
    """Rounded once at the end, so close to double precision, on a device that need not know halfs."""
    task, rng = task_of(replace(work, dtype="float16")), np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task_of(work), [a.astype("float32") for a in arrays])
    assert error_of(reference(task, arrays), expected) < 1e-3
    config = task.default_config(target)
    assert_agrees(target, task, config, arrays, expected, 1e-3)
    source = build_task(task, config, target).imports[0].inspect_source()
    assert "cl_khr_fp16" not in source
    assert "cuda_fp16" not in source
    assert re.search(r"float4? acc", source)


def test_half_precision_arithmetic_is_for_devices_that_have_it() -> None:
    task = task_of(replace(SHAPES[2], dtype="float16"))
    assert task.space(target_of("opencl")).knobs["accumulate"] == task.space(target_of("cuda")).knobs["accumulate"] == ("float32",)
    phone = Target("opencl -device=adreno640")
    assert task.space(phone).knobs["accumulate"] == ("float32", "float16", "mixed")
    assert task_of(SHAPES[2]).space(phone).knobs["accumulate"] == ("float32",)
    source = build_task(task, task.default_config(phone).replace(accumulate="float16"), phone).imports[0].inspect_source()
    assert "half4 acc" in source
    assert "float4" not in source
    source = build_task(task, task.default_config(phone).replace(accumulate="mixed"), phone).imports[0].inspect_source()
    assert "float4 acc" in source
    assert "half4 block" in source
