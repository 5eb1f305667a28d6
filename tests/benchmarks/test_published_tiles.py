"""Tiles that Arm and Alibaba published, as data and against Romou's spaces and defaults."""

from __future__ import annotations

import csv
import re
from collections import Counter

import pytest
from rich.console import Console

import published_tiles
from romou.compiler.tir.primitives import LANES


@pytest.fixture(scope="module")
def lines() -> list[dict[str, str]]:
    with published_tiles.DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_data_has_the_rows_of_the_sources(lines: list[dict[str, str]]) -> None:
    tuned = [line for line in lines if line["source"] == "ComputeLibrary" and line["choice"] != "rule"]
    counts = Counter((line["gpu"], line["kind"], line["dtype"]) for line in tuned)
    assert counts == {
        ("Mali-G710", "two tensors", "float32"): 64,
        ("Mali-G710", "two tensors", "float16"): 64,
        ("Mali-G710", "two tensors", "uint8"): 32,
        ("Mali-G77", "constant weight", "float16"): 82,
        ("Mali-G710", "constant weight", "float16"): 78,
        ("Mali-G78", "constant weight", "float16"): 8,
    }


@pytest.mark.parametrize(("gpu", "images"), [("Mali-G77", 12), ("Mali-G710", 21)])
def test_arm_has_weights_of_some_products_in_images_and_of_one_row_never(
    lines: list[dict[str, str]], gpu: str, images: int
) -> None:
    best = [line for line in lines if line["gpu"] == gpu and line["choice"] == "best" and line["dtype"] == "float16"]
    weights = [line for line in best if line["kind"] == "constant weight"]
    wide = [line["image"] for line in weights if int(line["m"]) > 1 and int(line["n"]) > LANES]
    assert (len(wide), wide.count("1")) == (33, images)
    assert [line["image"] for line in weights if line["m"] == "1"] == ["0"] * 8


@pytest.mark.parametrize("gpu", ["Mali-G77", "Mali-G78", "Mali-G710"])
def test_default_configs_of_one_row_in_fp16_read_weights_from_arms_memory(gpu: str) -> None:
    rows = [row for row in published_tiles.published([gpu]) if row.group.endswith("float16, one row")]
    device = published_tiles.device_of(gpu)
    assert device is not None
    chosen = [published_tiles.memories(row, published_tiles.default_of(row, device)) for row in rows]
    assert chosen == [("buffer", "buffer")] * 8


def test_tiles_of_five_and_six_rows_are_kept() -> None:
    rows = [
        row
        for row in published_tiles.published(["Mali-G710"])
        if not isinstance(row.tile, str) and row.tile.results[1] in (5, 6) and row.tile.results[0] % LANES == 0
    ]
    assert len(rows) == 24
    assert {published_tiles.verdict(row.tile, row.dtype, "mali_g710") for row in rows[::8]} == {"kept"}


def test_the_tables_have_a_line_for_each_group_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for row in published_tiles.published(["Mali-G710"]) if "uint8" in row.group or "one row" in row.group]
    published_tiles.print_rows(rows[-4:] + rows[:2], Console(width=200))
    text = capsys.readouterr().out
    assert re.search(r"Mali-G710, float16, one row +│ +4 │ +0 │ +0 │ +0 │ +- │ +- │ +0 │", text)
    assert re.search(r"Mali-G710, uint8, two tensors +│ +2 │ +0 │ +0 │ +0 │ +- │ +- │ +0 │", text)
    assert re.search(r"Mali-G710, float16, one row +│ +4 │ +0 │ +0 │ +4 │", text)
    assert re.search(r"a work-item has no four neighbouring results +│ +4 │", text)
