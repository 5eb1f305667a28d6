"""Facts that ArchProbe's reports do not state but settle: of a real Pixel 4 (Adreno 640), and of made-up chips."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archprobe.report.convert import converted
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.hardware import archprobe_report, load_device
from romou.devices.hardware.conclusions import Conclusion, conclusions
from romou.devices.hardware.spec import SCHEMA, spec_from_dict
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
        # So its group may have other sides.
        assert len({config.pop("wg_w") * config.pop("wg_h", 1) for config in configs}) == 1
        assert configs[0] == configs[1]
        spaces = [pruned_space(task, target) for target in (by_hand, measured)]
        judged = [{count.criterion for count in space.report.criteria} for space in spaces]
        assert judged[0] == judged[1]
        for one, other in (spaces, reversed(spaces)):
            drawn = one.sample(np.random.default_rng(7), 300)
            kept = sum(other.knows(config) and bool(other.is_valid(config)) for config in drawn)
            assert kept >= 0.8 * len(drawn), (task.name, kept, len(drawn))


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


def concluded(numbers: Mapping[str, Any], *, is_cpu: bool = False) -> Mapping[str, Conclusion]:
    return conclusions(numbers.get, is_cpu=is_cpu)


BUFFERS, IMAGES = "BufferCacheHierarchyPChase.CacheVectorCountLv", "ImageCacheHierarchyPChase.CachePixelCountLv"


def test_two_levels_behind_buffers_are_the_first_and_the_last() -> None:
    found = concluded({f"{BUFFERS}1": 16 * KB, f"{BUFFERS}2": 18 * KB, f"{BUFFERS}3": 256 * KB, f"{IMAGES}1": 8 * KB})
    assert (found["l1_buffer_cache_bytes"].value, found["l2_cache_bytes"].value) == (16 * KB, 256 * KB)


def test_a_large_first_level_is_passed_by_only_if_something_else_says_so() -> None:
    numbers = {f"{BUFFERS}1": 120 * KB, f"{IMAGES}1": KB}
    assert "l1_buffer_cache_bytes" not in concluded(numbers)
    sure = [
        concluded({**numbers, **more})["l1_buffer_cache_bytes"]
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
    assert "l1_buffer_cache_bytes" not in concluded(numbers | noisy)


def test_a_cpu_has_one_warp_a_work_item_and_its_only_level_is_no_last_one() -> None:
    found = concluded({f"{BUFFERS}1": 48 * KB, "Device.CacheSize": 32 << 20, f"{IMAGES}1": KB}, is_cpu=True)
    assert found["warp_sizes"].value == [1]
    assert (found["l1_buffer_cache_bytes"].value, found["l2_cache_bytes"].value) == (48 * KB, 32 << 20)


def test_alus_need_no_clock() -> None:
    registers = {
        "RegCount.RegType": "Pooled",
        "RegCount.FullRegConcurWorkgroupCount": 12,
        "Device.SmCount": 2,
        "WarpSizeMethodB.WarpThreadCount": 64,
        "Gflops.FloatGflops": 890.0,
    }
    found = concluded(registers)
    assert (found["alus_per_core"].value, found["clock_mhz"].value) == (384, 579)
    by_order = concluded({**registers, "RunningOrder.ParallelWorkItems": 256})
    assert by_order["alus_per_core"].value == 256
    assert by_order["alus_per_core"].confidence > found["alus_per_core"].confidence
    by_clock = concluded({"Device.ClockFrequency": 585, "Device.SmCount": 2, "Gflops.FloatGflops": 890.0})
    assert by_clock["alus_per_core"].value == 380
    assert "alus_per_core" not in concluded({**registers, "RegCount.RegType": "Dedicated"})


def test_a_report_that_compared_both_spellings_is_not_overruled() -> None:
    assert concluded({"Gflops.FloatArch": "SISD"})["has_scalar_vector_broadcast"].value is True
    assert "has_scalar_vector_broadcast" not in concluded({"Gflops.FloatArch": "SISD", "Gflops.Autobroadcast": True})
    assert "has_scalar_vector_broadcast" not in concluded({"Gflops.FloatArch": "SIMD"})
    assert "has_scalar_vector_broadcast" not in concluded({"Gflops.FloatArch": "SISD", "Gflops.BroadcastPays": False})


@pytest.mark.parametrize("does_pay", [True, False, None])
def test_a_report_states_whether_autobroadcast_pays(does_pay: bool | None) -> None:
    report = {"RegCount": {}, "Gflops": {"FloatArch": "SISD", "Autobroadcast": True, "BroadcastPays": does_pay}}
    _, facts = archprobe_report.facts_of(report, SCHEMA)
    assert facts["has_scalar_vector_broadcast"]["value"] is does_pay


def test_memory_at_the_rate_of_dram_is_in_dram() -> None:
    rates = {"BufferBandwidth.DramBandwidth": 11.0, "LocalMemBandwidth.MaxBandwidth": 11.5}
    assert concluded(rates)["local_mem_place"].value == "dram"
    assert concluded({**rates, "LocalMemBandwidth.MaxBandwidth": 79.0})["local_mem_place"].value == "on_chip"


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
    assert spec.source_of("local_mem_bandwidth_gbps").startswith(f"{BY_HAND}, the nearest known GPU: ")
    # Limits of another device would be guesses that fail.
    assert spec.max_image_layers is None
    (said,) = (record.getMessage() for record in caplog.records)
    assert "local_mem_bandwidth_gbps" in said
    assert "taken from Qualcomm Adreno 640" in said


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
    report = {"ArchProbe": {"Driver": driver}, "WarpSizeMethodB": {"WarpThreadCount": warp}}
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
