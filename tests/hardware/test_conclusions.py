"""Facts that ArchProbe's reports do not state but settle: of a real Pixel 4 (Adreno 640), and of made-up chips."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archprobe.report.convert import converted
from romou.base.errors import UsageError
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.hardware import archprobe_report, load_device, load_spec
from romou.devices.hardware.similar import filled, nearest_of
from romou.devices.hardware.spec import SCHEMA, HardwareSpec, spec_from_dict
from romou.devices.targets import Target
from romou.tuner.pruning import pruned_space

PIXEL4 = Path(__file__).parents[1] / "archprobe/data/pixel4"
BY_HAND = "adreno640"
REPORTS = ("pixel4_microsoft", "pixel4_own")
KB = 1024


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write two device files of a Pixel 4: Microsoft's report, and ours of the same curves."""
    shutil.copy(PIXEL4 / "ArchProbeReport.json", tmp_path / "pixel4_microsoft.json")
    converted(PIXEL4, "pixel4_own").save(tmp_path / "pixel4_own.json")
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))


def operators() -> list[TunableTask]:
    works = [
        conv(256, (14, 14), 256, (1, 1)),
        conv(64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1)),
        conv(32, (113, 113), 32, (3, 3), groups=32, padding=(1, 1, 1, 1)),
    ]
    return [task_of(work).with_free_images() for work in works]


@pytest.mark.parametrize("name", REPORTS)
def test_a_phones_report_leads_to_texture_kernels(reports: None, name: str) -> None:
    """Images, criteria, default configs and kept configs are the same as with the hand-written file."""
    by_hand, measured = Target(f"opencl -device={BY_HAND}"), Target(f"opencl -device={name}")
    assert measured.limits.prefers_images
    for task in operators():
        configs = [dict(task.default_config(target)) for target in (measured, by_hand)]
        # 183 registers instead of 181 have room for a column more.
        assert abs(int(configs[0].pop("tile_w")) - int(configs[1].pop("tile_w"))) <= 1
        # So its group may have other sides, and twice the work-items.
        small, large = sorted(int(config.pop("wg_w")) * int(config.pop("wg_h", 1)) for config in configs)
        assert large <= 2 * small
        assert configs[0] == configs[1]
        spaces = [pruned_space(task, target) for target in (by_hand, measured)]
        judged = [{count.criterion for count in space.report.criteria} for space in spaces]
        assert judged[0] == judged[1]
        for one, other in (spaces, reversed(spaces)):
            drawn = one.sample(np.random.default_rng(7), 300)
            kept = sum(other.knows(config) and bool(other.is_valid(config)) for config in drawn)
            # The criterion "estimate" cuts at twice the default config's time, where many configs lie.
            assert kept >= 0.7 * len(drawn), (task.name, kept, len(drawn))


@pytest.mark.parametrize("name", REPORTS)
def test_conclusions_agree_with_the_paper(reports: None, name: str) -> None:
    found, paper = load_device(name), load_device(BY_HAND)
    for fact in (
        *(
            "l1_buffer_cache_bytes",
            "l1_texture_cache_bytes",
            "l1_texture_line_bytes",
            "l2_cache_bytes",
            "l2_line_bytes",
        ),
        *("alus_per_core", "warp_sizes", "register_file", "register_lanes_per_core", "shader_cores"),
        *("has_scalar_vector_broadcast", "has_half_arithmetic", "fp16_rate", "local_mem_place", "constant_mem_place"),
    ):
        assert getattr(found, fact) == getattr(paper, fact), fact
    assert found.clock_mhz == pytest.approx(paper.clock_mhz, rel=0.02)
    assert "concluded (" in found.source_of("l1_buffer_cache_bytes")
    assert "serves images only" in found.source_of("l1_buffer_cache_bytes")


@pytest.mark.parametrize("does_pay", [True, False, None])
def test_a_report_states_whether_autobroadcast_pays(does_pay: bool | None) -> None:
    gflops = {"Done": True, "FloatArch": "SISD", "Autobroadcast": True, "BroadcastPays": does_pay}
    report = {"RegCount": {}, "Gflops": gflops}
    _, facts = archprobe_report.facts_of(report, SCHEMA)
    assert facts["has_scalar_vector_broadcast"]["value"] is does_pay


