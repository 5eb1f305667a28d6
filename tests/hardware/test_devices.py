"""Device files: schema errors name the wrong entry, and the values equal the published table."""

from __future__ import annotations

import json
import math
import platform
import re
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

import romou
from romou.base.errors import UsageError
from romou.compiler.operators.costs.estimate import can_estimate, missing_facts
from romou.devices.backends import backend
from romou.devices.hardware import (
    HardwareSpec,
    device_called,
    families_of,
    files,
    known_devices,
    load_device,
    load_spec,
    spec_from_dict,
)
from romou.devices.hardware.spec import LIMITS, SCHEMA
from romou.devices.targets import Target
from romou.driver.site import for_server
from romou.tools.report.devices import facts_table
from support.models.small_networks import residual_net
from support.suite.exhaustive import few

KB = 1024
ADRENO = (
    "530",
    "618",
    "620",
    "630",
    "640",
    "642l",
    "650",
    "660",
    "690",
    "730",
    "740",
    "750",
    "830",
    "840",
    "_x1_45",
    "_x1_85",
)
MALI = ("52", "57", "68", "71", "76", "77", "78", "610", "615", "710", "715", "720", "925")
PHONES = (*(f"adreno{n}" for n in ADRENO), "maleoon910", *(f"mali_g{n}" for n in MALI))
# The table of published facts, written out again by hand; None: the table has no number, though another source may.
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
    for name, published in zip(("adreno630", "adreno640", "mali_g76"), TABLE[fact], strict=True):
        assert published is None or getattr(load_device(name), fact) == published, name


def test_a_measured_device_gives_a_target_its_limits() -> None:
    """ArchProbe's report of a run is used in place of a device file, as it was measured."""
    spec = load_device("nvidia_h200")
    assert (spec.title, spec.shader_cores, spec.warp_sizes, spec.register_file) == ("NVIDIA H200", 132, (32,), "pooled")
    assert spec.registers_per_core == 256 * 251
    assert spec.source_of("shader_cores").startswith("archprobe 0.1.0, 2026-")
    limits = Target("opencl -device=nvidia_h200").limits
    assert (limits.max_work_group_size, limits.local_memory_bytes, limits.busy_work_items) == (
        1024,
        48 * KB,
        1024 * 132,
    )
    assert limits.max_image == (32768, 32768, 2048)
    # Its buffers have a first-level cache too, and its OpenCL no half precision arithmetic.
    assert (limits.prefers_images, limits.has_fp16_arithmetic) == (False, False)


@pytest.mark.parametrize("name", known_devices())
def test_every_number_has_a_source_and_every_gap_says_so(name: str) -> None:
    spec = load_device(name)
    for key in SCHEMA:
        assert (getattr(spec, key) is None) == spec.source_of(key).startswith("not known"), key


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
        (
            {"nam": "x"},
            "device data: unknown key 'nam'; known: facts, family, name, nearest, title\nDid you mean 'name'?",
        ),
        ({"name": "x", "title": "x", "facts": 1}, "device data: 'facts' must be a JSON object, got int"),
        (
            _changed(l2_cache_bytes={"unit": "KB"}),
            "device data: l2_cache_bytes is given in 'KB'; this key is in 'bytes'",
        ),
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


def test_an_unknown_fact_is_named_and_one_that_is_left_out_is_not_known() -> None:
    data = load_device("adreno640").to_dict()
    data["facts"]["l2_cache_byte"] = data["facts"].pop("l2_cache_bytes")
    with pytest.raises(UsageError, match="unknown fact 'l2_cache_byte'.*\nDid you mean 'l2_cache_bytes'?"):
        spec_from_dict(data)
    del data["facts"]["l2_cache_byte"]
    spec = spec_from_dict(data)
    assert (spec.l2_cache_bytes, spec.source_of("l2_cache_bytes")) == (None, "not known")


