"""Sorted and cumulated rows: numbers against NumPy, for any length, axis, type and config."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import tirx

import romou
from romou.base.errors import BuildError
from romou.compiler.assembly import default_schedules
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.families.cumulated_rows import CumulatedRows
from romou.compiler.operators.families.sorted_rows import SortedRows
from romou.compiler.task import TunableTask
from romou.devices.backends.launch import work_group
from romou.devices.targets import Target
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.operators import assert_agrees, has_device
from support.models.nodes import assert_equals_onnxruntime, model_of
from support.suite.exhaustive import in_turn

SEED = 11
# Type, shape, axis, k, and whether the largest come first. Runs of one group, of several rows of a group, of several
# groups (more than 4,096 elements, or 2,048 of 64 bits), and of two levels of merges (more than 16 runs). Up to 64
# elements of a row, a work-item of a CPU keeps in order while it reads the row.
SORTS: dict[str, tuple[str, tuple[int, ...], int, int, bool]] = {
    "experts": ("float32", (37, 8), 1, 2, True),
    "one of a few": ("float32", (5, 3, 2), 1, 1, False),
    "a column in order": ("float16", (3, 70, 2), 1, 70, False),
    "more than a group": ("float32", (2, 300), -1, 10, True),
    "all of several runs": ("int32", (4500,), 0, 4500, False),
    "bytes": ("uint8", (4, 100, 3), 1, 50, True),
    "several runs": ("float32", (2, 5001), 1, 300, True),
    "two levels": ("int64", (1, 70001), 1, 80, True),
    "few of a long row": ("float32", (3, 7001), 1, 64, False),
    "doubles": ("float64", (6, 65), 1, 9, False),
    "the most of 64 bits": ("uint64", (3, 130), 1, 130, True),
}
# Type, shape, axis, and flags.
SUMS: dict[str, tuple[str, tuple[int, ...], int, tuple[str, ...]]] = {
    "a mask's positions": ("int64", (3, 20), 1, ()),
    "a prime row": ("float32", (2, 1009), 1, ("exclusive",)),
    "a long row": ("float32", (1, 30011), 1, ("reverse",)),
    "columns": ("int32", (2, 77, 5), 1, ("exclusive", "reverse")),
    "halves": ("float16", (41, 3), 0, ()),
    "one": ("int32", (4, 1), 1, ("exclusive",)),
}
TARGETS = ("opencl", "opencl -device=adreno640", "vulkan")


def numbers(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers with ties, both ends of the type, and for floats both zeros, infinities and NaN."""
    rng = np.random.default_rng(SEED)
    is_float = np.dtype(dtype).kind == "f"
    x = (
        np.round(rng.standard_normal(shape) * 40).astype(dtype)
        if is_float
        else rng.integers(0, 90, shape).astype(dtype)
    )
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0] if is_float else [np.iinfo(dtype).min, np.iinfo(dtype).max]
    for value in special:
        x[rng.random(shape) < 0.03] = value
    return x


def places_of(x: np.ndarray, axis: int, k: int, *, is_largest: bool) -> np.ndarray:
    """Return the first positions: NaN counts as the largest, and the lower of two equal elements comes first."""
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    order = np.argsort(-ranks if is_largest else ranks, axis=axis, kind="stable")
    return order.take(np.arange(k), axis=axis)


