"""The raw curves that Microsoft's ArchProbe took on a Pixel 4 (Adreno 640), analysed by this package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archprobe.analysis.answer import Answer
from archprobe.errors import ReportError, UsageError
from archprobe.report import original

PIXEL4 = Path(__file__).parent / "data" / "pixel4"


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Answer]]:
    return original.analyse(PIXEL4)


def test_registers_are_181_to_183_in_a_pool(found: dict[str, dict[str, Answer]]) -> None:
    registers = found["RegCount"]
    assert 181 <= registers["RegCount"].number() <= 183
    assert registers["RegType"].value == "Pooled"
    assert registers["FullRegConcurWorkgroupCount"].value == 12
    assert registers["HalfRegConcurWorkgroupCount"].value == 24


def test_texture_cache_is_1_kb_of_32_byte_lines(found: dict[str, dict[str, Answer]]) -> None:
    assert found["ImageCacheHierarchyPChase"]["CachePixelCountLv1"].value == 1024
    assert found["ImageCachelineSize"]["ImgCachelineSize"].value == 32
    assert found["ImageCachelineSize"]["ImgCachelineDim"].value == "X"
    assert found["BufferCachelineSize"]["BufTopLevelCachelineSize"].value == 64


@pytest.mark.parametrize(
    ("aspect", "gbps"),
    [("ImageBandwidth", 194.6), ("BufferBandwidth", 96.3), ("LocalMemBandwidth", 145.8), ("ConstMemBandwidth", 95.3)],
)
def test_bandwidths(found: dict[str, dict[str, Answer]], aspect: str, gbps: float) -> None:
    assert found[aspect]["MaxBandwidth"].number() == pytest.approx(gbps, rel=0.05)


def test_warp_is_64_by_time_and_128_by_order(found: dict[str, dict[str, Answer]]) -> None:
    assert found["WarpSizeMethodB"]["WarpThreadCount"].value == 64
    assert found["WarpSizeMethodA"]["WarpThreadCount"].value == 128
    assert "method B decides" in found["WarpSizeMethodA"]["WarpThreadCount"].notes[0]


def test_peak_is_890_gflops_of_a_scalar_architecture(found: dict[str, dict[str, Answer]]) -> None:
    assert found["Gflops"]["FloatGflops"].number() == pytest.approx(890, rel=0.01)
    assert found["Gflops"]["FloatArch"].value == "SISD"
    assert found["BufferVecWidth"]["BufferVecSize"].value == 4


def test_doubts_name_what_the_original_concludes_from_one_slope(found: dict[str, dict[str, Answer]]) -> None:
    doubts = original.doubts(original.read_report(PIXEL4 / "ArchProbeReport.json"), found)
    text = "\n".join(doubts)
    # Four "levels" within 9% of one another are one slope, and reads of 64 MB at the speed of the first level read no
    # memory.
    assert "BufferCacheHierarchyPChase.CacheVectorCountLv2" in text
    assert "ImageBandwidth.MinBandwidth" in text
    assert "RegCount.RegCount" not in text
    assert "MaxBandwidth" not in text


def test_report_is_read_as_it_stands() -> None:
    report = original.read_report(PIXEL4 / "ArchProbeReport.json")
    assert report["RegCount"]["RegType"] == "Pooled"
    assert set(report) == set(original.KEYS)
    for aspect, keys in report.items():
        assert set(keys) - {"Done"} <= set(original.KEYS[aspect]), aspect


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="does not exist"):
        original.read_report(tmp_path / "no.json")
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(ReportError, match="no ArchProbe report: it must map aspects such as Device"):
        original.read_report(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ReportError, match="is not JSON"):
        original.read_report(tmp_path / "bad.json")
    (tmp_path / "RegCount.csv").write_text("nthread,t (us)\n")
    with pytest.raises(ReportError, match="holds no measurement"):
        original.read_curve(tmp_path / "RegCount.csv")
    (tmp_path / "RegCount.csv").write_text("nthread,t (us)\n1,two\n")
    with pytest.raises(ReportError, match="every row must hold 2 numbers"):
        original.read_curve(tmp_path / "RegCount.csv")
    (tmp_path / "RegCount.csv").write_text("nthread,t (us)\n1,2\n")
    with pytest.raises(ReportError, match="has no column 'ngrp'"):
        original.analyse(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no curve"):
        original.analyse(tmp_path / "empty")


def test_calibration_rows_are_left_out() -> None:
    assert set(original.read_curve(PIXEL4 / "RegCount.csv")["niter"]) == {21539}
    assert json.loads((PIXEL4 / "ArchProbe.json").read_text())["RegCount"]["NRegMax"] == 512
