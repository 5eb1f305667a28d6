"""Local memory in two halves: right for any number of iterations, with a barrier in each, and wrong without it."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.base.space import Config
from romou.compiler.operators.families.batch_matmul import BatchMatmul
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.passes import double_buffers
from romou.compiler.scheduling.loops import padded_texels
from romou.compiler.task import TunableTask
from romou.compiler.tir.calls import op_name
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.devices.platforms import INTEL
from support.kernels import cuda_on_cpu
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.operators import conv, direct_config, error_of, matmul, random_arrays, reference, run, task_of
from support.suite.exhaustive import few

TARGET = Target("cuda -arch=sm_90a")
DENSE = Dense(m=21, k=48, n=37, dtype="float32")


def config_of(task: TunableTask, **knobs: int | str) -> Config:
    """Return a config of 2 x 4 work-items with tiles that divide no extent."""
    knobs = {"tile_o": 2, "tile_w": 3, "wg_o": 2, "wg_w": 4, "local_buffers": 2, "split_k": 1, **knobs}
    config = direct_config(task, TARGET).replace(**knobs)
    assert task.space(TARGET).is_valid(config), config
    return config


def error_of_text(task: TunableTask, config: Config) -> float:
    arrays = random_arrays(task, np.random.default_rng(5))
    return error_of(run_on_cpu(task, config, arrays, TARGET), reference(task, arrays))


@pytest.mark.parametrize(
    ("work", "knobs"),
    few(
        [
            # An odd number of iterations, an even one, and one texel each, loaded by only some of the work-items.
            (DENSE, {"local": 4}),
            (Dense(m=21, k=32, n=37, dtype="float32"), {"local": 2, "vector_width": 1, "arrangement": "striped"}),
            (Dense(m=9, k=31, n=19, dtype="float32"), {"local": 1, "tile_w": 1}),
            (Dense(m=9, k=48, n=19, dtype="float16"), {"local": 4, "tile_w": 2, "multiply_add": "fma", "steps": 1}),
            (DENSE, {"local": 4, "unroll": "iteration", "vector_width": 1}),
            # Padding is zero on its way too.
            (conv(12, (7, 5), 10, (3, 3), padding=(1, 1, 1, 1)), {"local": 1, "vector_width": 2}),
            (matmul((2,), 7, 24, 18, is_transposed=True), {"local": 2, "arrangement": "striped"}),
        ],
        0,
        3,
        4,
        5,
    ),
    ids=str,
)
def test_numbers_of_the_text(work: Conv2d | Dense | BatchMatmul, knobs: dict[str, int | str]) -> None:
    task = task_of(work)
    assert error_of_text(task, config_of(task, **knobs)) < (1e-5 if work.dtype == "float32" else 1e-3)


@pytest.mark.parametrize("accumulate", ["float32", "float16"])
@pytest.mark.parametrize("vector_width", [4, 2, 1])
def test_vulkan_holds_fp16_as_numbers(accumulate: str, vector_width: int, vulkan_device: tvm.runtime.Device) -> None:
    """GLSL has no bits of vectors of fp16."""
    target, task = Target("vulkan -device=host"), task_of(Dense(m=21, k=48, n=37, dtype="float16"))
    knobs = {"tile_o": 2, "tile_w": 4, "wg_o": 2, "wg_w": 4, "local_buffers": 2, "local": 4, "split_k": 1}
    config = direct_config(task, target).replace(**knobs, accumulate=accumulate, vector_width=vector_width)
    assert task.space(target).is_valid(config), config
    arrays = random_arrays(task, np.random.default_rng(5))
    assert error_of(run(task, config, arrays, target, vulkan_device), reference(task, arrays)) < 5e-3


def test_a_kernel_with_one_half_or_without_barriers_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a barrier, the emulation would see a race."""
    task = task_of(DENSE)
    config = config_of(task, local=4)
    with monkeypatch.context() as patch:
        patch.setattr(double_buffers, "_HALVES", 1)
        assert error_of_text(task, config) > 0.1
    waiting = "wait(group_barrier, blockDim.x * blockDim.y * blockDim.z);"
    assert waiting in cuda_on_cpu._PRELUDE
    monkeypatch.setattr(cuda_on_cpu, "_PRELUDE", cuda_on_cpu._PRELUDE.replace(waiting, ""))
    assert not error_of_text(task, config) < 0.1


def test_a_turn_has_one_barrier_and_loads_before_it_sums_up() -> None:
    task = task_of(DENSE)
    bodies, sizes = {}, {}
    for local_buffers in (1, 2):
        (kernel,) = inspect_function(
            task.schedule(config_of(task, local=4, local_buffers=local_buffers), TARGET)["main"], TARGET
        )
        loops: list[tirx.For] = []
        structural_walk(kernel.lowered.body, (tirx.For, loops.append))
        (body,) = (loop.body for loop in loops if barriers_in(loop.body))
        assert barriers_in(body) == 3 - local_buffers
        bodies[local_buffers] = body
        sizes[local_buffers] = shared_in(kernel.lowered.body)
    assert sizes[2] == [2 * size for size in sizes[1]]
    # Texels of the next iteration stay in registers from before the sums until after them.
    order: list[str] = []
    structural_walk(bodies[2], (tirx.BufferStore, lambda store: order.append(str(store.buffer.name))))
    kinds = [
        kind
        for kind, _ in itertools.groupby(
            "ahead" if name.endswith("_ahead") else "shared" if "shared" in name else "sums" for name in order
        )
    ]
    assert kinds == ["ahead", "sums", "shared"]


