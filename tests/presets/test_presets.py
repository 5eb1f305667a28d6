"""Presets: fitted numbers are data with units and sources, and each device has the preset of its family."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import romou.compiler.operators
from romou.base.errors import UsageError
from romou.devices.backends import backend
from romou.devices.hardware import known_devices, load_device
from romou.devices.presets import known_presets, load_preset
from romou.devices.presets.files import numbers_of, preset_for, preset_from_dict
from romou.devices.targets import Target


def test_every_preset_loads_and_every_number_says_what_it_was_fitted_to() -> None:
    phones = {"adreno", "adreno_7xx", "mali_bifrost", "mali_valhall", "mobile"}
    assert {*phones, "cpu", "gpu", "nvidia_vulkan"} == {*known_presets()}
    for name in known_presets():
        preset = load_preset(name)
        assert preset.name == name
        for section, numbers in numbers_of(name).items():
            for key, number in numbers.items():
                assert getattr(getattr(preset, section), key) == number["value"]
                assert all(len(number[part].split()) > 0 for part in ("unit", "fitted_to", "source")), (name, key)


@pytest.mark.parametrize("name", known_devices())
def test_a_device_has_the_preset_of_its_family(name: str) -> None:
    limits = Target(f"opencl -device={name}").limits
    expected = {"adreno_7": "adreno_7xx", "adreno": "adreno", "mali_b": "mali_bifrost", "mali_v": "mali_valhall"}
    family = next((preset for prefix, preset in expected.items() if (limits.family or "").startswith(prefix)), None)
    assert limits.preset.name == (family or ("cpu" if name == "host" else "gpu"))
    assert limits.is_mobile == (family is not None) == (limits.preset.registers is not None)


def test_a_mobile_gpu_of_no_family_has_the_preset_of_mobile_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = '{"value": %s, "unit": "%s", "source": "its box"}'
    facts = f'"is_mobile": {fact % ("true", "yes or no")}, "warp_sizes": {fact % ("[32]", "work-items")}'
    (tmp_path / "mine.json").write_text(f'{{"name": "mine", "title": "Mine", "facts": {{{facts}}}}}')
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))
    limits = Target("opencl -device=mine").limits
    assert (limits.preset.name, limits.is_mobile, limits.family) == ("mobile", True, None)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"type": "gpu", "warp_size": 32}, "gpu"),
        ({"type": "gpu", "warp_size": 1, "sub_group_sizes": [32, 8, 16]}, "gpu"),
        ({"type": "gpu", "warp_size": 1}, "cpu"),
        ({"type": "cpu", "warp_size": 1, "sub_group_sizes": [4, 8, 16]}, "cpu"),
    ],
    ids=["NVIDIA or AMD", "Intel", "unknown", "CPU"],
)
def test_an_attached_gpu_without_a_device_file(facts: dict[str, Any], name: str) -> None:
    asked = {"max_work_group_size": 1024, "local_mem_bytes": 49152, "max_image_width": 0, "max_image_height": 0}
    texts = {"name": "a new device", "platform": "its driver", "extensions": ""}
    numbers = {"compute_units": 60, "clock_mhz": 1500, "constant_mem_bytes": 65536}
    spec = backend("opencl")._asked_spec({**asked, **texts, **numbers, **facts})
    assert preset_for(spec).name == name


@pytest.mark.parametrize(
    ("name", "platform", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA", "nvidia_vulkan"),
        ("Tesla T4", "NVIDIA", "nvidia_vulkan"),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "radv", None),
    ],
)
def test_a_compiler_for_a_device_may_have_a_preset(name: str, platform: str, preset: str | None) -> None:
    """Vulkan's drivers of NVIDIA compile otherwise than CUDA."""
    keys = ["compute_units", "max_work_group_size", "local_mem_bytes", "max_image_width", "max_image_height"]
    own = ["max_storage_buffers", "max_image_layers", "subgroup_size", "has_cooperative_matrix", "has_fp16_arithmetic"]
    facts = {**dict.fromkeys([*keys, *own, "has_16bit_storage"], 32), "type": "gpu", "name": name, "platform": platform}
    assert backend("vulkan").preset_name(backend("vulkan")._asked_spec(facts)) == preset


@pytest.mark.parametrize(
    ("preset", "family"), [("adreno", "adreno"), ("mali_bifrost", "mali"), ("mali_valhall", "mali")]
)
def test_an_unknown_ratio_of_memory_is_the_median_of_the_family(preset: str, family: str) -> None:
    specs = [spec for spec in map(load_device, known_devices()) if (spec.family or "").startswith(family)]
    ratios = [spec.instructions_per_byte for spec in specs if spec.instructions_per_byte is not None]
    algorithms = load_preset(preset).algorithms
    assert algorithms is not None
    assert algorithms.per_byte == pytest.approx(median(ratios), abs=0.5)


def test_an_unknown_preset_fails_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown preset 'adren'; known: adreno, .*\nDid you mean 'adreno'?"):
        load_preset("adren")


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("registers", "max_unrolled_product", 1, "unknown number 'max_unrolled_product'; known: .*'max_unrolled_pro"),
        ("register", "addresses", 1, "unknown section 'register'; known: .*Did you mean 'registers'?"),
        ("registers", "addresses", 1.5, "registers.addresses is 1.5; expected a whole number"),
        ("registers", "addresses", True, "registers.addresses is True; expected a whole number"),
        ("registers", "max_fill", -1, "registers.max_fill is -1; expected at least 0"),
        ("registers", "spilling_windows", "some", "spilling_windows is 'some'; expected one of none, cut, all"),
        ("streaming", "row_vectors", "six", "row_vectors is 'six'; expected a whole number or nothing"),
    ],
)
def test_a_wrong_number_fails_by_name(section: str, key: str, value: Any, message: str) -> None:
    sections = copy.deepcopy(numbers_of("adreno"))
    sections.setdefault(section, {})[key] = {"value": value, "unit": "1", "fitted_to": "a test", "source": "a test"}
    with pytest.raises(UsageError, match=re.compile(message, re.DOTALL)):
        preset_from_dict(sections, "test")


def test_a_missing_number_fails_by_name() -> None:
    sections = copy.deepcopy(numbers_of("adreno"))
    del sections["registers"]["max_fill"]
    with pytest.raises(UsageError, match="preset test: registers.max_fill is missing"):
        preset_from_dict(sections, "test")
    del sections["streaming"], sections["registers"]
    with pytest.raises(UsageError, match="preset test: streaming is missing"):
        preset_from_dict(sections, "test")


def test_no_operator_names_a_compiler_that_a_number_was_fitted_to() -> None:
    """Such a number belongs into a preset, beside its source. Formulas of costs also have facts of languages."""
    root = Path(romou.compiler.operators.__file__).parent
    constants = re.compile(r"^_?[A-Z][A-Z_, ]+ = [\d(.]", re.MULTILINE)
    of_costs = {root / "costs", root / "analysis"}
    for path in (each for each in root.rglob("*.py") if of_costs.isdisjoint(each.parents)):
        text = path.read_text(encoding="utf-8")
        for match in constants.finditer(text):
            lines = text[: match.start()].splitlines()
            comment = next((i for i, line in enumerate(reversed(lines)) if not line.startswith("#")), 0)
            said = " ".join(lines[len(lines) - comment :])
            assert not re.search(r"Mesa|Adreno|Mali|H200|NVIDIA", said), f"{path}: {match[0]}"
