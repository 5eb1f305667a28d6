"""Device files: schema errors name what is wrong, and the values are those of the published table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from romou.core.errors import UsageError
from romou.hardware import HardwareSpec, known_devices, load_device, load_spec, spec_from_dict
from romou.hardware.spec import SCHEMA
from romou.target import Target

KB = 1024
# The table of published facts, written out again by hand; None: the table has no number.
TABLE: dict[str, tuple[Any, Any, Any]] = {
    "shader_cores": (2, 2, 5),
    "alus_per_core": (256, 384, 24),
    "warp_sizes": ((64, 128), (64, 128), (8,)),
    "register_file": ("pooled", "pooled", "dedicated"),
    "registers_per_core": (256 * 181, 384 * 181, 384 * 64),
    "registers_per_lane": (181, 181, 64),
    "max_work_group_size": (1024, 1024, 384),
    "l1_texture_cache_bytes": (KB, KB, 8 * KB),
    "l1_texture_line_bytes": (32, 32, None),
    "l1_buffer_cache_bytes": (0, 0, 16 * KB),
    "l2_cache_bytes": (128 * KB, 128 * KB, 256 * KB),
    "l2_line_bytes": (64, 64, None),
    "local_mem_bytes": (32 * KB, 32 * KB, None),
    "local_mem_place": ("on_chip", "on_chip", "dram"),
    "constant_mem_bytes": (32 * KB, 64 * KB, None),
    "constant_mem_place": ("on_chip", "on_chip", "dram"),
    "l1_texture_bandwidth_gbps": (145, 190, 30),
    "l1_buffer_bandwidth_gbps": (None, None, 23.3),
    "l2_bandwidth_gbps": (79, 96, 15.6),
    "local_mem_bandwidth_gbps": (79, 146, 11),
    "constant_mem_bandwidth_gbps": (79, 95, 11),
    "dram_bandwidth_gbps": (26, 28, 11),
    "fp32_peak_gflops": (720, 890, 190),
    "clock_mhz": (710, 585, 800),
    "has_scalar_vector_broadcast": (True, True, True),
    "has_half_arithmetic": (None, True, None),
    "fp16_rate": (None, 1, 2),
}


def test_known_devices() -> None:
    assert known_devices() == shipped_devices()


@pytest.mark.parametrize("fact", TABLE)
def test_values_are_those_of_the_table(fact: str) -> None:
    assert tuple(getattr(load_device(name), fact) for name in ("adreno630", "adreno640", "mali_g76")) == TABLE[fact]


def test_a_measured_device_gives_a_target_its_limits() -> None:
    """ArchProbe's report of a run stands in place of a device file, as it was measured."""
    spec = load_device("nvidia_h200")
    assert (spec.title, spec.shader_cores, spec.warp_sizes, spec.register_file) == ("NVIDIA H200", 132, (32,), "pooled")
    assert spec.registers_per_core == 256 * 251
    assert spec.source_of("shader_cores").startswith("archprobe 0.1.0, 2026-")
    limits = Target("opencl -device=nvidia_h200").limits
    assert (limits.max_work_group_size, limits.local_memory_bytes, limits.busy_work_items) == (1024, 48 * KB, 1024 * 132)
    assert limits.max_image == (32768, 32768, 2048)
    # Its buffers have a first-level cache too, and its OpenCL no half precision arithmetic.
    assert (limits.prefers_images, limits.has_fp16_arithmetic) == (False, False)


@pytest.mark.parametrize("name", known_devices())
def test_every_number_has_a_source_and_every_gap_says_so(name: str) -> None:
    spec = load_device(name)
    for key in SCHEMA:
        assert (getattr(spec, key) is None) == (spec.source_of(key) == "not known"), key


@pytest.mark.parametrize("name", known_devices())
def test_dict_round_trip(name: str) -> None:
    spec = load_device(name)
    assert spec_from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_filled_from_keeps_known_facts() -> None:
    asked = HardwareSpec(name="x", title="x", max_work_group_size=4096, sources={"max_work_group_size": "driver"})
    filled = asked.filled_from(load_device("host"))
    assert (filled.max_work_group_size, filled.source_of("max_work_group_size")) == (4096, "driver")
    assert filled.local_mem_bytes == 32 * KB
    assert filled.source_of("local_mem_bytes").startswith("minimum that OpenCL 1.2 asks")


