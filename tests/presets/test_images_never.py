"""`-images=never` only changes where tensors are stored. It changes no tile, tree, vector width or algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from romou import models
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.families.batch_matmul import matmul
from romou.compiler.operators.families.dense import Dense
from romou.devices.targets import Target
from support.kernels.operators import conv, task_of
from support.suite.exhaustive import exhaustive, in_turn

PHONES = ("adreno640", "adreno740", "mali_g76", "mali_g78")
MEMORY = ("data", "weight", "output")
SAME = (1, 1, 1, 1)
WORKS = (
    conv(3, (224, 224), 32, (3, 3), padding=SAME, stride=(2, 2)),
    conv(64, (56, 56), 64, (3, 3), padding=SAME),
    conv(64, (56, 56), 128, (3, 3), "float16", padding=SAME, stride=(2, 2)),
    conv(256, (14, 14), 256, (1, 1)),
    conv(512, (7, 7), 512, (1, 1), "float16"),
    conv(64, (112, 112), 64, (3, 3), padding=SAME, groups=64),
    conv(64, (28, 28), 64, (5, 5), padding=(2, 2, 2, 2)),
    Dense(m=1, k=4096, n=1000),
    Dense(m=512, k=512, n=512),
    matmul((), 64, 64, 64),
)


def without_memory(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in MEMORY}


def test_the_works_have_images_to_lose() -> None:
    target = Target(f"opencl -device={PHONES[0]}")
    assert any("image" in map(str, task_of(w).with_free_images().default_config(target).values()) for w in WORKS)


@in_turn
@pytest.mark.parametrize("device", PHONES)
@pytest.mark.parametrize("kind", ["opencl", "vulkan"])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: f"{work.name}_{work.dtype}")
def test_an_operator_keeps_its_tile_without_images(work: Any, kind: str, device: str) -> None:
    target = Target(f"{kind} -device={device}")
    task = task_of(work).with_free_images()
    images, buffers = task.default_config(target), task.default_config(target.with_options(images="never"))
    assert without_memory(images) == without_memory(buffers)


@exhaustive
@in_turn
@pytest.mark.parametrize("device", ["adreno640", "mali_g76", "mali_g78"])
@pytest.mark.parametrize("network", ["squeezenet1_0", "mobilenet_v2"])
def test_a_network_keeps_its_tiles_without_images(network: str, device: str) -> None:
    target = Target(f"opencl -device={device}")
    never = target.with_options(images="never")
    pairs = [
        [
            without_memory(task.default_config(each))
            for task in Compilation.of(import_model(models.load(network), None), each).lowered().tasks
        ]
        for each in (target, never)
    ]
    assert len(pairs[0]) > 20
    assert pairs[0] == pairs[1]
