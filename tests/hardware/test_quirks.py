"""Quirks of drivers are applied if their condition holds, and can be disabled by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import romou
from romou.base.errors import UsageError
from romou.base.inputs import random_inputs
from romou.devices.hardware import quirks
from romou.devices.hardware.quirks import Quirk, known_quirks, quirks_of, rules_for
from romou.devices.targets import Target
from support.devices import platforms
from support.kernels.operators import small_tasks
from support.models.quantized import QuantizedCase, quantized_task
from support.models.small_networks import prime_net
from support.servers import forked

LIMITS = {
    "max_work_group_size": 1024,
    "local_mem_bytes": 32768,
    "has_images": True,
    "max_image_width": 16384,
    "max_image_height": 16384,
}


def facts(name: str, driver: str, platform: str = "QUALCOMM Snapdragon(TM)") -> dict[str, Any]:
    """Return the facts of a synthetic device that computes in fp16."""
    return {
        "name": name,
        "version": f"OpenCL 3.0 {name}",
        "driver": driver,
        "platform": platform,
        "max_image_layers": 2048,
        "extensions": "cl_khr_fp16",
        **LIMITS,
    }


def adreno(model: int, compiler: str) -> dict[str, Any]:
    return facts(f"QUALCOMM Adreno(TM) {model}", f"OpenCL 3.0 QUALCOMM build: 0800.71 Compiler {compiler}")


X1 = facts("Adreno X1-45", "OpenCL 3.0 QUALCOMM build DX.50.41 Compiler DX.50.41")
MALI = facts("Mali-G710", "3.0", "ARM Platform")


@pytest.mark.parametrize(
    ("device", "names"),
    [
        (adreno(830, "E031.47.18.49"), {"adreno_large_buffers", "adreno_compile_order"}),
        (adreno(840, "E031.50.02.00"), {"adreno_840_rows", "adreno_compile_order"}),
        (adreno(845, "E031.50.02.00"), {"adreno_compile_order"}),
        (adreno(740, "E031.41.00.00"), {"adreno_compile_order"}),
        (adreno(619, "E031.45.02.00"), {"adreno_6xx_large_programs", "adreno_compile_order"}),
        (
            facts(
                "QUALCOMM Adreno(TM)",
                "OpenCL 2.0 QUALCOMM build: commit #272cf717f5 changeid #Iee40f504b5 Compiler E031.38.01.08",
            )
            | {"version": "OpenCL 2.0 Adreno(TM) 642L"},
            {"adreno_6xx_large_programs", "adreno_compile_order", "adreno_sub_groups"},
        ),
        (X1, {"adreno_windows_fma", "adreno_compile_order"}),
        (MALI, {"mali_fp16_sums"}),
        (facts("Mali-G72", "2.0", "ARM Platform"), {"mali_fp16_sums", "mali_old_binaries"}),
        (facts("Mali-G78 r0p1", "3.0", "ARM Platform"), {"mali_fp16_sums", "mali_g78_compiler_abort"}),
        (facts("Samsung Xclipse 960", "3.0.25.2.13", "ANGLE Vulkan"), {"angle_compiler_crash"}),
        (facts("Mali-G780", "3.0", "Rectangle"), {"mali_fp16_sums"}),
        (facts("NVIDIA H200", "570.1", "NVIDIA CUDA"), set()),
        (facts("pthread-skylake", "3.1", "Portable Computing Language"), {"pocl_compiler_lock", "pocl_headers"}),
        (
            facts("Intel(R) Xeon(R)", "2026.22", "Intel(R) OpenCL") | {"vendor": "Intel(R) Corporation"},
            {"intel_command_buffers", "intel_compiler_crash", "intel_cpu_native_functions"},
        ),
        (
            facts("Intel(R) Arc(TM) A770", "24.1", "Intel(R) OpenCL Graphics") | {"vendor": "Intel(R) Corporation"},
            set(),
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_conditions(device: dict[str, Any], names: set[str]) -> None:
    assert {quirk.name for quirk in quirks_of(device)} == names


def test_names_are_distinct() -> None:
    assert len({quirk.name for quirk in known_quirks()}) == len(known_quirks())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rules": {"avoid_fmas": True}}, "key of the quirk q.*avoid_fmas"),
        ({"when": {"compiler": "E1"}}, "key of the quirk q.*compiler"),
        ({"source": ""}, "needs a condition, a rule and a source"),
        ({"rules": {}}, "needs a condition, a rule and a source"),
    ],
)
def test_an_entry_that_says_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    whole: dict[str, Any] = {
        "name": "q",
        "symptom": "s",
        "workaround": "w",
        "source": "x",
        "when": {"device": "."},
        "rules": {"compiles_in_order": True},
    }
    Quirk(**whole)
    with pytest.raises(UsageError, match=message):
        Quirk(**(whole | changes))


def test_quirks_are_switched_off_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    device = adreno(830, "E031.47.18.49")
    assert rules_for(device).profiling_queue_above_bytes == 1_000_000_000
    monkeypatch.setenv("ROMOU_QUIRKS_OFF", "adreno_large_buffers, mali_fp16_sums")
    assert rules_for(device).profiling_queue_above_bytes is None
    assert rules_for(device).compiles_in_order
    monkeypatch.setenv("ROMOU_QUIRKS_OFF", "adreno_large_bufers")
    with pytest.raises(UsageError, match="adreno_large_buffers"):
        rules_for(device)


def test_choices_that_a_driver_gets_wrong_are_left_out_of_spaces() -> None:
    """The choices that the target itself leaves out are left out as well. The device's other choices stay."""
    target = Target("opencl -device=adreno640")
    limited = target.limited_to(X1)
    assert limited.options["without"] == "multiply_add:fma"
    assert (
        Target("opencl -device=adreno640 -without=data:image").limited_to(X1).options["without"]
        == "data:image+multiply_add:fma"
    )
    assert Target.from_json(limited.to_json()) == limited
    narrowed = 0
    for task in small_tasks():
        wide, narrow = task.space(target).knobs, task.space(limited).knobs
        for name, choices in wide.items():
            expected = tuple(choice for choice in choices if (name, choice) != ("multiply_add", "fma"))
            assert narrow[name] == expected
            narrowed += expected != choices
        assert task.space(limited).knows(task.default_config(limited))
    assert narrowed > 0