def _changed(**facts: Any) -> dict[str, Any]:
    data = load_device("adreno640").to_dict()
    for key, value in facts.items():
        data["facts"][key] = {**data["facts"].get(key, {}), **value}
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "device data: expected a JSON object, got list"),
        ({"name": "x"}, "device data: missing key 'title', 'facts'"),
        ({"nam": "x"}, "device data: unknown key 'nam'; known: facts, name, title\nDid you mean 'name'?"),
        ({"name": "x", "title": "x", "facts": 1}, "device data: 'facts' must be a JSON object, got int"),
        (_changed(l2_cache_bytes={"unit": "KB"}), "device data: l2_cache_bytes is given in 'KB'; this key is in 'bytes'"),
        (_changed(l2_cache_bytes={"source": " "}), "device data: l2_cache_bytes says no source for its value 131072"),
        (_changed(l2_cache_bytes={"value": "much"}), "device data: l2_cache_bytes must be int, got 'much'"),
        (_changed(shader_cores={"value": True}), "device data: shader_cores must be int, got True"),
        (_changed(clock_mhz={"value": -1}), "device data: clock_mhz must not be negative, got -1"),
        (_changed(register_file={"value": "big"}), "device data: register_file must be pooled or dedicated, got 'big'"),
    ],
)
def test_schema_errors(data: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_from_dict(data)
    assert str(caught.value) == message


def test_missing_and_unknown_facts_are_named() -> None:
    data = load_device("adreno640").to_dict()
    data["facts"]["l2_cache_byte"] = data["facts"].pop("l2_cache_bytes")
    with pytest.raises(UsageError, match="unknown fact 'l2_cache_byte'.*\nDid you mean 'l2_cache_bytes'?"):
        spec_from_dict(data)
    del data["facts"]["l2_cache_byte"]
    with pytest.raises(UsageError, match="missing fact 'l2_cache_bytes'"):
        spec_from_dict(data)


def test_file_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_spec(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"broken\.json is not JSON"):
        load_spec(broken)
    broken.write_text(json.dumps(load_device("adreno640").to_dict()), encoding="utf-8")
    with pytest.raises(UsageError, match="describes 'adreno640'; the name must be the file's name, 'broken'"):
        load_spec(broken)


def test_unknown_fact_of_a_spec() -> None:
    with pytest.raises(UsageError, match="unknown hardware fact 'l2_bytes'"):
        load_device("adreno640").source_of("l2_bytes")


def test_a_file_in_a_folder_of_the_users_is_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"max_work_group_size": 128, "local_mem_bytes": 8 * KB, "shader_cores": 3}
    spec = HardwareSpec(name="toy", title="A toy", sources=dict.fromkeys(facts, "its box"), **facts)
    (tmp_path / "toy.json").write_text(json.dumps(spec.to_dict()))
    with pytest.raises(UsageError, match="unknown device 'toy'"):
        Target("opencl -device=toy")
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))
    assert known_devices() == tuple(sorted((*shipped_devices(), "toy")))
    limits = Target("opencl -device=toy").limits
    assert (limits.max_work_group_size, limits.local_memory_bytes, limits.busy_work_items) == (128, 8 * KB, 3 * 128)
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="ROMOU_DEVICES=.*absent: is no folder"):
        known_devices()


def shipped_devices() -> tuple[str, ...]:
    return ("adreno630", "adreno640", "host", "mali_g76", "nvidia_h200")


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        *(("warp_sizes", value) for value in ([0], ["a"], [[1]], [True], [1.5], [], [-4], [10**30])),
        *(("shader_cores", value) for value in (0, -1, 10**400, 1.5, float("nan"))),
        *(("dram_bandwidth_gbps", value) for value in (0, 0.0, float("nan"), float("inf"), 1e300)),
        *(("l2_cache_bytes", value) for value in (2**60, -1)),
    ],
)
def test_a_number_that_no_device_has_is_an_error_with_file_and_fact(fact: str, value: Any, tmp_path: Path) -> None:
    data = load_device("adreno640").to_dict() | {"name": "mine"}
    data["facts"][fact]["value"] = value
    (tmp_path / "mine.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match=f"mine.json: {fact} must") as caught:
        load_spec(tmp_path / "mine.json")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("content", ['{"RegCount": 5}', '{"ArchProbe": {}, "Cores": []}', '{"ArchProbe": 5}', "[" * 100_000, '{"ArchProbe": {"Driver": 5}}'])
def test_a_report_that_archprobe_did_not_write_is_an_error_with_its_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(UsageError, match=r"device file .*mine.json"):
        load_spec(tmp_path / "mine.json")