def test_a_family_gives_what_a_file_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fact has the family's source. A family is no device, and each one belongs to some device."""
    spec, family = load_device("adreno730"), json.loads((files._FAMILIES / "adreno_7xx.json").read_text())["facts"]
    assert spec.registers_per_core == 96 * 4 * 128
    assert spec.source_of("registers_per_lane") == family["registers_per_lane"]["source"]
    own, inherited = {**family["warp_sizes"], "value": None}, {"value": 7, "unit": "count", "source": "its box"}
    mine = {
        "name": "mine",
        "title": "Mine",
        "family": "adreno_7xx",
        "facts": {"warp_sizes": own, "shader_cores": inherited},
    }
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    spec = load_spec(tmp_path / "mine.json")
    assert (spec.warp_sizes, spec.shader_cores, spec.nearest, spec.l1_buffer_cache_bytes) == (
        (64, 128),
        7,
        "adreno640",
        0,
    )
    (tmp_path / "mine.json").write_text(json.dumps(mine | {"family": "adreno_7x"}))
    with pytest.raises(
        UsageError, match="unknown family of devices 'adreno_7x'; known: adreno, .*\nDid you mean 'adreno_7xx'?"
    ):
        load_spec(tmp_path / "mine.json")
    texts = [path.read_text() for folder in (files._DEVICES, files._FAMILIES) for path in folder.glob("*.json")]
    for path in files._FAMILIES.glob("*.json"):
        assert path.stem not in known_devices()
        assert any(f'"family": "{path.stem}"' in text for text in texts), path.stem


@pytest.mark.parametrize("name", PHONES)
def test_a_phone_keeps_its_family(name: str) -> None:
    """The family survives a dict, an attached device and the option `-images=never`."""
    spec = load_device(name)
    assert (spec.family is None) == (name == "maleoon910")
    assert spec_from_dict(spec.to_dict()).family == spec.family
    assert HardwareSpec(name="asked", title="Asked").filled_from(spec).family == spec.family
    assert spec.is_phone_gpu == (spec.is_mobile is True) == (name != "maleoon910")
    assert families_of(spec.family)[-1:] == (() if spec.family is None else (spec.family.partition("_")[0],))
    limits = Target(f"opencl -device={name} -images=never").limits
    assert (limits.family, limits.is_mobile) == (spec.family, spec.is_phone_gpu)


@pytest.mark.parametrize(
    ("facts", "is_phone"),
    [
        ({"warp_sizes": (64,), "l1_buffer_cache_bytes": 0}, True),
        ({"warp_sizes": (64,), "l1_buffer_cache_bytes": 0, "is_mobile": False}, False),
        ({"warp_sizes": (32,), "l1_buffer_cache_bytes": 131072}, False),
        ({"warp_sizes": (32,), "is_mobile": True}, True),
        ({"warp_sizes": (1,), "l1_buffer_cache_bytes": 0}, False),
        ({}, False),
    ],
)
def test_without_a_family_a_gpu_that_prefers_images_is_a_phone_s(facts: dict[str, Any], is_phone: bool) -> None:
    assert HardwareSpec(name="x", title="x", **facts).is_phone_gpu == is_phone


@pytest.mark.parametrize("name", PHONES)
def test_every_phone_has_images_and_keeps_to_what_its_facts_say(name: str) -> None:
    spec, limits = load_device(name), Target(f"opencl -device={name}").limits
    assert limits.max_image == (min(spec.max_image_width_texels or 0, spec.max_image_height_texels or 0),) * 2 + (2048,)
    assert limits.max_image[0] >= 16384
    assert (limits.warp_size, limits.has_fp16_arithmetic) == (min(spec.warp_sizes or (0,)), True)
    assert limits.max_work_group_size == (spec.max_work_group_size or 256)
    # Images if buffers have no first-level cache (Adreno), or if images have the higher rate on it or on the nearest
    # GPU (Mali).
    assert limits.prefers_images == (name != "maleoon910")


def test_vulkan_images_have_as_many_layers_as_the_file_knows() -> None:
    """If the file has no number, images have the layers that every device offers. OpenCL guarantees more."""
    layers = {
        "adreno530": 256,
        "adreno640": 2048,
        "adreno740": 2048,
        "adreno830": 2048,
        "mali_g76": 256,
        "mali_g615": 4096,
        "mali_g715": 256,
        "maleoon910": 256,
    }
    for name, count in layers.items():
        image = Target(f"vulkan -device={name}").limits.max_image
        assert image is not None
        assert image[2] == count, name
        assert load_device(name).max_image_layers == (None if name in ("adreno530", "maleoon910") else count)
    asked = backend("vulkan").list_devices()[0]
    assert backend("vulkan").spec(None).max_image_layers == asked["max_image_layers"]


