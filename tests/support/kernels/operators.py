"""Single operators as tasks, for tests."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from romou.base.space import Config
from romou.compiler.assembly.kernel import build_reference, build_task
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.join_chains import find_chains
from romou.compiler.operators.families.batch_matmul import matmul
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose
from romou.compiler.operators.families.dense import Dense
from romou.compiler.pipeline import GRAPH, fuse_operators
from romou.compiler.pipeline import run as run_stages
from romou.compiler.scheduling.rewrites import join
from romou.compiler.single_operator import conv, task_of
from romou.compiler.stages import Context, part
from romou.compiler.task import TunableTask
from romou.compiler.tir.expressions import module_of
from romou.devices.backends import backend
from romou.devices.backends.cuda import nvrtc
from romou.devices.backends.cuda.nvrtc import compile_cuda
from romou.devices.targets import Target
from romou.tuner.measure.verify import poison
from support.suite.compiled import compiled
from support.suite.exhaustive import exhaustive
from tvm_patches.runtime import device_tensor

__all__ = [
    "COMPILED_ONLY",
    "assert_agrees",
    "compile_only",
    "conv",
    "conv_transpose",
    "each_kind",
    "error_of",
    "error_on",
    "has_device",
    "joined_task",
    "kind_id",
    "matmul",
    "pair_of",
    "quick_configs",
    "random_arrays",
    "random_configs",
    "reference",
    "relax_tasks",
    "run",
    "small_tasks",
    "target_of",
    "task_of",
]

# The number of random configs that a test tries besides the default one.
random_configs = pytest.mark.parametrize("drawn", [1, pytest.param(5, marks=exhaustive)], ids="{} drawn".format)
# In the id of a test that runs no kernel, because there is no GPU.
COMPILED_ONLY = "compiled-only"
_MOST_LINES = 700
# Optimizing a small reference takes LLVM longer than everything else in a test. Sums keep their order either way.
_CPU: Any = SimpleNamespace(tvm_target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))


@functools.lru_cache(maxsize=32)
def _built(task: TunableTask, config: Config, target: Target) -> tvm.runtime.Module:
    return build_task(task, config, target)


@functools.lru_cache(maxsize=32)
def _reference(task: TunableTask) -> tvm.runtime.Module:
    return build_reference(task, _CPU)


def forget_built() -> None:
    """Forget the kernels and references that are kept, and their tasks."""
    _built.cache_clear()
    _reference.cache_clear()


def lines_of(module: tvm.runtime.Module) -> int:
    """Count the lines of all kernels of a built function."""
    return sum(str(kernels.inspect_source()).count("\n") for kernels in module.imports)


def conv_transpose(
    channels: int, size: tuple[int, int], outputs: int, kernel: tuple[int, int], dtype: str = "float32", **given: Any
) -> Conv2dTranspose:
    """Return a transposed convolution. Omitted fields have the defaults of `Conv2dTranspose`."""
    return Conv2dTranspose.of(channels, size, outputs, kernel, dtype=dtype, **given)


def random_arrays(task: TunableTask, rng: np.random.Generator) -> list[np.ndarray]:
    """Return an array for each parameter. The output is poisoned, so that elements that a kernel does not write are
    noticed.
    """
    shapes = [(tuple(int(d) for d in p.shape), str(p.dtype)) for p in task.func.params]
    arrays = [
        rng.integers(0, 1 << 32, shape, dtype=np.uint32)
        if dtype == "uint32"
        else rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
        if dtype in ("int8", "uint8")
        else rng.standard_normal(shape).astype(dtype)
        for shape, dtype in shapes
    ]
    arrays[-1] = poison(arrays[-1].shape, str(arrays[-1].dtype))
    return task.template.with_zeros(arrays)


def reference(task: TunableTask, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the output of the unscheduled function on the CPU, in double precision."""
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    _reference(task)["main"](*tensors)
    return tensors[-1].numpy().astype(np.float64)


