"""Data, weight and output in images or buffers, in every combination that a family offers, with float and half storage."""  # noqa: E501

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import tvm

from romou.compiler.operators.families.batch_matmul import BatchMatmul, matmul
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from support.kernels.operators import conv, error_of, random_arrays, reference, run, task_of
from support.suite.exhaustive import few, in_turn

# Limits and preferences of a phone; PoCL has images of the same size.
TARGET = Target("opencl -device=adreno640 -half=storage")
TOLERANCE = {"float32": 1e-5, "float16": 1e-3}
# Shape -> the tensors that may be images.
SHAPES = {
    conv(31, (13, 11), 37, (7, 1), padding=(3, 0, 3, 0)): ("data", "weight", "output"),
    conv(16, (9, 10), 20, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0), batch=2): ("data", "weight", "output"),
    conv(8, (12, 12), 8, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)): ("data", "weight", "output"),
    conv(29, (7, 7), 24, (1, 1)): ("data", "weight", "output"),
    conv(16, (9, 9), 24, (3, 3), padding=(1, 1, 1, 1), groups=2): ("data", "weight", "output"),
    conv(18, (13, 13), 18, (5, 5), stride=(2, 2), padding=(2, 2, 2, 2), groups=18): ("data", "weight", "output"),
    conv(12, (9, 9), 9, (3, 3), padding=(1, 1, 1, 1), groups=3): (),
    Dense(m=13, k=31, n=101, dtype="float32"): ("weight",),
    # Matrices that the schedule reads in whole texels: along the reduction for the left side and for a transposed right
    # side, else along the columns.
    matmul((2,), 13, 32, 20): ("data", "weight"),
    matmul((3,), 12, 8, 10, is_transposed=True): ("data", "weight"),
    matmul((), 13, 31, 20): ("weight",),
}


CASES = list(itertools.product(SHAPES, TOLERANCE))


# Each family in one type, with few kernels: the first, an uneven stride, depthwise, an operator without images, a
# product of matrices.
@pytest.mark.parametrize(("work", "dtype"), few(CASES, 1, 2, 12, 19), ids=lambda v: getattr(v, "name", v))
def test_every_combination_gives_the_same_numbers(
    work: Conv2d | Dense | BatchMatmul, dtype: str, opencl_device: tvm.runtime.Device
) -> None:
    task, rng = task_of(replace(work, dtype=dtype)).with_free_images(), np.random.default_rng(7)
    space = task.space(TARGET)
    free = {name for name in ("data", "weight", "output") if space.knobs[name] == ("buffer", "image")}
    assert free == set(SHAPES[work])
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    drawn = space.sample(rng, 200)
    seen = 0
    for places in itertools.product(*(space.knobs[name] for name in ("data", "weight", "output"))):
        wanted = dict(zip(("data", "weight", "output"), places, strict=True))
        # Long kernels, which window and tile make together, are compiled for a minute;
        # tests/operators/families/test_other_compilers.py has them.
        config = next(c for c in drawn if all(c[k] == v for k, v in wanted.items()) and c["unroll"] == "lanes")
        assert len(task.image_scopes(config, TARGET)) == places.count("image")
        error = error_of(run(task, config, arrays, TARGET, opencl_device), expected)
        assert error < TOLERANCE[dtype], f"{config}: {error}"
        seen += 1
    assert seen == 2 ** len(free)


@in_turn
@pytest.mark.parametrize(
    ("place", "pixels", "wg_w", "dtype"),
    [("image", "rows", 1, "float32"), ("buffer", "flat", 2, "float32"), ("image", "rows", 1, "float16")],
)
@pytest.mark.parametrize("tile", [(1, 1, 7), (2, 1, 7), (1, 2, 7)])
@pytest.mark.parametrize("split_k", [2, 4])
def test_tiles_of_seven_pixels_share_sums(
    split_k: int,
    tile: tuple[int, int, int],
    place: str,
    pixels: str,
    wg_w: int,
    dtype: str,
    opencl_device: tvm.runtime.Device,
) -> None:
    """Two or four work-items share the seven sums of a row. One of them gets fewer."""
    task, rng = (
        task_of(conv(32, (7, 7), 30, (3, 3), dtype, padding=(1, 1, 1, 1))).with_free_images(),
        np.random.default_rng(7),
    )
    names = ("data", "weight", "output", "pixels", "wg_w", "tile_o", "tile_h", "tile_w")
    knobs = dict(zip(names, (place, place, place, pixels, wg_w, *tile), strict=True))
    config = task.default_config(TARGET).replace(algorithm="direct", wg_o=2, split_k=split_k, **knobs)
    # In one row of 49 pixels there is no second row.
    if pixels == "flat":
        config = config.replace(tile_h=1, arrangement="striped")
    assert task.space(TARGET).is_valid(config)
    arrays = random_arrays(task, rng)
    assert error_of(run(task, config, arrays, TARGET, opencl_device), reference(task, arrays)) < TOLERANCE[dtype]