@pytest.mark.parametrize("name", few(["adreno740", "mali_g78", "maleoon910"], 1))
def test_a_network_compiles_within_a_phone_s_limits(name: str) -> None:
    """Images are used if the target prefers them, and work groups fit the device."""
    target = Target(f"opencl -device={name}")
    sources = romou.compile(residual_net(), target=target).sources().values()
    groups = [
        tuple(map(int, sizes))
        for source in sources
        for sizes in re.findall(r"reqd_work_group_size\((\d+), (\d+), (\d+)\)", source)
    ]
    assert len(groups) >= len(sources) > 3
    assert max(map(math.prod, groups)) <= target.limits.max_work_group_size
    assert any("image2d" in source for source in sources) == target.limits.prefers_images


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("QUALCOMM Adreno(TM) 740", "adreno740"),
        ("QUALCOMM Adreno(TM) OpenCL 2.0 Adreno(TM) 642L", "adreno642l"),
        ("Qualcomm(R) Adreno(TM) X1-85 GPU", "adreno_x1_85"),
        ("Adreno (TM) 750", "adreno750"),
        ("FD630", "adreno630"),
        ("Mali-G57 MC2 r0p1", "mali_g57"),
        ("Mali-G71 r0p0", "mali_g71"),
        ("Mali-G715-Immortalis MC11 v1.r38p1", "mali_g715"),
        ("Immortalis-G925", "mali_g925"),
        ("Mali-LODX r0p0", "mali_g610"),
        ("Maleoon 910", "maleoon910"),
        ("NVIDIA H200", "nvidia_h200"),
        ("QUALCOMM Adreno(TM) OpenCL 2.0 Adreno(TM) 505", None),
        ("Mali-G7", None),
        ("Mali-G5710", None),
        ("cpu-haswell-Intel(R) Xeon(R) Processor", None),
        ("host", None),
    ],
)
def test_a_driver_s_text_names_a_device(text: str, name: str | None) -> None:
    assert device_called(text) == name
    if name:
        assert load_device(text).name == name
        assert Target({"kind": "opencl", "device": text}) == Target(f"opencl -device={name}")


def test_an_attached_phone_picks_its_file_and_its_driver_s_word_stands_first() -> None:
    facts = {"name": "QUALCOMM Adreno(TM)", "version": "OpenCL 3.0 Adreno(TM) 740", "type": "gpu"}
    asked = HardwareSpec(
        name="asked", title="Asked", max_work_group_size=512, sources={"max_work_group_size": "its driver"}
    )
    opencl = backend("opencl")
    spec = opencl.with_known_facts(asked, facts)
    assert (spec.name, spec.title, spec.nearest) == ("adreno740", "Asked", "adreno640")
    assert (spec.max_work_group_size, spec.source_of("max_work_group_size")) == (512, "its driver")
    assert spec.registers_per_core == load_device("adreno740").registers_per_core
    assert opencl.with_known_facts(asked, facts | {"version": "OpenCL 2.0 Adreno(TM) 505"}) is asked
    assert opencl.with_known_facts(asked, facts | {"type": "cpu"}) is asked
    assert for_server(Target("opencl"), facts, f"{platform.machine()}-linux-gnu", "there").device_name == "adreno740"
    with pytest.raises(UsageError, match="the target has to name the device at there, which is Xclipse 920"):
        for_server(Target("opencl"), {"name": "Xclipse 920", "type": "gpu"}, f"{platform.machine()}-linux-gnu", "there")