def run(
    task: TunableTask,
    config: Config,
    arrays: list[np.ndarray],
    target: Target,
    device: tvm.runtime.Device,
    *,
    without: Sequence[str] = (),
) -> np.ndarray:
    """Return the output of a config on the device, in double precision. `without`: names of passes to leave out."""
    scopes = task.image_scopes(config, target)
    names = [str(p.name) for p in task.func.params]
    tensors = [
        device_tensor(a, device, scopes.get(n, "global"))
        for n, a in zip(names, task.arguments(arrays, config), strict=True)
    ]
    module = built(task, config, target, without)
    # PoCL's optimization of a kernel takes three times as long as everything else. Models and candidates of a search
    # are still optimized.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
        module["main"](*tensors)
    return tensors[-1].numpy().astype(np.float64)


def built(task: TunableTask, config: Config, target: Target, without: Sequence[str] = ()) -> tvm.runtime.Module:
    """Return the module of a config. The last modules are kept, because `quick_configs` may have built them to count
    their lines.
    """
    if not without:
        return _built(task, config, target)
    with tvm.transform.PassContext(disabled_pass=list(without)):
        return build_task(task, config, target)


def quick_configs(task: TunableTask, target: Target, rng: np.random.Generator, count: int) -> list[Config]:
    """Return random configs with kernels that compile in a second or two. Compilers take half a minute for a few
    thousand unrolled lines.

    Longer kernels are run by tests/operators/families/test_other_compilers.py.
    """
    found: list[Config] = []
    space = task.space(target)
    # Most of a space may be long, so more are drawn until there is one.
    draws = itertools.chain.from_iterable(space.sample(rng, 8 * count) for _ in range(6) if not found)
    for config in draws:
        if lines_of(built(task, config, target)) < _MOST_LINES:
            found.append(config)
        if len(found) == count:
            break
    assert found, f"{task.name}: no random config has a short kernel"
    return found


def pair_of(
    channels: int,
    size: tuple[int, int],
    outputs: int,
    dtype: str = "float32",
    *,
    kernel: tuple[int, int] = (3, 3),
    **given: object,
) -> TunableTask:
    """Return a depthwise convolution and the pointwise one that reads it as one function, each with a bias and a ReLU.

    `given`: fields of the depthwise one.
    """
    first = conv(channels, size, channels, kernel, dtype, groups=channels, **given)
    second = conv(channels, first.out_hw, outputs, (1, 1), dtype, batch=first.batch)
    task = TunableTask.of(join(task_of(first).func, task_of(second).func, 0))
    assert task is not None
    return task


def direct_config(task: TunableTask, target: Target) -> Config:
    """Return the first config that sums directly."""
    return next(config for config in task.starts(target) if config.get("algorithm", "direct") == "direct")


def target_of(kind: str) -> Target:
    """Return the attached device of a kind. For CUDA without a device, it is a GPU that kernels can be compiled for."""
    return Target(kind) if kind != "cuda" or backend(kind).list_devices() else Target("cuda -device=nvidia_h200")


def has_device(target: Target) -> bool:
    """Return whether kernels for the target can run here."""
    return bool(target.backend.list_devices())


def compile_only(module: tvm.runtime.Module, target: Target) -> None:
    """Compile the CUDA kernels of a built function by NVRTC, which a build on a machine without a CUDA runtime does not
    do.
    """
    assert module.imports, "a function without kernels"
    # The compiler and its options.
    by = nvrtc.version() + Path(nvrtc.__file__).read_text(encoding="utf-8")
    for kernels in module.imports:
        source, arch = str(kernels.inspect_source()), str(target.tvm_target.attrs["arch"])
        code = compiled(
            ".cubin",
            source,
            arch,
            by,
            by=lambda path, source=source, arch=arch: path.write_bytes(compile_cuda(source, arch)),
        )
        assert code.read_bytes().startswith(b"\x7fELF")


def kind_id(kind: str) -> str:
    """Return the name of a device kind in the id of a test. It says if kernels are only compiled."""
    return f"{kind}-{COMPILED_ONLY}" if kind == "cuda" and not has_device(target_of(kind)) else kind


