"""Ten kernels as they read today, each checked for its numbers. What changes a text is seen in review.

    pytest tests/golden --update-golden         after a change that is meant
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from operators import conv, error_of, random_arrays, reference, run, task_of
from romou.schedules.workload import Conv2d, Dense

from romou.build import build_task
from romou.space import Config
from romou.target import Target

TARGET = Target("opencl -device=adreno640 -half=storage")
IMAGES = {"data": "image", "weight": "image", "output": "image", "pixels": "rows"}
BUFFERS = {"data": "buffer", "weight": "buffer", "output": "buffer"}
TILES = {"tile_o": 1, "tile_h": 1, "tile_w": 4, "wg_o": 4, "wg_w": 4, "split_k": 1, "local": 0, "unroll": "lanes", "vector_width": 4}
SPELLING = {"accumulate": "float32", "autobroadcast": True, "multiply_add": "mad"}

KERNELS: dict[str, tuple[Conv2d | Dense, dict[str, Any]]] = {
    "conv1x1_images": (conv(64, (28, 28), 128, (1, 1)), IMAGES | {"tile_o": 2}),
    "conv3x3_images": (conv(32, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)), IMAGES),
    "conv3x3_images_half": (conv(32, (28, 28), 64, (3, 3), "float16", padding=(1, 1, 1, 1)), IMAGES),
    "conv3x3_buffers": (conv(32, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)), BUFFERS | {"pixels": "rows"}),
    "conv3x3_buffers_half": (conv(32, (28, 28), 64, (3, 3), "float16", padding=(1, 1, 1, 1)), BUFFERS | {"pixels": "flat"}),
    "conv3x3_local_memory": (conv(32, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1)), BUFFERS | {"pixels": "rows", "local": 1, "multiply_add": "fma"}),
    "conv7x1_prime": (conv(31, (17, 17), 37, (7, 1), padding=(3, 0, 3, 0)), IMAGES | {"autobroadcast": False}),
    "conv7x7_first_layer": (conv(3, (56, 56), 32, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3)), IMAGES | {"data": "buffer"}),
    "depthwise3x3_images": (conv(32, (28, 28), 32, (3, 3), padding=(1, 1, 1, 1), groups=32), IMAGES | {"autobroadcast": False}),
    "dense_split": (Dense(m=1, k=256, n=100, dtype="float32"), BUFFERS | {"weight": "image", "tile_w": 1, "wg_w": 1, "split_k": 4}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str, opencl_device: tvm.runtime.Device, request: pytest.FixtureRequest) -> None:
    work, choices = KERNELS[name]
    task = task_of(work).with_free_images()
    knobs = task.space(TARGET).knobs
    config = Config({knob: value for knob, value in (TILES | SPELLING | choices).items() if knob in knobs})
    assert task.space(TARGET).is_valid(config)
    arrays = random_arrays(task, np.random.default_rng(11))
    assert error_of(run(task, config, arrays, TARGET, opencl_device), reference(task, arrays)) < (1e-5 if work.dtype == "float32" else 1e-3)

    source = build_task(task, config, TARGET).imports[0].inspect_source()
    golden = Path(__file__).parent / f"{name}.cl"
    if request.config.getoption("--update-golden"):
        golden.write_text(source, encoding="utf-8")
    assert golden.is_file(), "run pytest tests/golden --update-golden and read what it wrote"
    assert source == golden.read_text(encoding="utf-8"), f"{golden.name} reads otherwise now; if that is meant: pytest tests/golden --update-golden"


def test_each_golden_kernel_is_tested() -> None:
    assert {p.stem for p in Path(__file__).parent.glob("*.cl")} == set(KERNELS)
