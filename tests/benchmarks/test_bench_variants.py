"""benchmarks/bench_variants.py: each variant is a part of the space, with a decent config of its own; the table marks
the fastest.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import bench_variants
from bench_variants import ADRENO, VARIANTS, VariantTask
from support.kernels.operators import conv, task_of

TASK = task_of(conv(16, (14, 14), 32, (3, 3), padding=(1, 1, 1, 1)), has_epilogue=False).with_free_images()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_a_part_of_the_space(variant: str) -> None:
    task, whole = VariantTask.of_task(TASK, variant), TASK.space(ADRENO)
    config = task.default_config(ADRENO)
    assert whole.is_valid(config)
    found = task.space(ADRENO).sample(np.random.default_rng(1), 20)
    assert len(found) == 20
    # As searches draw: from the space of an algorithm.
    found += task.space(ADRENO).sample(np.random.default_rng(2), 20, where={"algorithm": "direct"})
    for one in (config, *found):
        assert whole.is_valid(one)
        is_in_image, is_staged = one["data"] == "image", one["local"] > 0
        if variant != "any":
            assert one["algorithm"] == "direct"
            assert (is_in_image, is_staged) == (variant.startswith("texture"), variant.endswith("tconv"))
            assert one["split_k"] == 1
        if variant.startswith("conv"):
            assert one["vector_width"] == (4 if variant == "conv_simd" else 1)
    # A task goes to other processes as the plain one, which knows all configs.
    assert VariantTask.from_json(task.to_json()).key == TASK.key


def test_the_table_marks_the_fastest_and_says_what_is_not_there() -> None:
    out = io.StringIO()
    rows = {"one": {"conv": (20.0, {}), "conv_simd": (10.0, {}), "tconv": None, "any": (5.0, {})}}
    bench_variants.print_table(rows, "us", "here", Console(file=out, width=150))
    line = next(line for line in out.getvalue().splitlines() if line.startswith("│ one"))
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["one", "20", "10*", "-", "-", "-", "5"]
    assert "2.00x" in out.getvalue()
