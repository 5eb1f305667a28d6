"""Default configs of products on CPUs: register tiles that fit into vector registers."""

from __future__ import annotations

import pytest

from romou.base.space import Config
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Workload
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target

HOST = "opencl -device=host"


def sides(work: Workload, target: str = HOST) -> tuple[int, ...]:
    config: Config = task_of(work).default_config(Target(target))
    return tuple(int(config[knob]) for knob in ("tile_o", "tile_w", "wg_o", "wg_w"))


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Dense(m=128, k=512, n=2048), (2, 4, 1, 8)),
        # Pairs of rows pad least.
        (Dense(m=2, k=512, n=512), (4, 2, 1, 1)),
        (Dense(m=8, k=512, n=512), (2, 4, 1, 2)),
        (conv(256, (28, 28), 256, (1, 1)), (2, 4, 1, 8)),
        (conv(320, (7, 7), 1280, (1, 1)), (4, 2, 1, 2)),
        # 14 tiles of a row are in groups of 4, because 8 pad more.
        (conv(64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1)), (2, 4, 1, 4)),
        # A single row reads whole lines of the weight. Depthwise channels share no data.
        (Dense(m=1, k=512, n=512), (4, 1, 8, 1)),
        (conv(64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1), groups=64), (1, 4, 8, 8)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_tiles_fill_the_vector_registers_without_padding(work: Workload, expected: tuple[int, ...]) -> None:
    assert sides(work) == expected


@pytest.mark.parametrize(("target", "pieces"), [("opencl -device=host", 2), ("vulkan -device=host", 1)])
def test_the_sum_of_a_single_row_has_two_pieces_in_opencl(target: str, pieces: int) -> None:
    assert task_of(Dense(m=1, k=512, n=512)).default_config(Target(target))["split_k"] == pieces


def test_the_choice_of_multiply_adds_is_the_presets_unless_it_is_left_out() -> None:
    task = task_of(Dense(m=128, k=512, n=512))
    assert task.default_config(Target(HOST))["multiply_add"] == "fma"
    assert task.default_config(Target(f"{HOST} -without=multiply_add:fma"))["multiply_add"] != "fma"
    assert task.default_config(Target("opencl -device=adreno640"))["multiply_add"] == "mad"
