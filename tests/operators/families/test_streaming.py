"""Families without a contraction, on odd and prime shapes, with default and random configs, in double precision."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from romou.base.space import Config
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import LANES, set_image
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import (
    assert_agrees,
    each_kind,
    has_device,
    random_arrays,
    random_configs,
    reference,
    relax_tasks,
)
from support.kernels.streams import OPERATORS
from support.suite.exhaustive import few, in_turn

SEED = 20
PHONE, SCOPE = Target("opencl -device=adreno640 -half=storage"), "global.texture"
TOLERANCE = {"float32": 1e-5, "float16": 2e-3}


def configs_of(task: TunableTask, target: Target, rng: np.random.Generator, drawn: int = 1) -> list[Config]:
    """Return the default config and random ones, but fewer if kernels are only compiled."""
    return [task.default_config(target), *task.space(target).sample(rng, drawn if has_device(target) else drawn // 4)]


def check(name: str, dtype: str, target: Target, drawn: int = 1) -> None:
    for task, plain in zip(relax_tasks(*OPERATORS[name], dtype=dtype), relax_tasks(*OPERATORS[name]), strict=True):
        rng = np.random.default_rng(SEED)
        arrays = random_arrays(task, rng)
        # The plain function in fp16 rounds each step of a sum: a row of 3001 numbers is off by 1.4e-2, and the kernel
        # by 3e-4.
        expected = reference(plain, [a.astype("float32") if a.dtype == np.float16 else a for a in arrays])
        for config in configs_of(task, target, rng, drawn):
            assert_agrees(target, task, config, arrays, expected, TOLERANCE[dtype])


def at(*names: str) -> list[int]:
    return [list(OPERATORS).index(name) for name in names]


# Every second one, and some of the others in CUDA and on Vulkan: each way to address, to pool and to sum.
@random_configs
@each_kind(
    "name",
    OPERATORS,
    opencl=range(0, len(OPERATORS), 2),
    cuda=range(1, len(OPERATORS), 8),
    vulkan=range(3, len(OPERATORS), 8),
)
def test_configs_agree_with_the_plain_function(name: str, target: Target, drawn: int) -> None:
    check(name, "float32", target, drawn)


# One of each way to read and to sum.
FP16 = at(
    "chain",
    "transpose",
    "concat of rows",
    "resize",
    "max pool, ceil",
    "average pool, pads counted",
    "softmax",
    "layer norm",
    "sum of columns",
)


@pytest.mark.parametrize("name", few(OPERATORS, *FP16))
def test_half_precision_storage(name: str, opencl_device: tvm.runtime.Device) -> None:
    check(name, "float16", Target("opencl"))


@pytest.mark.parametrize("name", few(["chain", "concat of rows", "max pool", "softmax"], 1, 3))
def test_half_precision_storage_in_cuda(name: str, cuda_target: Target) -> None:
    check(name, "float16", cuda_target)


IMAGES = ["leaky relu", "concat", "max pool", "average pool", "max pool, dilated", "global average"]


# Each in one type.
@pytest.mark.parametrize(("name", "dtype"), few(itertools.product(IMAGES, TOLERANCE), 0, 3, 4, 7, 8, 11))
def test_kernels_agree_where_the_graph_put_tensors_into_images(
    name: str, dtype: str, opencl_device: tvm.runtime.Device
) -> None:
    """Every texel is read and written whole, in every config."""
    (plain,) = relax_tasks(*OPERATORS[name], dtype=dtype)
    func = plain.func
    assert plain.template.activations == {str(p.name) for p in func.params}
    for parameter in plain.func.params:
        func = set_image(func, str(parameter.name), SCOPE)
    task = TunableTask.of(func)
    assert task is not None
    rng = np.random.default_rng(SEED)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    for config in [task.default_config(PHONE), *task.space(PHONE).sample(rng, 1)]:
        assert_agrees(PHONE, task, config, arrays, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["pack of odd rows", "transpose of odd rows", "unpack", "unpack of prime rows"])
def test_rows_of_odd_length_are_read_and_written_in_vectors(name: str, opencl_device: tvm.runtime.Device) -> None:
    """Phones use vectors by default, and overlapping vectors store each element once, which Oclgrind checks."""
    (task,) = relax_tasks(*OPERATORS[name])
    first, rng = task.default_config(PHONE), np.random.default_rng(SEED)
    assert first["across"] == first["vector_width"] == LANES
    assert task.template.access_width(first["vector_width"], first["across"]) == LANES
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    space = task.space(PHONE)
    for knobs in ({}, {"items": 4, "work_group": 16}, {"vector_width": 1}, {"vector_width": 2, "work_group": 16}):
        assert space.is_valid(first.replace(**knobs))
        assert_agrees(PHONE, task, first.replace(**knobs), arrays, expected, 1e-6)


@in_turn
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["transpose of odd rows", "unpack", "unpack of prime rows"])
def test_vectors_of_odd_rows_overlap_on_every_device(name: str, dtype: str, target: Target) -> None:
    """The last vector of four of a row adds three, two or one elements. With two lanes it adds one.

    CUDA's vectors are aligned, so they do not overlap.
    """
    ((task,), (plain,)) = (relax_tasks(*OPERATORS[name], dtype=kind) for kind in (dtype, "float32"))
    arrays = random_arrays(task, np.random.default_rng(SEED))
    expected = reference(plain, [a.astype("float32") for a in arrays])
    for width in (4, 2):
        config = task.default_config(target).replace(across=LANES, vector_width=width)
        is_there = target.limits.has_vector_arithmetic or task.template.shape[-1] % width == 0
        assert (width in task.space(target).knobs["vector_width"]) == is_there
        if is_there:
            assert task.space(target).is_valid(config)
            assert_agrees(target, task, config, arrays, expected, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("build", "dtypes"),
    [
        (lambda a, b: op.greater(a, b), ["float32", "float32"]),
        (lambda a, b: op.where(op.greater(a, b), op.exp(a), b), ["float32", "float32"]),
        (lambda m, a: op.where(m, a, op.negative(a)), ["bool", "float16"]),
        (lambda a, b: op.add(a, b), ["int64", "int64"]),
        (
            lambda table, at: op.take(table, op.squeeze(op.strided_slice(at, [1], [0], [1]), [1]), axis=0),
            ["float32", "int32"],
        ),
    ],
    ids=["compare", "choose", "mask", "64 bits", "look up"],
)
def test_truth_values_and_integers(build: Callable[..., relax.Expr], dtypes: list[str], target: Target) -> None:
    """OpenCL has no boolean vectors in memory, and a true lane of a vector is -1."""
    for task in relax_tasks(build, (5, 24), (5, 24), dtype=dtypes):
        rng = np.random.default_rng(SEED)
        arrays = [np.clip(a, 0, 4) if a.dtype.kind == "i" else a for a in random_arrays(task, rng)]
        expected = reference(task, arrays)
        for config in configs_of(task, target, rng):
            assert_agrees(target, task, config, arrays, expected, 1e-6)


def test_softmax_of_masked_and_large_values(target: Target) -> None:
    """Rows have one finite entry, as masks make them, and values with overflowing exponentials."""
    (task,) = relax_tasks(lambda a: op.nn.softmax(a, axis=-1), (6, 130))
    rows = np.random.default_rng(SEED).standard_normal((6, 130)).astype("float32")
    rows[0, 1:] = -np.inf
    rows[1, ::2] = -np.inf
    rows[2] *= 1e4
    rows[3] = -1e30
    rows[4, 7] = 3e38
    exact = np.exp(rows.astype("float64") - rows.max(-1, keepdims=True).astype("float64"))
    expected = exact / exact.sum(-1, keepdims=True)
    for config in configs_of(task, target, np.random.default_rng(SEED), 2):
        assert_agrees(target, task, config, [rows, np.full_like(rows, np.nan)], expected, 1e-5)


def test_layer_norm_of_almost_equal_values(target: Target) -> None:
    """A variance far below the square of the mean is not lost."""
    (task,) = relax_tasks(*OPERATORS["layer norm"])
    rng = np.random.default_rng(SEED)
    x = (1000 + 1e-2 * rng.standard_normal((3, 7, 48))).astype("float32")
    scale, shift = (rng.standard_normal(48).astype("float32") for _ in range(2))
    wide = x.astype("float64")
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * scale + shift
    for config in configs_of(task, target, rng, 2):
        # The mean itself is rounded to 1000's last digit, 6e-5: next to a deviation of 1e-2.
        assert_agrees(target, task, config, [x, scale, shift, np.full_like(x, np.nan)], expected, 1e-2)


def test_a_long_sum_of_equal_numbers_keeps_its_digits(target: Target) -> None:
    """Adding them one by one in fp32 would lose 1e-4 here, and 2e-3 for ten times the length."""
    (task,) = relax_tasks(lambda a: op.sum(a, axis=[0]), (30011, 4))
    x = np.full((30011, 4), 0.1, "float32")
    for config in configs_of(task, target, np.random.default_rng(SEED), 2):
        assert_agrees(target, task, config, [x, np.full(4, np.nan, "float32")], x.astype("float64").sum(0), 1e-5)


def test_half_precision_sums_are_single(target: Target) -> None:
    """A sum of 4000 fp16 numbers of about one would stop growing at 2048 in fp16."""
    (task,) = relax_tasks(lambda a: op.mean(a, axis=[-1]), (5, 4000), dtype="float16")
    x = (1 + 0.1 * np.random.default_rng(SEED).standard_normal((5, 4000))).astype("float16")
    config = task.default_config(target)
    assert_agrees(target, task, config, [x, np.full(5, np.nan, "float16")], x.astype("float64").mean(-1), 1e-3)


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda a, b: op.matmul(a, b), [(8, 16), (16, 8)]),
        (lambda a: op.argmax(a, axis=1), [(5, 7)]),
        (lambda a: op.reshape(a, (35,)), [(5, 7)]),
        (lambda a, b: op.nn.conv1d(a, b), [(1, 6, 15), (5, 6, 3)]),
    ],
    ids=["matrix product", "argmax", "view", "convolution"],
)
def test_what_is_none_of_ours_is_left_to_tvm(build: Callable[..., relax.Expr], shapes: list[tuple[int, ...]]) -> None:
    assert relax_tasks(build, *shapes) == []


@pytest.mark.parametrize("width", [20, 13])
def test_neighbouring_windows_load_an_element_once(width: int, opencl_device: tvm.runtime.Device) -> None:
    """Windows of 5x5 are unrolled for seven neighbours, because these have 55 elements, not 175."""
    shape = (2, 3, 11, width)
    (task,) = relax_tasks(lambda a: op.nn.max_pool2d(a, (5, 5), (1, 1), (2, 2, 2, 2)), shape)
    config = task.default_config(PHONE)
    assert (config["tile"], config["is_unrolled"]) == (7, True)
    (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
    assert len(re.findall(r"x0_ptr\[", kernel.source)) == 5 * (5 + 6)
    # Every second column: neighbours share fewer elements
    (apart,) = relax_tasks(lambda a: op.nn.max_pool2d(a, (5, 5), (1, 2), (2, 2, 2, 2)), shape)
    space = apart.space(PHONE)
    is_short = {tile: space.is_valid(apart.default_config(PHONE).replace(tile=tile)) for tile in (4, 7)}
    assert is_short == {4: True, 7: False}
    rng = np.random.default_rng(SEED)
    for each, configs in ((task, [config, config.replace(tile=8)]), (apart, [apart.default_config(PHONE)])):
        arrays = random_arrays(each, rng)
        for chosen in configs:
            assert_agrees(PHONE, each, chosen, arrays, reference(each, arrays), 1e-6)


@pytest.mark.parametrize(
    ("row", "window", "stride", "tile"),
    [(56, 3, 2, 8), (28, 3, 2, 7), (28, 3, 1, 7), (14, 5, 1, 7), (6, 3, 2, 3), (32, 2, 2, 8)],
)
def test_a_tile_loads_the_fewest_elements_on_phones(row: int, window: int, stride: int, tile: int) -> None:
    """A tile that does not divide the row loads windows that it does not store. Texels count four elements."""
    end = (row - 1) * stride + window
    for lanes, build, shape in (
        (1, lambda a: op.nn.max_pool2d(a, (window, window), (stride, stride)), (1, 64, end, end)),
        (4, lambda a: op.nn.max_pool2d(a, (window, window), (stride, stride), layout="NCHW4c"), (1, 16, end, end, 4)),
    ):
        (task,) = relax_tasks(build, shape)
        assert task.default_config(PHONE)["tile"] == min(tile, 16 // lanes)
        assert task.default_config(Target("cuda -device=nvidia_h200"))["tile"] == 1
