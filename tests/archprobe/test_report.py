"""The report: a saved one is read back, follows the shipped schema, and a wrong file gets a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.curve import Curve, Findings, not_applicable
from archprobe.errors import ReportError
from archprobe.report import document
from archprobe.report.document import Report, load_report
from archprobe.report.original import read_report
from romou.base.errors import UsageError
from romou.devices.hardware import load_spec

PIXEL4 = Path(__file__).parent / "data" / "pixel4"
DRIVER = {
    "name": "A GPU",
    "vendor": "V",
    "driver": "1.2",
    "platform": "P",
    "version": "OpenCL 3.0",
    "is_cpu": False,
    "extensions": ["cl_khr_fp16"],
}


def a_report(**header: Any) -> Report:
    curve = Curve(name="times", x_label="n", y_label="ns", x=(1, 2, 3), y=(1.0, 2.0, 3.0)).marked(
        {"WarpThreadCount": answered(2, "work-items", 0.9, "r")}
    )
    size = answered(32, "work-items", 0.97, "stairs", low=32, high=32, notes=("a note",))
    warp = Findings(answers={"WarpThreadCount": size}, curves=(curve,), method="m", seconds=1.5)
    cache = Findings(
        answers={
            "CacheVectorCountLv1": declined("bytes", "noise"),
            "LatencyLv1": answered(20.5, "ns", 0.99, "flat", low=20.0, high=21.0),
        }
    )
    count = answered(100, "32-bit registers", 0.9, "line", low=98, high=101)
    words = Findings(answers={"RegType": answered("Pooled", "word", 0.9, "ratio"), "RegCount": count})
    full = {
        "Format": 1,
        "Version": "0.1.0",
        "Date": "2026-01-01",
        "IsQuick": True,
        "IsComplete": True,
        "Driver": DRIVER,
        "Software": {"numpy": "2"},
    }
    aspects = {
        "WarpSizeMethodB": warp,
        "BufferCacheHierarchyPChase": cache,
        "RegCount": words,
        "ImageBandwidth": not_applicable("no images"),
    }
    return Report(header={**full, **header}, aspects=aspects)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "a_gpu.json"
    a_report().save(target)
    return target


def test_report_is_read_back(path: Path) -> None:
    assert load_report(path).to_dict() == a_report().to_dict()
    jsonschema.Draft202012Validator.check_schema(document.schema())


def test_keys_stand_as_in_the_original(path: Path) -> None:
    data = read_report(path)
    assert data["WarpSizeMethodB"]["WarpThreadCount"] == 32
    assert data["WarpSizeMethodB"]["Done"] is True
    # Undecided: no key, but the reason in the details. Not applicable: not done.
    assert "CacheVectorCountLv1" not in data["BufferCacheHierarchyPChase"]
    assert data["BufferCacheHierarchyPChase"]["Details"]["Answers"]["CacheVectorCountLv1"]["reason"] == "noise"
    assert data["ImageBandwidth"]["Done"] is False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("ArchProbe"), "has no 'ArchProbe' header"),
        (lambda d: d["ArchProbe"].update(Format=2), "is of format 2; this version reads format 1"),
        (lambda d: d["ArchProbe"].pop("Date"), "'Date' is a required property"),
        (lambda d: d["RegCount"].pop("Details"), "RegCount: 'Details' is a required property"),
        (lambda d: d["RegCount"]["Details"].update(State="fine"), "State: 'fine' is not one of"),
        (
            lambda d: d["RegCount"]["Details"]["Answers"]["RegCount"].update(confidence=2),
            "confidence: 2 is greater than the maximum of 1",
        ),
        (lambda d: d["RegCount"]["Details"]["Answers"]["RegCount"].update(value=None), "has confidence 0 and no other"),
    ],
)
def test_what_is_wrong_is_named(path: Path, change: Any, message: str) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ReportError, match=message):
        load_report(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="does not exist"):
        load_report(tmp_path / "no.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ReportError, match="is not JSON"):
        load_report(tmp_path / "bad.json")


def test_a_report_is_a_device_of_romou(path: Path) -> None:
    spec = load_spec(path)
    assert (spec.name, spec.title) == ("a_gpu", "A GPU")
    assert spec.warp_sizes == (32,)
    assert spec.register_file == "pooled"
    assert spec.registers_per_lane == 100
    assert spec.has_half_arithmetic is True
    # Undecided and not applicable: not known.
    assert spec.l2_cache_bytes is None
    assert spec.l1_texture_bandwidth_gbps is None
    assert "archprobe 0.1.0" in spec.source_of("registers_per_lane")


def test_a_report_of_microsofts_is_a_device_of_romou() -> None:
    spec = load_spec(PIXEL4 / "ArchProbeReport.json")
    assert spec.registers_per_core == 384 * 183
    assert spec.warp_sizes == (64, 128)
    assert spec.l1_texture_cache_bytes == 1024
    assert spec.l2_cache_bytes == 128 * 1024
    assert spec.fp32_peak_gflops == pytest.approx(890, rel=0.01)


def test_other_json_is_no_device(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"name": "x"}')
    with pytest.raises(UsageError, match="missing key"):
        load_spec(tmp_path / "x.json")


def test_answers_cannot_contradict_themselves() -> None:
    with pytest.raises(ValueError, match="confidence 0 and no other"):
        Answer(value=None, unit="ns", confidence=0.5, reason="r")
    with pytest.raises(ValueError, match="0 to 1"):
        Answer(value=1, unit="ns", confidence=1.5, reason="r")
    with pytest.raises(ValueError, match="says how it was found"):
        Answer(value=1, unit="ns", confidence=0.5, reason="")
    with pytest.raises(ValueError, match="no number here"):
        declined("ns", "noise").number()
    with pytest.raises(ValueError, match="no interval here"):
        answered("word", "word", 0.5, "r").interval  # noqa: B018
    with pytest.raises(ValueError, match="says why"):
        Findings(state="failed")
    with pytest.raises(ValueError, match="2 positions but 1 values"):
        Curve(name="c", x_label="", y_label="", x=(1, 2), y=(1,))