def each_kind(
    name: str, values: Iterable[Any], *, opencl: Sequence[int], cuda: Sequence[int], vulkan: Sequence[int] = ()
) -> pytest.MarkDecorator:
    """Repeat a test for `target`, as the fixture does, and for the values of `name`. Only the values at the given
    positions are not exhaustive.

    Fewer values are needed if kernels are only compiled, and Vulkan on a CPU takes long.
    """
    every = list(values)
    assert opencl, f"{name}: no default case on OpenCL"
    assert all(-1 < place < len(every) for place in (*opencl, *cuda, *vulkan))
    places = {"opencl": opencl, "cuda": cuda, "vulkan": vulkan}
    params = [
        pytest.param(
            kind,
            value,
            id=f"{kind_id(kind)}-{getattr(value, 'name', value)}",
            marks=() if place in kept else exhaustive,
        )
        for kind, kept in places.items()
        for place, value in enumerate(every)
    ]
    return pytest.mark.parametrize(("target", name), params, indirect=["target"])


def error_on(
    target: Target,
    task: TunableTask,
    config: Config,
    arrays: list[np.ndarray],
    expected: np.ndarray,
    *,
    without: Sequence[str] = (),
) -> float | None:
    """Return the relative L2 error of a config on the target's device. None for CUDA without a GPU, since its kernels
    are only compiled.
    """
    if has_device(target):
        return error_of(run(task, config, arrays, target, target.backend.device(), without=without), expected)
    assert target.kind == "cuda", (
        f"no {target.backend.title} device: scripts/test.sh installs one; `romou doctor` says what is wrong"
    )
    compile_only(built(task, config, target, without), target)
    return None


def assert_agrees(
    target: Target,
    task: TunableTask,
    config: Config,
    arrays: list[np.ndarray],
    expected: np.ndarray,
    limit: float,
    *,
    without: Sequence[str] = (),
) -> None:
    """Assert that the relative L2 error of a config is below `limit`. If kernels are only compiled, the id of the test
    has to say so, since no number was checked.
    """
    error = error_on(target, task, config, arrays, expected, without=without)
    if error is None:
        assert COMPILED_ONLY in os.environ["PYTEST_CURRENT_TEST"], (
            "this test compiles CUDA kernels and runs none: say so in its id (operators.kind_id)"
        )
    else:
        # The comparison also fails for NaN.
        assert error < limit, f"{task.name} {config} without {without}: {error:.3g}, which is not below {limit:g}"


def error_of(output: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative L2 error. It is NaN if the kernel left the poison."""
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


def small_tasks() -> list[TunableTask]:
    """Return three tasks of different families and cost."""
    works = [
        conv(8, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1)),
        conv(8, (7, 7), 8, (3, 3), groups=8),
        Dense(m=3, k=20, n=17, dtype="float32"),
    ]
    return [task_of(work) for work in works]


def relax_tasks(
    build: Callable[..., relax.Expr], *shapes: Sequence[int], dtype: str | Sequence[str] = "float32"
) -> list[TunableTask]:
    """Return the tasks of a graph that `build` makes of one variable for each shape. `dtype`: of all variables, or one
    for each.
    """
    tasks, _ = extract_tasks(fuse_operators(_module_of(build, shapes, dtype), target_of("opencl")))
    return tasks


def joined_task(
    build: Callable[..., relax.Expr], *shapes: Sequence[int], dtype: str | Sequence[str] = "float32"
) -> TunableTask:
    """Return the joined task of a graph with one chain of functions. Arguments are those of `relax_tasks`."""
    stages = part(GRAPH, "pack_channels", "mark_rungs")
    mod = run_stages(stages, _module_of(build, shapes, dtype), Context(target=Target("cuda -device=nvidia_h200")))
    (chain,) = find_chains(mod)
    return chain.task


def _module_of(
    build: Callable[..., relax.Expr], shapes: Sequence[Sequence[int]], dtype: str | Sequence[str]
) -> tvm.IRModule:
    kinds = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
    inputs = {f"x{i}": (tuple(shape), kind) for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))}
    return module_of(inputs, build)
