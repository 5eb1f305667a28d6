"""The lines for configs that spill under Mesa's compilers."""

from __future__ import annotations

from bench_mobile_defaults import spilling_lines


def test_lines_of_spilling_configs_name_the_knobs_that_differ_from_the_default() -> None:
    default = {"tile_w": 4, "unroll": "lanes"}
    spilling = [
        {"place": 0, "registers": 55, "config": default},
        {"place": 7, "registers": 54, "config": {"tile_w": 2, "unroll": "lanes"}},
    ]
    assert list(spilling_lines({"first": 16, "config": default, "spilling": spilling})) == [
        "config 0 of 16 spills, 55 registers: the default config",
        "config 7 of 16 spills, 54 registers: tile_w=2",
    ]