@pytest.mark.parametrize(("name", "loops"), [("cuda -arch=sm_90a", 2), ("opencl -device=adreno640", 0)])
def test_a_turn_is_written_out_by_the_compiler(name: str, loops: int) -> None:
    """CUDA's compiler unrolls the loop by a pragma. For other compilers the text is unrolled."""
    target, task = Target(name), task_of(conv(12, (7, 5), 10, (3, 3), padding=(1, 1, 1, 1)))
    places = dict.fromkeys(("data", "weight", "output"), "buffer")
    knobs = {**places, "pixels": "flat", "local": 1, "tile_w": 1, "wg_o": 2, "wg_w": 4, "split_k": 1, "vector_width": 4}
    texts = []
    for unroll in ("lanes", "iteration"):
        config = direct_config(task, target).replace(**knobs, unroll=unroll)
        assert task.space(target).is_valid(config), config
        (kernel,) = inspect_function(task.schedule(config, target)["main"], target)
        texts.append(kernel.source)
    assert texts[1].count("#pragma unroll") == loops
    assert texts[1].count("for (") == texts[0].count("for (") - (0 if loops else 2)


def barriers_in(stmt: tirx.Stmt) -> int:
    found: list[tirx.Evaluate] = []
    structural_walk(
        stmt,
        (tirx.Evaluate, lambda node: found.append(node) if op_name(node.value) == "tirx.tvm_storage_sync" else None),
    )
    return len(found)


def shared_in(stmt: tirx.Stmt) -> list[int]:
    found: list[int] = []
    structural_walk(
        stmt,
        (
            tirx.AllocBuffer,
            lambda node: found.append(int(node.buffer.shape[0])) if str(node.buffer.scope()) == "shared" else None,
        ),
    )
    return found


@pytest.mark.parametrize("texel_bytes", [4, 8, 16])
def test_texels_along_memory_are_stored_to_different_banks(texel_bytes: int) -> None:
    """The texels that local memory serves in one cycle are in different banks, for any number of work-items that share
    them.
    """
    together = 128 // texel_bytes
    for steps, texels in itertools.product((2, 4, 8, 16), range(1, 65)):
        pitch = int(padded_texels(texels, texel_bytes, steps))
        assert texels <= pitch < texels + together
        item = np.arange(min(together, steps * texels))
        assert len(np.unique((item % steps * pitch + item // steps) % together)) == len(item), (steps, texels)


# Odd sizes, and padding, which is zero on its way too.
IN_FP16: tuple[tuple[Conv2d | Dense | BatchMatmul, dict[str, int | str]], ...] = (
    (Dense(m=9, k=48, n=19, dtype="float16"), {"local": 4}),
    (Dense(m=21, k=28, n=37, dtype="float16"), {"local": 1, "arrangement": "striped"}),
    (conv(12, (7, 5), 10, (3, 3), padding=(1, 1, 1, 1), dtype="float16"), {"local": 1, "unroll": "iteration"}),
    (conv(45, (7, 5), 10, (3, 3), padding=(1, 1, 1, 1), dtype="float16"), {"local": 4, "vector_width": 2}),
    (matmul((2,), 7, 24, 18, dtype="float16", is_transposed=True), {"local": 2}),
)


def fp16_config(task: TunableTask, target: Target, **knobs: int | str) -> Config:
    places = {knob: "buffer" for knob in ("data", "weight", "output") if knob in task.space(target).knobs}
    defaults = {"tile_o": 2, "tile_w": 3, "wg_o": 2, "wg_w": 4, "local_buffers": 2, "split_k": 1}
    places["accumulate"] = "float16"
    config = direct_config(task, target).replace(**{**defaults, **places, **knobs})
    assert task.space(target).is_valid(config), config
    return config


def held(source: str) -> set[str]:
    """Return the types of registers for loads of the next iteration."""
    return set(re.findall(r"^ *(\w+) \w+_ahead(?:_\d+)+(?:, \w+)*;$", source, re.MULTILINE))


def test_opencl_holds_fp16_as_bits() -> None:
    target = Target("opencl -device=mali_g710")
    for work, knobs in IN_FP16:
        task = task_of(work)
        for accumulate in ("float16", "float32"):
            config = fp16_config(task, target, **{**knobs, "accumulate": accumulate})
            (kernel,) = inspect_function(task.schedule(config, target)["main"], target)
            assert held(kernel.source) == {"uint2"}, (work, accumulate)


def errors(accumulate: str) -> list[float]:
    """Return the error of each kernel of `IN_FP16` on the first OpenCL device."""
    target = Target("opencl -device=mali_g710")
    target = target.limited_to(target.backend.facts(0))
    of_works = []
    for work, knobs in IN_FP16:
        task = task_of(work)
        config = fp16_config(task, target, **{**knobs, "accumulate": accumulate})
        arrays = random_arrays(task, np.random.default_rng(5))
        found = run(task, config, arrays, target, target.backend.device())
        of_works.append(error_of(found, reference(task, arrays)))
    return of_works


def test_numbers_held_as_bits_are_right(opencl_device: tvm.runtime.Device) -> None:
    """They are without fp16 arithmetic, where the bits are converted by a function of every device."""
    assert max(errors("float32")) < 1e-3


def test_numbers_held_as_bits_are_right_on_intel(pytestconfig: pytest.Config) -> None:
    """Intel's OpenCL computes in fp16, unlike PoCL."""
    INTEL.require(pytestconfig)
    code = "import test_double_buffers as t; print(*t.errors('float16'), *t.errors('float32'))"
    path = os.pathsep.join([str(Path(__file__).parent), *map(str, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=INTEL.environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    numbers = np.array(done.stdout.split(), np.float64).reshape(2, len(IN_FP16))
    assert numbers[0].max() < 1e-2
    assert numbers[1].max() < 1e-3