def test_what_a_report_does_not_hold_comes_from_the_nearest_of_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run of a few probes, of a phone that no file describes."""
    report = json.loads((PIXEL4 / "ArchProbeReport.json").read_text())
    for aspect in ("LocalMemBandwidth", "ConstMemBandwidth", "Gflops"):
        del report[aspect]
    (tmp_path / "partial.json").write_text(json.dumps(report))
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))
    with caplog.at_level(logging.WARNING, "romou"):
        spec, _ = load_device("partial"), load_device("partial")
    assert (spec.family, spec.is_mobile) == ("adreno", True)
    assert spec.local_mem_bandwidth_gbps == load_device(BY_HAND).local_mem_bandwidth_gbps
    assert spec.source_of("local_mem_bandwidth_gbps").startswith(f"{BY_HAND}, the nearest GPU that has it: ")
    # Limits of another device would be guesses that fail.
    assert spec.max_image_layers is None
    (said,) = (record.getMessage() for record in caplog.records)
    assert "local_mem_bandwidth_gbps" in said
    assert "from Qualcomm Adreno 640 (Snapdragon 855, Pixel 4 XL) (16 of 16 numbers agree)" in said


def a_spec(name: str, **facts: Any) -> HardwareSpec:
    return HardwareSpec(name=name, title=name.upper(), sources=dict.fromkeys(facts, "measured"), **facts)


def test_the_nearest_device_is_the_one_with_most_numbers_that_agree() -> None:
    """Few numbers that agree to the last digit are no nearer device than many that agree within the noise."""
    few = {"shader_cores": 2, "registers_per_lane": 96, "max_work_group_size": 1024, "l2_line_bytes": 64}
    more = {"l2_cache_bytes": 131072, "dram_bandwidth_gbps": 30.0, "fp32_peak_gflops": 890.0, "clock_mhz": 585}
    measured = a_spec("phone", **few, **more)
    barely_known = a_spec("barely_known", **few, l2_bandwidth_gbps=1.0, local_mem_bandwidth_gbps=7.0)
    true = a_spec("true", **few, **{**more, "clock_mhz": 590, "dram_bandwidth_gbps": 28.0}, l2_bandwidth_gbps=96.0)
    stranger = a_spec("stranger", **few, **{key: 3 * value for key, value in more.items()}, fp16_rate=2)
    ranked = nearest_of(measured, [stranger, barely_known, true])
    assert [(other.name, agreeing, common) for other, agreeing, common in ranked] == [
        ("true", 8, 8),
        ("barely_known", 4, 4),
    ]
    complete = filled(measured, [stranger, barely_known, true], "a report")
    # Several neighbours are asked, each for what the nearer ones do not know.
    assert (complete.l2_bandwidth_gbps, complete.local_mem_bandwidth_gbps, complete.fp16_rate) == (96.0, 7.0, None)
    assert complete.source_of("local_mem_bandwidth_gbps") == "barely_known, the nearest GPU that has it: measured"


def test_what_was_filled_in_from_where_is_said(caplog: pytest.LogCaptureFixture) -> None:
    few = {"shader_cores": 2, "registers_per_lane": 96, "max_work_group_size": 1024, "l2_line_bytes": 64}
    others = [a_spec("one", **few, clock_mhz=500, l2_cache_bytes=1024), a_spec("two", **few, fp32_peak_gflops=890.0)]
    with caplog.at_level(logging.WARNING, "romou"):
        filled(a_spec("phone", **few, clock_mhz=500), others, "phone.json")
    (said,) = (record.getMessage() for record in caplog.records)
    one, two = "l2_cache_bytes from ONE (5 of 5 numbers agree)", "fp32_peak_gflops from TWO (4 of 4 numbers agree)"
    assert said.endswith(f"the nearest devices of its family: {one}; {two}")


def test_a_pixel_4_with_gaps_is_nearest_to_its_own_gpu(tmp_path: Path) -> None:
    """Without caches and bandwidths, too."""
    report = json.loads((PIXEL4 / "ArchProbeReport.json").read_text())
    aspects = [name for name in report if name not in ("Device", "RegCount", "WarpSizeMethodB")]
    for left_out in (aspects[:3], aspects[3:6], aspects[6:9], aspects[:6], aspects[4:]):
        path = tmp_path / f"without_{left_out[0]}_{len(left_out)}.json"
        path.write_text(json.dumps({name: section for name, section in report.items() if name not in left_out}))
        sources = load_spec(path).sources
        assert sources["is_mobile"].startswith(f"{BY_HAND}, the nearest GPU that has it"), left_out


def test_an_unfinished_report_is_no_device(tmp_path: Path) -> None:
    whole = converted(PIXEL4, "phone")
    cut = dataclasses.replace(whole, header={**whole.header, "IsComplete": False})
    cut.save(tmp_path / "phone.json")
    with pytest.raises(
        UsageError, match="is an unfinished report of ArchProbe, whose numbers no second run"
    ) as refused:
        load_spec(tmp_path / "phone.json")
    assert "phone.json" in str(refused.value)
    assert "archprobe run" in str(refused.value.hint)
    # Microsoft's tool writes what it has so far: such an aspect states nothing.
    report = json.loads((PIXEL4 / "ArchProbeReport.json").read_text())
    report["RegCount"]["Done"] = False
    assert archprobe_report.facts_of(report, SCHEMA)[1]["registers_per_lane"]["value"] is None


@pytest.mark.parametrize(
    ("driver", "warp", "family"),
    [
        ({"vendor": "QUALCOMM", "name": "QUALCOMM Adreno(TM)"}, 64, "adreno"),
        ({"vendor": "ARM", "name": "Mali-G999"}, 16, "mali_valhall"),
        ({"vendor": "ARM", "name": "Mali-G99"}, 8, "mali_bifrost"),
        ({"vendor": "NVIDIA Corporation", "name": "NVIDIA X"}, 32, None),
    ],
)
def test_the_family_of_an_unknown_device(driver: dict[str, str], warp: int, family: str | None) -> None:
    report = {"ArchProbe": {"Driver": driver}, "WarpSizeMethodB": {"Done": True, "WarpThreadCount": warp}}
    assert archprobe_report.family_of(report).get("family") == family


def test_measured_intervals_are_kept(reports: None) -> None:
    spec = load_device("pixel4_own")
    low, high = spec.ranges["l1_texture_bandwidth_gbps"]
    assert low <= (spec.l1_texture_bandwidth_gbps or 0) <= high
    assert spec.interval("l1_texture_bandwidth_gbps") == (low, high)
    assert spec.interval("clock_mhz") == pytest.approx((550.05, 607.95))
    assert spec.interval("max_image_layers") is None
    assert spec_from_dict(spec.to_dict()).ranges == spec.ranges
    assert spec.best_access_lanes == 4