def sort_model(x: np.ndarray, axis: int, k: int, is_largest: bool, **attributes: Any) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    shape = [k if i == axis % x.ndim else extent for i, extent in enumerate(x.shape)]
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=axis, largest=int(is_largest), **attributes)
    types = {"values": kind, "places": onnx.TensorProto.INT64}
    outputs = [helper.make_tensor_value_info(name, dtype, shape) for name, dtype in types.items()]
    given = [helper.make_tensor_value_info("x", kind, x.shape)]
    graph = helper.make_graph([node], "sort", given, outputs, [numpy_helper.from_array(np.array([k]), "k")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def sum_model(x: np.ndarray, axis: int, flags: tuple[str, ...], operator: str = "CumSum") -> onnx.ModelProto:
    nodes = {"y": (operator, "x axis", dict.fromkeys(flags, 1))}
    return model_of(nodes, {"x": x}, {"axis": np.array(axis)}, opset=26 if operator == "CumProd" else 18)


def cumulated(x: np.ndarray, axis: int, flags: tuple[str, ...]) -> np.ndarray:
    wide = x.astype("float64") if x.dtype.kind == "f" else x
    sums = np.flip(np.cumsum(np.flip(wide, axis), axis), axis) if "reverse" in flags else np.cumsum(wide, axis)
    return (sums - wide if "exclusive" in flags else sums).astype(wide.dtype)


def task_of(model: onnx.ModelProto, target: Target, family: str) -> TunableTask:
    (task,) = (t for t in Compilation.of(import_model(model, None), target).lowered().tasks if t.family == family)
    return task


@in_turn
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SORTS)
def test_first_elements_are_those_of_numpy(name: str, target: str) -> None:
    dtype, shape, axis, k, is_largest = SORTS[name]
    x = numbers(dtype, shape)
    compiled = romou.compile(sort_model(x, axis, k, is_largest, sorted=k % 2), target=target, verify=False)
    assert (compiled.host_nodes, compiled.summary().by_tvm) == ((), ())
    values, places = compiled.run({"x": x})
    expected = places_of(x, axis, k, is_largest=is_largest)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis))


@in_turn
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_those_of_numpy(name: str, target: str) -> None:
    dtype, shape, axis, flags = SUMS[name]
    x = (np.random.default_rng(SEED).standard_normal(shape) * 9).astype(dtype)
    compiled = romou.compile(sum_model(x, axis, flags), target=target, verify=False)
    assert (compiled.host_nodes, compiled.summary().by_tvm) == ((), ())
    (y,) = compiled.run({"x": x})
    right, tolerance = cumulated(x, axis, flags), {"float16": 1e-3, "float32": 1e-6}.get(dtype, 0)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, right, tolerance, tolerance * np.abs(right).max())


def test_products_are_those_of_numpy() -> None:
    x = np.random.default_rng(SEED).uniform(0.9, 1.1, (3, 41)).astype("float32")
    compiled = romou.compile(sum_model(x, 1, ("reverse",), "CumProd"), target="opencl", verify=False)
    assert compiled.summary().by_tvm == ()
    right = np.flip(np.cumprod(np.flip(x.astype("float64"), 1), 1), 1)
    np.testing.assert_allclose(compiled.run({"x": x})[0], right, 1e-5)


@pytest.mark.parametrize("name", ["experts", "a column in order", "several runs"])
def test_sorts_under_random_configs(name: str, target: Target) -> None:
    """Outputs start as poison, and the kernels of all configs give the same positions."""
    dtype, shape, axis, k, is_largest = SORTS[name]
    x = numbers(dtype, shape)
    task = task_of(sort_model(x, axis, k, is_largest), target, "sorted_rows")
    right = places_of(x, axis, k, is_largest=is_largest)
    drawn = task.space(target).sample(np.random.default_rng(SEED), 4 if has_device(target) else 1)
    for config in (task.default_config(target), *drawn):
        assert_agrees(target, task, config, [x, np.full(right.shape, -7)], right, 1e-12)


@pytest.mark.parametrize("name", ["a prime row", "columns"])
def test_sums_under_random_configs(name: str, target: Target) -> None:
    dtype, shape, axis, flags = SUMS[name]
    x = (np.random.default_rng(SEED).standard_normal(shape) * 9).astype(dtype)
    task = task_of(sum_model(x, axis, flags), target, "cumulated_rows")
    drawn = task.space(target).sample(np.random.default_rng(SEED), 4 if has_device(target) else 1)
    for config in (task.default_config(target), *drawn):
        poison = np.full(shape, -77, dtype)
        assert_agrees(target, task, config, [x, poison], cumulated(x, axis, flags), 1e-5)


