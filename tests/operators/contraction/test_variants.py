"""Boda's variants by name: each is a subspace with a valid default, and searches keep to it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import romou
from romou.base.errors import UsageError
from romou.base.space import Config
from romou.base.variants import VARIANTS, Windows
from romou.compiler.operators.families.dense import Dense
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.records import RecordStore
from support.kernels.operators import conv, task_of

TARGETS = [Target(f"opencl -device={name}") for name in ("adreno640", "host")] + [Target("cuda -device=nvidia_h200")]
TASKS: list[TunableTask] = [
    task_of(work, has_epilogue=False).with_free_images()
    for work in (
        conv(16, (14, 14), 32, (3, 3), padding=(1, 1, 1, 1)),
        conv(13, (9, 7), 10, (1, 1)),
        conv(8, (9, 11), 7, (1, 7), dtype="float16"),
        Dense(m=13, k=31, n=37),
    )
]


def keeps_to(config: Config, variant: str) -> bool:
    choices = {"algorithm": ("direct",), **VARIANTS[variant].choices}
    return all(config[name] in choices[name] for name in choices if name in config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_a_part_of_the_space(variant: str) -> None:
    seen = 0
    for target in TARGETS:
        there = target.with_options(variant=variant)
        for task in TASKS:
            whole, part = task.space(target), task.space(there)
            if not task.template.has_variant(there.limits):
                assert part.knobs == task.template.space(replace(there.limits, variant=None)).knobs
                continue
            seen += 1
            starts = task.starts(there)
            assert starts[0] == task.default_config(there)
            drawn = part.sample(np.random.default_rng(1), 20)
            # As searches draw: from the space of an algorithm.
            drawn += part.sample(np.random.default_rng(2), 5, where={"algorithm": "direct"} if part.divided_by else {})
            assert len(drawn) >= 20
            for config in (*starts, *drawn):
                assert part.is_valid(config)
                assert whole.is_valid(config)
                # Only output buffers have a knob that the whole space lacks.
                assert whole.knows(config) == ("store" not in config), "records of a variant count for the whole space"
                assert keeps_to(config, variant), config
    assert seen


def test_windows_say_which_operators_have_a_variant() -> None:
    has = {
        windows: [math.prod(w) if w else 0 for w in ((3, 3), (1, 1), (1, 7), None) if is_of(windows, w)]
        for windows in Windows
    }
    assert has == {Windows.ANY: [9, 1, 7], Windows.POINT: [1], Windows.LARGER: [9, 7], Windows.NONE: [0]}


def is_of(windows: Windows, window: tuple[int, ...] | None) -> bool:
    return next(variant for variant in VARIANTS.values() if variant.windows == windows).is_of(window)


def test_every_candidate_is_of_the_variant_and_right(
    tmp_path: Path, opencl_device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    layer = romou.operators.conv2d(in_channels=13, size=(9, 7), out_channels=10, kernel=1)
    tuned = romou.tune_operator(layer, target="opencl", trials=3, variant="k1conv", work_dir=tmp_path)
    with RecordStore(tmp_path) as store:
        records = [record for record in store if record.task_name.startswith("conv2d")]
    assert len({Config(record.config) for record in records}) == 3
    assert all(keeps_to(Config(record.config), "k1conv") for record in records)
    (row,) = (row for row in tuned.summary().rows if row.name.startswith("conv2d"))
    assert keeps_to(Config(row.config), "k1conv")
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((1, 13, 9, 7), (10, 13, 1, 1)))
    right = np.einsum("nchw,oc->nohw", x.astype("float64"), w[:, :, 0, 0].astype("float64"))
    error = np.linalg.norm(tuned.run({"data": x, "weight": w})[0] - right) / np.linalg.norm(right)
    assert error < 1e-4


def test_a_variant_that_the_operator_lacks_is_refused_with_the_possible_ones() -> None:
    layer = romou.operators.conv2d(in_channels=4, size=5, out_channels=4, kernel=3)
    target = "opencl -device=adreno640"
    expected = "'SGEMM' on opencl -device=adreno640; possible: conv, conv_simd, conv_simd_buffered, tconv, texture,"
    with pytest.raises(UsageError, match=expected):
        romou.compile(layer, target=f"{target} -variant=SGEMM", verify=False)
    with pytest.raises(UsageError, match="unknown variant 'winograd'; known: conv, conv_simd, conv_simd_buffered,"):
        romou.tune_operator(layer, target=target, variant="winograd")
