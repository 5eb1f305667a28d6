"""Conclusions from several numbers of a report: of made-up chips, of a real Pixel 4, and not of unfinished reports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from archprobe.analysis.answer import Answer
from archprobe.analysis.conclusions import conclusions
from archprobe.cli import app
from archprobe.plots import overview
from archprobe.report.convert import converted
from archprobe.report.document import Report, load_report

KB = 1024
REGISTERS = {
    "RegCount.RegType": "Pooled",
    "RegCount.FullRegConcurWorkgroupCount": 12,
    "Device.SmCount": 2,
    "WarpSizeMethodB.WarpThreadCount": 64,
    "Gflops.FloatGflops": 890.0,
}


def concluded(numbers: Mapping[str, Any], *, is_cpu: bool = False) -> Mapping[str, Answer]:
    return conclusions(numbers.get, is_cpu=is_cpu)


BUFFERS, IMAGES = "BufferCacheHierarchyPChase.CacheVectorCountLv", "ImageCacheHierarchyPChase.CachePixelCountLv"


def test_two_levels_behind_buffers_are_the_first_and_the_last() -> None:
    found = concluded({f"{BUFFERS}1": 16 * KB, f"{BUFFERS}2": 18 * KB, f"{BUFFERS}3": 256 * KB, f"{IMAGES}1": 8 * KB})
    assert (found["BufferCacheSizeLv1"].value, found["CacheSizeLv2"].value) == (16 * KB, 256 * KB)


def test_a_large_first_level_is_passed_by_only_if_something_else_says_so() -> None:
    numbers = {f"{BUFFERS}1": 120 * KB, f"{IMAGES}1": KB}
    assert "BufferCacheSizeLv1" not in concluded(numbers)
    sure = [
        concluded({**numbers, **more})["BufferCacheSizeLv1"]
        for more in (
            {"Device.CacheSize": 128 * KB},
            {"Device.CacheSize": 128 * KB, f"{IMAGES}2": 130 * KB},
            {
                "Device.CacheSize": 128 * KB,
                f"{IMAGES}2": 130 * KB,
                "ImageBandwidth.MaxBandwidth": 190.0,
                "BufferBandwidth.MaxBandwidth": 96.0,
            },
        )
    ]
    assert [one.value for one in sure] == [0, 0, 0]
    assert sure[0].confidence < sure[1].confidence < sure[2].confidence < 1


def test_rates_within_the_noise_are_no_witness() -> None:
    numbers = {f"{BUFFERS}1": 120 * KB, f"{IMAGES}1": KB}
    noisy = {"ImageBandwidth.MaxBandwidth": 100.0, "BufferBandwidth.MaxBandwidth": 96.0}
    assert "BufferCacheSizeLv1" not in concluded(numbers | noisy)


def test_the_only_level_of_a_cpu_is_no_last_one() -> None:
    found = concluded({f"{BUFFERS}1": 48 * KB, "Device.CacheSize": 32 << 20, f"{IMAGES}1": KB}, is_cpu=True)
    assert (found["BufferCacheSizeLv1"].value, found["CacheSizeLv2"].value) == (48 * KB, 32 << 20)


def test_alus_need_no_clock() -> None:
    found = concluded(REGISTERS)
    assert (found["AluCount"].value, found["ClockFrequency"].value) == (384, 579)
    by_order = concluded({**REGISTERS, "RunningOrder.ParallelWorkItems": 256})
    assert by_order["AluCount"].value == 256
    assert by_order["AluCount"].confidence > found["AluCount"].confidence
    by_clock = concluded({"Device.ClockFrequency": 585, "Device.SmCount": 2, "Gflops.FloatGflops": 890.0})
    assert by_clock["AluCount"].value == 380
    assert "AluCount" not in concluded({**REGISTERS, "RegCount.RegType": "Dedicated"})


@pytest.mark.parametrize(
    ("clock", "share", "alus", "confidence"),
    [(585, 0.99, 384, 0.95), (1000, 0.579, 222, 0.8), (None, None, 384, 0.7)],
    ids=["agrees", "contradicts", "no clock"],
)
def test_alus_and_clock_are_checked_against_the_peak(
    clock: int | None, share: float | None, alus: int, confidence: float
) -> None:
    """The paper's third check (section 6), with the numbers of a Pixel 4: 384 ALUs, 2 cores, 890 GFLOPS."""
    found = concluded({**REGISTERS, "Device.ClockFrequency": clock})
    checked = found.get("PeakOfAlus")
    assert (checked.value if checked else None) == share
    assert (found["AluCount"].value, found["AluCount"].confidence) == (alus, confidence)
    if clock == 1000:
        assert checked
        assert "they contradict each other" in checked.reason
        by_order = concluded({**REGISTERS, "Device.ClockFrequency": clock, "RunningOrder.ParallelWorkItems": 384})
        assert (by_order["AluCount"].value, by_order["AluCount"].confidence) == (384, 0.5)


@pytest.fixture
def pixel4() -> Report:
    return converted(Path(__file__).parent / "data" / "pixel4", "pixel4")


def test_conclusions_are_in_the_report_the_table_and_figure_9(pixel4: Report, tmp_path: Path) -> None:
    path = tmp_path / "pixel4.json"
    pixel4.save(path)
    stated = json.loads(path.read_text())["Conclusions"]
    assert (stated["AluCount"], stated["BufferCacheSizeLv1"], stated["RegisterPool"]) == (384, 0, 384 * 182)
    shown = CliRunner().invoke(app, ["show", str(path)], env={"COLUMNS": "200"}).output
    assert re.search(r"Conclusions\s", shown)
    assert re.search(r"AluCount\W+384 count", shown)
    texts = " ".join(text.get_text() for text in overview.draw(load_report(path)).axes[0].texts)
    for part in ("384 ALUs", "pool of 69888 a core", "buffers: no level 1", "level 2: 128 KB"):
        assert part in texts
    assert "? ALUs" not in texts
    assert "124 KB" not in texts


def test_nothing_is_concluded_of_an_unfinished_report(pixel4: Report) -> None:
    header = {**pixel4.header, "IsComplete": False}
    aspects = {name: findings for name, findings in pixel4.aspects.items() if name != "Conclusions"}
    begun = Report(header=header, aspects=aspects)
    assert "Conclusions" not in begun.to_dict()
    assert "Conclusions" in begun.finished().to_dict()


def test_a_report_that_compared_both_spellings_is_not_overruled() -> None:
    assert concluded({"Gflops.FloatArch": "SISD"})["ScalarBroadcast"].value is True
    assert "ScalarBroadcast" not in concluded({"Gflops.FloatArch": "SISD", "Gflops.Autobroadcast": True})
    assert "ScalarBroadcast" not in concluded({"Gflops.FloatArch": "SIMD"})
    assert "ScalarBroadcast" not in concluded({"Gflops.FloatArch": "SISD", "Gflops.BroadcastPays": False})


def test_memory_at_the_rate_of_dram_is_in_dram() -> None:
    rates = {"BufferBandwidth.DramBandwidth": 11.0, "LocalMemBandwidth.MaxBandwidth": 11.5}
    assert concluded(rates)["LocalMemPlace"].value == "dram"
    assert concluded({**rates, "LocalMemBandwidth.MaxBandwidth": 79.0})["LocalMemPlace"].value == "on_chip"