@pytest.mark.parametrize("local_memory_bytes", [1 << 10, 1 << 15])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_runs_fit_the_local_memory(dtype: str, local_memory_bytes: int) -> None:
    """A group keeps a key and a position of each element there, and sorts at most 4,096."""
    x = np.zeros((1, 10_000), dtype)
    task = task_of(sort_model(x, 1, 5, True), Target("opencl"), "sorted_rows")
    limits = dataclasses.replace(Target("opencl").limits, local_memory_bytes=local_memory_bytes)
    assert isinstance(task.template, SortedRows)
    assert task.template.work(limits).run == min(4096, local_memory_bytes // (2 * x.itemsize))


@pytest.mark.parametrize("rules", [default_schedules.RULES, ()], ids=["rules", "plain"])
@pytest.mark.parametrize("operator", ["TopK", "CumSum"])
def test_plain_definitions_are_right(operator: str, rules: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A function whose kernel fails has TVM's schedule of its plain definition."""

    def fail(*_: object) -> None:
        raise BuildError("no kernel")

    for template in (SortedRows, CumulatedRows):
        monkeypatch.setattr(template, "schedule", fail)
    monkeypatch.setattr(default_schedules, "RULES", rules)
    monkeypatch.setenv("ROMOU_NO_FALLBACK", "0")
    x = numbers("float32", (3, 37)) if operator == "TopK" else np.arange(111, dtype="float32").reshape(3, 37)
    model = sort_model(x, 1, 5, True) if operator == "TopK" else sum_model(x, 1, ("exclusive",))
    compiled = romou.compile(model, target="opencl", verify=False)
    assert compiled.host_nodes == ()
    assert len(compiled.summary().by_tvm) == 1
    right = places_of(x, 1, 5, is_largest=True) if operator == "TopK" else cumulated(x, 1, ("exclusive",))
    np.testing.assert_array_equal(compiled.run({"x": x})[-1], right)


def test_cuda_sorts_on_the_cpu() -> None:
    """The text for CUDA, whose work-items wait for each other at barriers."""
    dtype, shape, axis, k, is_largest = "float32", (3, 200), 1, 17, True
    x, target = numbers(dtype, shape), Target("cuda -device=nvidia_h200")
    task = task_of(sort_model(x, axis, k, is_largest), target, "sorted_rows")
    right = places_of(x, axis, k, is_largest=is_largest)
    found = run_on_cpu(task, task.default_config(target), [x, np.full(right.shape, -7)], target)
    np.testing.assert_array_equal(found, right)


def test_a_work_group_of_no_constant_size_is_refused() -> None:
    """The text of a kernel declares its work group. A wrong declaration fails at each launch."""
    n, item = tirx.Var("n", "int32"), tirx.Var("item", "int32")
    x = tirx.decl_buffer((n,), "float32", "x")
    body = tirx.BufferStore(x, tirx.const(1.0, "float32"), [item])

    def bound(tag: str) -> tirx.PrimFunc:
        axis = tirx.IterVar(None, item, tirx.IterVar.ThreadIndex, tag)
        return tirx.PrimFunc([x], tirx.AttrStmt(axis, "thread_extent", n, body)).with_attr("global_symbol", "fill")

    assert work_group(bound("blockIdx.x")) == (1, 1, 1)
    with pytest.raises(
        BuildError, match=r"fill: the work group has n work-items along threadIdx.x, which is no constant"
    ):
        work_group(bound("threadIdx.x"))


def test_the_host_keeps_boxes_without_a_complaint(caplog: pytest.LogCaptureFixture) -> None:
    """How many of thousands of boxes NonMaxSuppression keeps is known only after it ran, so it has no kernel."""
    rng, count = np.random.default_rng(SEED), 3000
    corners = rng.random((1, count, 2), dtype=np.float32)
    sides = rng.random((1, count, 2), dtype=np.float32) * np.float32(0.3)
    inputs = {
        "boxes": np.concatenate([corners, corners + sides], 2),
        "scores": rng.random((1, 1, count), dtype=np.float32),
    }
    constants = {"most": np.array([20]), "iou": np.float32([0.5]), "score": np.float32([0.1])}
    nodes = {"places": ("NonMaxSuppression", "boxes scores most iou score")}
    model = model_of(nodes, inputs, constants)
    compiled = romou.compile(model, target="opencl", verify=False)
    assert len(compiled.host_nodes) == 1
    assert [record.levelname for record in caplog.records if "fault" in record.message] == []
    assert_equals_onnxruntime(model, inputs, compiled.run(inputs))
