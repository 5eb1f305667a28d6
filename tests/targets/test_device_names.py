"""One name or number for a device: attached ones, GPUs, phones and systems on a chip, in Python and as `--device`."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import romou
from romou.base.errors import DeviceError, UsageError
from romou.cli import main
from romou.cli.common import LOADING
from romou.devices.backends import backend
from romou.devices.hardware import known_shipped_devices, known_socs, soc_called
from romou.devices.targets import Target, attached_index, device_text, with_device
from romou.driver.options import TuneOptions
from romou.driver.search.ahead import DeviceProbe
from romou.tools.report.evidence import Evidence
from support.models.small_networks import NetworkBuilder

ATTACHED = backend("opencl").list_devices()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("adreno740", "adreno740"),
        ("QUALCOMM Adreno(TM) 740", "adreno740"),
        ("Snapdragon 8 Gen 2", "adreno740"),
        ("Qualcomm snapdragon 8gen2", "adreno740"),
        ("8 Gen 2", "adreno740"),
        ("SM8550", "adreno740"),
        ("sm8550-ab", "adreno740"),
        ("Redmi K70", "adreno740"),
        ("Snapdragon 8+ Gen 1", "adreno730"),
        ("Google Pixel 8", "mali_g715"),
        ("Pixel 6", "mali_g78"),
        ("Dimensity 9300", "mali_g720"),
        ("Samsung Galaxy S23 Ultra", "adreno740"),
        ("S23+", "adreno740"),
        ("Galaxy S20 (Exynos)", "mali_g77"),
        ("galaxy s20 snapdragon", "adreno650"),
        ("Pixel 4a 5G", "adreno620"),
        ("Xiaomi Redmi K70", "adreno740"),
        ("Xiaomi 12", "adreno730"),
        ("OnePlus 12", "adreno750"),
        ("host", "host"),
    ],
)
def test_names_of_gpus_phones_and_socs(name: str, gpu: str) -> None:
    assert with_device(Target("opencl"), name) == (Target(f"opencl -device={gpu}"), None)
    assert with_device(Target("opencl -images=never"), name)[0] == Target(f"opencl -device={gpu} -images=never")


def test_every_row_of_the_table_has_a_gpu_and_a_source() -> None:
    assert len(known_socs()) > 40
    names = [name for soc in known_socs() for name in (soc.name, *soc.phones)]
    assert len(names) == len(set(names))
    for soc in known_socs():
        assert soc.gpu in known_shipped_devices(), soc
        assert soc.source.endswith(".json") or " on GitHub, " in soc.source, soc
        for name in (soc.name, *soc.phones):
            assert soc_called(name) == soc


def test_attached_devices_by_number_and_name() -> None:
    for number, facts in enumerate(ATTACHED):
        for device in (number, str(number), f"opencl:{number}"):
            assert with_device(Target("opencl"), device) == (Target("opencl"), number)
        first = next(i for i, other in enumerate(ATTACHED) if facts["platform"] in other["platform"])
        assert with_device(Target("opencl"), str(facts["platform"]).upper()) == (Target("opencl"), first)
        assert str(facts["name"]) in device_text(Target("opencl"), number)
    assert with_device(Target("opencl"), "vulkan:0") == (Target("vulkan"), 0)
    assert with_device(Target("opencl"), None) == (Target("opencl"), None)


@pytest.mark.parametrize(
    ("target", "device", "error", "text"),
    [
        ("opencl", "adren0740", UsageError, "unknown device 'adren0740'.*Did you mean 'adreno740'"),
        (
            "opencl",
            "Samsung Galaxy S20",
            UsageError,
            r"attached: [^;]*\nDid you mean 'Galaxy S20 \(Snapdragon\)' or 'Galaxy S20 \(Exynos\)'\?",
        ),
        ("opencl", "Fairphone", UsageError, "attached: [^;]*\n`romou devices --all` lists GPUs, SoCs and phones"),
        ("opencl", "Pixel 99", UsageError, "unknown device 'Pixel 99'; it is a number of `romou devices`"),
        ("opencl", 99, DeviceError, "there is no OpenCL device 99"),
        ("opencl", -1, UsageError, "device=-1: must be a whole number, at least 0"),
        ("opencl", True, UsageError, "device=True: must be a whole number"),
        ("opencl -device=adreno640", "Pixel 8", UsageError, "device 'Pixel 8' is mali_g715, but the target is"),
        ("opencl -device=adreno640", "vulkan:0", UsageError, "is of kind vulkan, but the target is"),
    ],
)
def test_wrong_names(target: str, device: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        with_device(Target(target), device)


def test_a_saved_model_runs_only_on_attached_devices() -> None:
    named = Target("opencl -device=adreno640")
    assert attached_index(named, len(ATTACHED) - 1) == len(ATTACHED) - 1
    assert attached_index(named, None) is None
    with pytest.raises(DeviceError, match="no adreno640 is attached; there are: 0: "):
        attached_index(named, "Snapdragon 855")


def one_operator() -> Any:
    g = NetworkBuilder({"x": (1, 4)})
    return g.model(g.add("Exp", "x"))


def test_all_functions_take_it(tmp_path: Path) -> None:
    last = len(ATTACHED) - 1
    tuned = romou.compile(one_operator(), device=last, verify=False)
    assert tuned.device_index == last
    with contextlib.ExitStack() as stack:
        probe = DeviceProbe(Target("opencl"), None, TuneOptions(device=last).device_index())
        site, _ = stack.enter_context(probe.runner(romou.MeasureOptions(), identify=False))
        assert (site.index, site.name) == (last, ATTACHED[last]["name"])
    compiled = romou.compile(one_operator(), device="Snapdragon 855", verify=False)
    assert compiled.target == Target("opencl -device=adreno640")
    measured = romou.bench(one_operator(), device="sm8150", times=False)
    assert Target.from_json(measured.target) == Target("opencl -device=adreno640")
    loaded = romou.load(tuned.save(tmp_path / "m.romou"), device=str(ATTACHED[last]["platform"]))
    assert ATTACHED[loaded.device_index]["platform"] == ATTACHED[last]["platform"]
    with pytest.raises(UsageError, match="device=0 is one of this machine, but the devices are at"):
        romou.tune(one_operator(), device=0, rpc="127.0.0.1:1/key")


def test_commands_name_their_device_first_unless_they_are_quiet(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(one_operator().SerializeToString())
    saved = tmp_path / "m.romou"
    compiling = ["compile", str(model), "--no-verify", "-o", str(saved), "--device"]
    assert invoke(*compiling, "Pixel 8").stderr.splitlines()[:2] == [
        LOADING,
        "Device: Arm Mali-G715, Immortalis-G715, not attached",
    ]
    here = f"{LOADING}\nDevice: opencl:0 {ATTACHED[0]['name']} ("
    assert invoke(*compiling, "0").stderr.startswith(here)
    assert invoke(*compiling, "0", "-q").stderr == ""
    for arguments in (["run", str(saved)], ["bench", str(model), "--save", str(tmp_path / "b.json"), "--no-times"]):
        assert invoke(*arguments, "--device", "0").stderr.startswith(here)


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "--memory"], ["inspect", "--knobs"], ["space"]])
def test_commands_that_run_nothing_take_a_device_too(arguments: list[str], tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(one_operator().SerializeToString())
    done = invoke(*arguments, str(model), "--device", "Pixel 8", "--json")
    assert json.loads(done.stdout)["target"] == "opencl -device=mali_g715", done.output


def test_a_report_takes_a_device_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = romou.bench(one_operator(), device="sm8150", times=False)
    monkeypatch.setattr("romou.api.report.write_page", lambda evidence, path: drawn.append(evidence) or path)
    drawn: list[Evidence] = []
    romou.write_report(measured.save(tmp_path / "b.json"))
    assert invoke("report", str(tmp_path / "b.json"), "--device", "Pixel 8").exit_code == 0
    assert [str(evidence.target) for evidence in drawn] == ["opencl -device=adreno640", "opencl -device=mali_g715"]


def test_a_run_on_another_device_than_the_models_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = tmp_path / "m.romou"
    romou.compile(one_operator(), device="adreno640", verify=False).save(saved)
    done = invoke("run", str(saved), "--repeat", "1")
    here = ATTACHED[0]["name"]
    assert done.exit_code == 0, done.output
    first = rf"Device: Qualcomm Adreno 640 .*, not attached; opencl:0 {re.escape(here)} .* in its place"
    assert re.fullmatch(first, done.stderr.splitlines()[1])
    assert f"no adreno640 is attached: the model was compiled for it and runs on {here}" in done.stderr + caplog.text


def test_a_target_that_is_only_a_device_says_what_to_write() -> None:
    done = invoke("compile", "bundled:squeezenet1_0", "--target", "Snapdragon 8 Gen 2".replace(" ", ""))
    assert done.exit_code == 2
    assert "'opencl -device=adreno740'" in done.stderr
    assert "--device adreno740" in done.stderr