def test_work_items_of_adreno_840_have_at_most_eight_rows() -> None:
    options = rules_for(adreno(840, "E031.50.02.00")).target_options()
    assert options == {"without": "item_data:16"}
    target = Target("opencl -device=adreno840").with_options(**options)
    for rows in (16, 128):
        task = quantized_task(QuantizedCase(m=rows, k=64, n=64))
        assert max(task.space(target).knobs["item_data"]) == 8
        assert task.space(target).knows(task.default_config(target))


def test_workarounds_of_compilers_that_crash() -> None:
    """A whole model's kernels are never one program of an Adreno 6xx, and crashes of the others are errors."""
    assert not rules_for(adreno(642, "E031.45.02.00")).compiles_as_one
    for device in (facts("Samsung Xclipse 960", "3.0", "ANGLE Vulkan"), facts("Mali-G78", "3.0", "ARM Platform")):
        assert rules_for(device).compiles_apart


def test_fp16_is_storage_where_a_driver_computes_wrongly() -> None:
    assert Target("opencl -device=adreno640").limited_to(MALI).options["half"] == "storage"


def test_rules_act_on_a_models_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that must not get binaries gets none, and a driver with a bad queue gets another one. The numbers stay
    right.
    """
    entry = {"name": "q", "symptom": "s", "workaround": "w", "source": "x", "when": {"device": "."}}
    model = romou.compile(prime_net(), target="opencl -device=host", verify=False)
    inputs = random_inputs(model.inputs, seed=0)
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "64")
    monkeypatch.setenv("ROMOU_QUIRKS_OFF", "pocl_headers")
    right = model.run(inputs)
    assert list((tmp_path / "cache" / "programs").iterdir())
    monkeypatch.delenv("ROMOU_QUIRKS_OFF")
    (tmp_path / "quirks.json").write_text(
        json.dumps([{**entry, "rules": {"keeps_no_programs": True, "profiling_queue_above_bytes": 1}}])
    )
    monkeypatch.setattr(quirks, "_FILE", tmp_path / "quirks.json")
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path / "other"))
    saved = romou.load(model.save(tmp_path / "m.romou"))
    for found, expected in zip(saved.run(inputs), right, strict=True):
        assert found.tobytes() == expected.tobytes()
    assert saved.programs is not None
    assert saved.programs.cached == 0
    assert not (tmp_path / "other").exists()


_SIGMOID = """
import numpy as np, romou
from onnx import helper
x, y = (helper.make_tensor_value_info(name, 1, [7, 20]) for name in "xy")
graph = helper.make_graph([helper.make_node("Sigmoid", ["x"], ["y"])], "g", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
compiled = romou.compile(model, verify=False, target="opencl -device=adreno640")
data = np.random.default_rng(0).standard_normal((7, 20), np.float32)
right = 1 / (1 + np.exp(-data.astype("float64")))
print("native_exp(" in "".join(compiled.sources().values()), np.abs(compiled.run({"x": data})[0] / right - 1).max())
"""


def test_a_phones_native_functions_are_accurate_where_the_cpus_are_not(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The kernel keeps its text."""
    platforms.INTEL.require(request.config)
    environment = platforms.INTEL.environment()
    errors = []
    for off in ("", "intel_cpu_native_functions"):
        done = forked.run(
            "-c", _SIGMOID, env={**environment, "ROMOU_QUIRKS_OFF": off, "ROMOU_CACHE_DIR": str(tmp_path)}
        )
        assert done.returncode == 0, done.stderr
        has_native, error = done.stdout.split()
        assert has_native == "True"
        errors.append(float(error))
    assert errors[0] < 1e-6 < 1e-5 < errors[1]
