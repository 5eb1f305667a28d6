"""Scattered rows: numbers against NumPy for any axis, type, reduction and config, and several updates of an element."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm

import romou
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.operators import assert_agrees, has_device
from support.models.nodes import model_of
from support.suite.exhaustive import in_turn

SEED = 13
# Type, shape of the data, axis, updates of a row, and reduction.
SCATTERS: dict[str, tuple[str, tuple[int, ...], int, int, str]] = {
    "experts": ("float32", (37, 8), 1, 2, "none"),
    "a prime row": ("float32", (1009,), 0, 13, "add"),
    "more updates than elements": ("float32", (3, 5, 7), 1, 41, "add"),
    "columns": ("float32", (11, 13, 2, 3), 0, 4, "mul"),
    "halves": ("float16", (2, 3, 17), -1, 5, "add"),
    "the last of several": ("int64", (4, 6), 0, 19, "none"),
    "bytes": ("uint8", (3, 23, 2), 1, 9, "max"),
    "integers": ("int32", (2, 3, 4, 5), 2, 7, "min"),
    "truth values": ("bool", (5, 9), 1, 3, "none"),
    "doubles": ("float64", (7, 31), 1, 31, "max"),
    "one": ("float32", (4, 1), 1, 3, "mul"),
}
REDUCED = {"none": lambda _, b: b, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
TARGETS = ("opencl", "opencl -device=adreno640", "vulkan")


def arrays_of(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dtype, shape, axis, count, _ = SCATTERS[name]
    rng = np.random.default_rng(SEED)
    of_updates = tuple(count if i == axis % len(shape) else extent for i, extent in enumerate(shape))
    x, updates = ((rng.standard_normal(s) * 3).astype(dtype) for s in (shape, of_updates))
    return x, rng.integers(-shape[axis], shape[axis], of_updates), updates


def right(name: str) -> np.ndarray:
    """Return the data after all updates in order. NumPy's own functions do not say in which order they write."""
    _, _, axis, _, reduction = SCATTERS[name]
    x, indices, updates = arrays_of(name)
    y = x.astype("float64") if x.dtype.kind == "f" else x.copy()
    for at in np.ndindex(updates.shape):
        to = list(at)
        to[axis] = int(indices[at])
        y[tuple(to)] = REDUCED[reduction](y[tuple(to)], updates[at])
    return y


def model(name: str, operator: str = "ScatterElements") -> onnx.ModelProto:
    x, indices, updates = arrays_of(name)
    inputs = {"x": x, "i": indices, "u": updates}
    return model_of({"y": (operator, "x i u", {"axis": SCATTERS[name][2], "reduction": SCATTERS[name][4]})}, inputs)


def task_of(name: str, target: Target) -> TunableTask:
    (task,) = Compilation.of(import_model(model(name), None), target).lowered().tasks
    assert task.family == "scattered_rows"
    return task


@in_turn
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SCATTERS)
def test_updates_are_those_of_numpy(name: str, target: str) -> None:
    compiled = romou.compile(model(name), target=target, verify=False)
    assert (compiled.host_nodes, compiled.summary().by_tvm) == ((), ())
    x, indices, updates = arrays_of(name)
    (y,) = compiled.run({"x": x, "i": indices, "u": updates})
    assert y.dtype == x.dtype
    tolerance = {"float16": 1e-2, "float32": 1e-5}.get(str(x.dtype), 0)
    np.testing.assert_allclose(y, right(name), tolerance, tolerance)


@pytest.mark.parametrize("name", ["a prime row", "more updates than elements", "the last of several"])
def test_updates_under_random_configs(name: str, target: Target, opencl_device: tvm.runtime.Device) -> None:
    """Outputs start as poison, and any number of owners applies the updates of an element in order."""
    task, arrays = task_of(name, target), arrays_of(name)
    poison = np.full(arrays[0].shape, -77, arrays[0].dtype)
    drawn = task.space(target).sample(np.random.default_rng(SEED), 6 if has_device(target) else 1)
    for config in (task.default_config(target), *drawn):
        assert_agrees(target, task, config, [*arrays, poison], right(name), 1e-5)


def test_cuda_scatters_on_the_cpu() -> None:
    target, name = Target("cuda -device=nvidia_h200"), "more updates than elements"
    task, arrays = task_of(name, target), arrays_of(name)
    found = run_on_cpu(task, task.default_config(target), [*arrays, np.full(arrays[0].shape, -77, np.float32)], target)
    np.testing.assert_allclose(found, right(name), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("shape", "count", "device", "owners"),
    [
        ((1, 50000), 100, "host", 256),
        ((4, 8), 64, "host", 1),
        ((1, 50000), 100, "adreno640", 2048),
        ((4096, 64), 2, "adreno640", 32),
        ((64, 64), 5000, "nvidia_h200", 16),
    ],
)
def test_owners_are_as_many_as_pay(shape: tuple[int, int], count: int, device: str, owners: int) -> None:
    """Each passes over all updates of its row: more owners of a row repeat that, fewer copy more elements."""
    inputs = {"x": np.zeros(shape, "f4"), "i": np.zeros((shape[0], count), int), "u": np.zeros((shape[0], count), "f4")}
    scatter = model_of({"y": ("ScatterElements", "x i u", {"axis": 1})}, inputs)
    target = Target(f"{'cuda' if 'nvidia' in device else 'opencl'} -device={device}")
    (task,) = Compilation.of(import_model(scatter, None), target).lowered().tasks
    assert task.default_config(target)["owners"] == owners
