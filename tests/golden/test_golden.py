"""Kernels as they read today, each checked for its numbers when it was written. What changes a text is seen in review.

pytest tests/golden --update-golden         after a change that is meant
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.families.batch_matmul import BatchMatmul
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels.emulated_matrices import emulated_error
from support.kernels.operators import assert_agrees, conv, kind_id, matmul, random_arrays, reference, target_of, task_of
from support.suite.exhaustive import exhaustive

# Suffix of the golden files -> target.
TARGETS = {
    "cl": Target("opencl -device=adreno640 -half=storage"),
    "cu": target_of("cuda"),
    "comp": Target("vulkan -device=nvidia_h200"),
}
TENSOR_CORES = ("mma", "tf32", "coopmat")
IMAGES = {"data": "image", "weight": "image", "output": "image", "pixels": "rows"}
BUFFERS = {"data": "buffer", "weight": "buffer", "output": "buffer"}
TILES = {
    "tile_o": 1,
    "tile_h": 1,
    "tile_w": 4,
    "wg_o": 4,
    "wg_w": 4,
    "split_k": 1,
    "arrangement": "blocked",
    "local": 0,
    "unroll": "lanes",
    "vector_width": 4,
    "steps": 1,
    "local_buffers": 1,
}
SPELLING = {"algorithm": "direct", "accumulate": "float32", "autobroadcast": True, "multiply_add": "mad"}

KERNELS: dict[str, tuple[Conv2d | Dense | BatchMatmul, dict[str, Any]]] = {
    "conv1x1_images": (conv(64, (28, 28), 128, (1, 1)), IMAGES | {"tile_o": 2}),
    "conv3x3_images": (conv(32, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)), IMAGES),
    "conv3x3_images_half": (conv(32, (28, 28), 64, (3, 3), "float16", padding=(1, 1, 1, 1)), IMAGES),
    "conv3x3_buffers": (conv(32, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)), BUFFERS | {"pixels": "rows"}),
    "conv3x3_buffers_half": (
        conv(32, (28, 28), 64, (3, 3), "float16", padding=(1, 1, 1, 1)),
        BUFFERS | {"pixels": "flat"},
    ),
    "conv3x3_tensor_cores": (
        conv(32, (28, 28), 64, (3, 3), "float16", padding=(1, 1, 1, 1)),
        BUFFERS | {"pixels": "flat", "multiply_add": "mma", "tile_o": 2, "wg_o": 8, "wg_w": 8},
    ),
    "conv3x3_matrices": (
        conv(32, (28, 28), 64, (3, 3), "float16", padding=(1, 1, 1, 1)),
        BUFFERS | {"pixels": "flat", "multiply_add": "coopmat", "wg_o": 8, "wg_w": 8},
    ),
    "conv3x3_tensor_cores_staged": (
        conv(16, (6, 6), 32, (3, 3), "float16", padding=(1, 1, 1, 1)),
        BUFFERS | {"pixels": "flat", "multiply_add": "mma", "tile_w": 2, "wg_o": 8, "local": 4, "steps": 2},
    ),
    "dense_tf32": (
        Dense(m=16, k=64, n=50, dtype="float32"),
        BUFFERS | {"multiply_add": "tf32", "tile_w": 2, "wg_o": 8},
    ),
    "conv3x3_winograd2": (
        conv(32, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1)),
        BUFFERS | {"pixels": "rows", "algorithm": "winograd2"},
    ),
    "conv5x5_winograd2": (
        conv(8, (9, 9), 12, (5, 5), padding=(2, 2, 2, 2)),
        BUFFERS | {"pixels": "rows", "algorithm": "winograd2"},
    ),
    "conv3x3_local_memory": (
        conv(32, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1)),
        BUFFERS | {"pixels": "rows", "local": 1, "multiply_add": "fma"},
    ),
    "conv1x1_striped": (
        conv(32, (14, 14), 64, (1, 1)),
        BUFFERS | {"pixels": "flat", "tile_o": 2, "arrangement": "striped", "local": 2},
    ),
    "conv7x1_prime": (conv(31, (17, 17), 37, (7, 1), padding=(3, 0, 3, 0)), IMAGES | {"autobroadcast": False}),
    "conv7x7_first_layer": (
        conv(3, (56, 56), 32, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
        IMAGES | {"data": "buffer"},
    ),
    "depthwise3x3_images": (
        conv(32, (28, 28), 32, (3, 3), padding=(1, 1, 1, 1), groups=32),
        IMAGES | {"autobroadcast": False},
    ),
    "dense_split": (
        Dense(m=1, k=256, n=100, dtype="float32"),
        BUFFERS | {"weight": "image", "tile_w": 1, "wg_w": 1, "split_k": 4},
    ),
    "dense_double_buffered": (
        Dense(m=33, k=48, n=64, dtype="float32"),
        BUFFERS | {"tile_o": 2, "arrangement": "striped", "local": 4, "local_buffers": 2},
    ),
    "matmul_transposed_local_memory": (
        matmul((2,), 64, 32, 64, is_transposed=True),
        BUFFERS | {"local": 2, "vector_width": 1, "autobroadcast": False},
    ),
}


# CUDA has no images, and only CUDA has tensor cores.
CASES = [(name, "cl") for name, (_, choices) in KERNELS.items() if choices.get("multiply_add") not in TENSOR_CORES]
# Vulkan writes the same kernels as OpenCL, except for those with cooperative matrices.
MATRICES = [name for name, (_, choices) in KERNELS.items() if choices.get("multiply_add") == "coopmat"]
CASES += [
    (name, "cu")
    for name, (_, choices) in KERNELS.items()
    if choices["data"] == "buffer" == choices["output"] and name not in MATRICES
]
CASES += [(name, "comp") for name in MATRICES]


def case_id(name: str, suffix: str) -> str:
    return f"{name}-{kind_id(TARGETS[suffix].kind)}"


def made(name: str, suffix: str) -> tuple[TunableTask, Config, Target]:
    (work, choices), target = KERNELS[name], TARGETS[suffix]
    if choices.get("multiply_add") == "tf32":
        target = target.with_options(tf32="allow")
    task = task_of(work).with_free_images()
    knobs = task.space(target).knobs
    wanted = {knob: value for knob, value in (TILES | SPELLING | choices).items() if knob in knobs}
    config = Config(
        {knob: value if value in knobs[knob] else knobs[knob][0] for knob, value in wanted.items()}
        if suffix == "cu"
        else wanted
    )
    assert task.space(target).is_valid(config)
    return task, config, target


def check_numbers(task: TunableTask, config: Config, target: Target) -> None:
    arrays = random_arrays(task, np.random.default_rng(11))
    if "coopmat" in config.values():
        assert emulated_error(task, config, target) < 1e-3
        return
    is_single = str(task.func.params[0].dtype) == "float32" and task.precision(config) is None
    assert_agrees(target, task, config, arrays, reference(task, arrays), 1e-5 if is_single else 1e-3)


@pytest.mark.parametrize(("name", "suffix"), [pytest.param(*case, id=case_id(*case)) for case in CASES])
def test_kernel(name: str, suffix: str, request: pytest.FixtureRequest) -> None:
    task, config, target = made(name, suffix)
    source = build_task(task, config, target).imports[0].inspect_source()
    if suffix == "cu":
        # Without the text that TVM puts before every module.
        source = source[source.index('extern "C"') :]
    golden = Path(__file__).parent / f"{name}.{suffix}"
    if request.config.getoption("--update-golden"):
        check_numbers(task, config, target)
        golden.write_text(source, encoding="utf-8")
    assert golden.is_file(), "run pytest tests/golden --update-golden and read what it wrote"
    assert source == golden.read_text(encoding="utf-8"), (
        f"{golden.name} reads otherwise now; if that is meant: pytest tests/golden --update-golden"
    )


# The text of each was checked when it was written, so a few do.
SAMPLE = ("conv3x3_buffers_half", "conv3x3_winograd2", "dense_double_buffered")


@pytest.mark.parametrize(
    ("name", "suffix"),
    [pytest.param(*case, id=case_id(*case), marks=() if case[0] in SAMPLE else exhaustive) for case in CASES],
)
def test_numbers(name: str, suffix: str) -> None:
    check_numbers(*made(name, suffix))


def test_each_golden_kernel_is_tested() -> None:
    assert {p.name for p in Path(__file__).parent.glob("*.c*")} == {f"{name}.{suffix}" for name, suffix in CASES}