def test_the_file_of_an_adreno_530_says_of_each_fact_where_it_comes_from_or_why_there_is_none() -> None:
    """It is the GPU that Boda-RTC and its framework were measured on."""
    spec, nearest = load_device("adreno530"), load_device("adreno630")
    assert set(spec.sources) == set(SCHEMA)
    assert all(len(source) > len("not known") for source in spec.sources.values())
    assert spec.alus_per_core == 64
    assert spec.source_of("alus_per_core").startswith("concluded: ")
    rows = {str(cells[0]): str(cells[1]) for cells in rows_of(facts_table(spec, nearest), "fact", "source")}
    assert rows["registers_per_lane"].startswith("not known until `archprobe run`")
    assert rows["registers_per_lane"].endswith("; adreno630 has 181")
    assert (
        spec.guessed_from(nearest).source_of("registers_per_lane").startswith("adreno630, the nearest GPU that has it")
    )


def rows_of(table: Table, *names: str) -> list[tuple[object, ...]]:
    columns = {str(column.header): list(column.cells) for column in table.columns}
    return list(zip(*(columns[name] for name in names), strict=True))


def test_unknown_facts_are_the_nearest_gpu_s_where_that_is_asked_for() -> None:
    """The source of a fact says so. Limits stay unknown, because kernels might not run."""
    plain, guessed = (Target(f"opencl -device=mali_g78{option}").spec for option in ("", " -facts=nearest"))
    assert (plain.l2_bandwidth_gbps, guessed.l2_bandwidth_gbps) == (None, 15.6)
    assert guessed.source_of("l2_bandwidth_gbps").startswith("mali_g76, the nearest GPU that has it: Romou paper")
    assert (guessed.warp_sizes, guessed.source_of("warp_sizes")) == (plain.warp_sizes, plain.source_of("warp_sizes"))
    assert plain.max_work_group_size is None
    assert (missing_facts(plain), missing_facts(guessed)) == (("clock_mhz", "l2_bandwidth_gbps"), ())
    assert (can_estimate(plain), can_estimate(guessed)) == (False, True)
    assert missing_facts(load_device("host")) == ()
    assert all(getattr(plain, key) == getattr(guessed, key) for key in LIMITS)
    with pytest.raises(UsageError, match="-facts=nearest: of NVIDIA H200 no similar device is known"):
        _ = Target("opencl -device=nvidia_h200 -facts=nearest").spec


def test_what_the_target_says_of_images_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    facts = {"max_work_group_size": 128, "warp_sizes": (16,)}
    spec = HardwareSpec(name="bare", title="A bare GPU", sources=dict.fromkeys(facts, "its box"), **facts)
    (tmp_path / "bare.json").write_text(json.dumps(spec.to_dict()))
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))
    bare = Target("opencl -device=bare")
    assert (bare.limits.max_image, bare.lacks_image_sizes) == (None, True)
    romou.inspect(residual_net(), target=bare)
    assert (
        "A bare GPU: the sizes of its images are not known, so every tensor stays in a buffer; -texture_spatial_limit=N"
        in caplog.text
    )
    given = bare.with_options(texture_spatial_limit=4096)
    assert (given.limits.max_image, given.limits.prefers_images, given.lacks_image_sizes) == (
        (4096, 4096, 2048),
        False,
        False,
    )
    assert given.with_options(images="prefer").limits.prefers_images
    never = Target("opencl -device=adreno740 -images=never")
    assert (never.limits.max_image, never.limits.prefers_images, never.lacks_image_sizes) == (None, False, False)
    assert Target("opencl -device=mali_g76 -texture_spatial_limit=1024").limits.max_image == (1024, 1024, 2048)


def test_file_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none.json cannot be read: No such file"):
        load_spec(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"broken\.json cannot be read: not JSON"):
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
    return tuple(sorted((*PHONES, "host", "nvidia_h200")))


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
    with pytest.raises(UsageError, match=f"mine.json(: {fact} must| cannot be read: not JSON)") as caught:
        load_spec(tmp_path / "mine.json")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "content",
    [
        '{"RegCount": 5}',
        '{"ArchProbe": {}, "Cores": []}',
        '{"ArchProbe": 5}',
        "[" * 100_000,
        '{"ArchProbe": {"Driver": 5}}',
    ],
)
def test_a_report_that_archprobe_did_not_write_is_an_error_with_its_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(UsageError, match=r"device file .*mine.json"):
        load_spec(tmp_path / "mine.json")
