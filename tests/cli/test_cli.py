"""The command line as a person and as a program meets it: exit codes, one-line errors, JSON on stdout."""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

import romou
from romou.base.environment import VARIABLES
from romou.base.errors import DeviceError, UsageError
from romou.cli import COMMANDS, main
from romou.cli.common import LOADING, debug_option
from romou.devices.backends import backend
from romou.devices.hardware import known_devices
from romou.devices.targets import with_device
from support.models.small_networks import NetworkBuilder
from support.servers import forked


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run("-m", "romou.cli", *arguments, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def no_platform(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment without platforms of OpenCL or Vulkan for any loader."""
    empty = tmp_path_factory.mktemp("vendors")
    # A named library is the only one: a driver from PyPI is not opened in addition.
    return {
        "OCL_ICD_VENDORS": str(empty),
        "ROMOU_OPENCL_LIBRARY": "libOpenCL.so.1",
        "VK_DRIVER_FILES": str(empty / "none.json"),
    }


def test_help_lists_the_commands_without_loading_tvm() -> None:
    code = (
        "import sys\nfrom romou.cli import main\ntry: main(['--help'])\nexcept SystemExit as e: print(e.code, 'tvm' in"
        " sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "0 False"
    for name in COMMANDS:
        assert name in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tun"], "Did you mean 'tune'?"),
        (["tune"], "Missing argument 'MODEL'"),
        (["tune", "--trial", "3", "x.onnx"], "Did you mean"),
        (
            ["tune", "none.onnx"],
            "romou: model file 'none.onnx' does not exist\nhint: Bundled networks: bundled:alexnet, ",
        ),
        (
            ["tune", "resnet18"],
            "romou: model file 'resnet18' does not exist\nhint: bundled:resnet18 is a bundled network.",
        ),
        (["tune", "bundled:resnet19"], "romou: unknown bundled model 'resnet19'"),
        (
            ["tune", "bundled:squeezenet1_0", "--allow-tf32"],
            "romou: TF32 is a format of NVIDIA's tensor cores; the target is 'opencl'",
        ),
        (
            ["tune", "x.onnx", "--target", "metal"],
            "romou: unknown target kind 'metal'; known: cuda, null, opencl, vulkan",
        ),
        (
            ["tune", "x.onnx", "--shape", "a"],
            "romou: --shape 'a': expected NAME=SIZES\nhint: For example --shape input=1,3,224,224",
        ),
        (["tune", "x.onnx", "--shape", "a=1,-3"], "romou: --shape 'a=1,-3': expected NAME=SIZES"),
        (["tune", "x.onnx", "--shape", "a=1", "--shape", "a=1"], "romou: --shape gives 'a' the shape (1,) twice"),
        (
            ["tune", "x.onnx", *(word for s in ("a=1", "a=2", "a=3", "b=1", "b=2") for word in ("--shape", s))],
            "romou: --shape gives 'b' 2 shapes, and another input 3",
        ),
        (["tune", "x.onnx", "--dim", "a=1", "--dim", "a=2"], "romou: --dim gives 'a' twice: (1,) and (2,)"),
        (["tune", "x.onnx", "--pad", "a=zero"], "romou: --pad 'a=zero': expected NAME=VALUE"),
        (["tune", "x.onnx", "--trials", "-1"], "Invalid value for '--trials'"),
        (
            ["inspect", "bundled:resnet18", "--target", "cuda -device=nvidia_h200", "--gpu", "a630"],
            "romou: --gpu asks compilers of OpenCL C",
        ),
        (
            ["inspect", "bundled:resnet18", "--target", "opencl -device=adreno840", "--gpu"],
            "romou: Mesa has no compiler for adreno840; it has them for a618",
        ),
        (
            ["inspect", "bundled:resnet18", "--gpu", "a63", "--target", "opencl -device=adreno640"],
            "romou: unknown mobile GPU 'a63'; known: a618",
        ),
        (
            ["devices", "--facts", "adreno740", "--compare", "adreno740", "adreno750"],
            "romou: --facts and --compare are both given; use one",
        ),
        (["run", "none.romou"], "romou: model 'none.romou' does not exist\nhint: `romou tune MODEL` makes one."),
    ],
)
def test_wrong_use_is_exit_code_2_and_one_message(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_json_error_is_a_document_on_stdout() -> None:
    result = invoke("tune", "none.onnx", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["type"] == "UsageError"
    assert "none.onnx" in result.stderr


@pytest.mark.parametrize("arguments", [["--debug", "run", "none.romou"], ["run", "--debug", "none.romou"]])
def test_debug_shows_the_traceback(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr


def test_debug_by_environment() -> None:
    assert "Traceback" in run_process("run", "none.romou", ROMOU_DEBUG="1").stderr
    assert "Traceback" not in run_process("run", "none.romou", ROMOU_DEBUG="0").stderr


def test_devices_lists_attached_and_known() -> None:
    result = invoke("devices", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert {"backend", "index", "name", "platform", "type", "driver"} <= set(data["attached"][0])
    names = [entry["name"] for entry in data["known"]]
    assert sorted(names) == sorted(known_devices()), "each once"
    assert [entry["name"] for entry in data["known"] if "cuda" in entry["kinds"]] == ["nvidia_h200"]
    attached, everything = invoke("devices").stdout, invoke("devices", "--all").stdout
    assert all(entry["name"] in attached and entry["name"] in everything for entry in data["attached"])
    assert "adreno640" not in attached
    for entry in data["known"]:
        assert len(re.findall(rf"^ *{entry['name']} ", everything, re.MULTILINE)) == 1
        for phone in entry["found_in"]:
            assert phone in " ".join(everything.split())


def test_devices_prints_and_compares_facts() -> None:
    """A device is also found by a driver's name. Each fact has its source, and an unknown fact shows the nearest
    measured GPU's.
    """
    text = " ".join(invoke("devices", "--facts", "QUALCOMM Adreno(TM) 740").stdout.replace("│", " ").split())
    assert "adreno740: Qualcomm Adreno 740" in text
    assert "dram_bandwidth_gbps not known GB/s adreno640 has 28" in text
    assert "max_work_group_size 1024 work-items drivers of Adreno 530" in text
    facts = json.loads(invoke("devices", "--facts", "adreno740", "--json").stdout)
    assert (facts["nearest"], facts["facts"]["shader_cores"]["value"]) == ("adreno640", 6)
    different = invoke("devices", "--compare", "adreno740", "adreno750").stdout
    assert "clock_mhz" in different
    assert "shader_cores" not in different
    assert "Did you mean 'adreno740'?" in invoke("devices", "--facts", "adreno741").output


def test_doctor_finds_this_machine_well() -> None:
    result = invoke("doctor", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0, data
    assert data["has_usable_device"] is True
    assert data["exit_code"] == 0
    names = [finding["name"] for finding in data["findings"]]
    assert {"python", "packages", "linker", "vendors", "opencl:0", "vulkan:0"} <= set(names)
    assert data["devices"][0]["is_usable"] is True


def test_doctor_in_words() -> None:
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    assert "a tiny kernel ran and its result is right" in " ".join(result.stdout.split())
    limited = [finding for finding in json.loads(invoke("doctor", "--json").stdout)["findings"] if finding["limits"]]
    assert ("All is well." in result.stdout) is (not limited)
    assert result.stdout.count("left out: ") == sum(len(finding["limits"]) for finding in limited)


def test_doctor_counts_faults_that_are_avoided_and_lists_them_on_request() -> None:
    found = romou.doctor()
    faults = [finding for finding in found.findings if finding.is_avoided_fault]
    assert faults, "each driver of the tests has some"
    short, long = invoke("doctor").stdout, invoke("doctor", "-v").stdout
    assert repr(found) == f"Diagnosis({short.splitlines()[-1]})"
    for finding in faults:
        assert finding.name not in short
        assert finding.name in long
    counts = re.findall(r"known faults of its driver that kernels avoid: (\d+); -v lists them", " ".join(short.split()))
    assert sum(map(int, counts)) == len(faults)


def test_help_is_a_word_too() -> None:
    assert invoke("help", "tune").stdout == invoke("tune", "--help").stdout
    assert invoke("help", "phone", "push").stdout == invoke("phone", "push", "--help").stdout
    assert invoke("help").stdout == invoke("--help").stdout


def test_doctor_calls_a_device_with_wrong_results_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "ArithmeticError: int64(x) < 5: 13 of 32 values wrong"
    monkeypatch.setattr(
        "romou.devices.backends.base.run_probe", lambda *_, **__: ({"buffers": None, "int64": wrong}, None)
    )
    result = invoke("doctor")
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "limited opencl:0" in words
    assert "left out: comparisons of 64 bits: the driver compiles them wrongly, so kernels compare in 32 bits" in words
    assert "limited. The rest is well." in words
    assert "All is well" not in words


def test_without_a_platform_the_exit_code_is_3_and_doctor_says_what_to_install(no_platform: dict[str, str]) -> None:
    result = run_process("doctor", **no_platform)
    assert result.returncode == 3, result.stdout + result.stderr
    words = " ".join(result.stdout.split())
    assert "no platform offers a device" in words
    assert "apt-get install pocl-opencl-icd" in words
    data = json.loads(run_process("doctor", "--json", **no_platform).stdout)
    assert (data["has_usable_device"], data["exit_code"], data["devices"]) == (False, 3, [])
    assert any("pocl-opencl-icd" in (finding["hint"] or "") for finding in data["findings"])


def test_devices_without_a_platform(no_platform: dict[str, str]) -> None:
    result = run_process("devices", "--json", **no_platform)
    assert result.returncode == 3
    assert json.loads(result.stdout)["attached"] == []
    assert "romou doctor" in result.stderr


def test_doctor_reports_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes.util

    from romou.base.errors import CompatError
    from tvm_patches import compat

    def mismatch() -> None:
        raise CompatError("apache-tvm 0.1 is installed", hint="pip install apache-tvm==0.27.0.post1")

    monkeypatch.setattr(compat, "check_versions", mismatch)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("ROMOU_DEBGU", "1")
    monkeypatch.delenv("ROMOU_OPENCL_DEVICE", raising=False)
    result = invoke("doctor", "--json")
    assert result.exit_code == 1
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert findings["packages"]["hint"] == "pip install apache-tvm==0.27.0.post1"
    assert findings["linker"]["hint"] == "apt-get install g++ (Debian, Ubuntu), or without root: pip install ziglang"
    assert "did you mean ROMOU_DEBUG" in findings["environment"]["detail"]
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert "apt-get install ocl-icd-libopencl1" in (backend("opencl").diagnose().hint or "")


def test_an_unexpected_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from romou.devices.backends.opencl import OpenCL

    def bug(self: OpenCL) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(OpenCL, "list_devices", bug)
    result = invoke("devices")
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_device_error_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    from romou.devices.backends.opencl import OpenCL

    def broken(self: OpenCL) -> Any:
        raise DeviceError("gone", hint="plug it in")

    monkeypatch.setattr(OpenCL, "list_devices", broken)
    result = invoke("devices")
    assert result.exit_code == 3
    assert result.stderr == f"{LOADING}\nromou: gone\nhint: plug it in\n"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_errors_and_hints_are_marked_with_colours_in_a_terminal(no_color: str) -> None:
    """Only there, and not with NO_COLOR: `test_a_device_error_is_exit_code_3` has the same lines in a pipe."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "romou.cli", "devices", "--facts", "adreno741"]
    done = subprocess.run(command, stderr=terminal, env={**os.environ, "NO_COLOR": no_color}, check=False)
    loading, error, hint = os.read(controller, 4096).decode().splitlines()
    os.close(terminal)
    os.close(controller)
    assert done.returncode == 2
    assert loading == LOADING
    red, cyan, plain = ("", "", "") if no_color else ("\x1b[31m\x1b[1m", "\x1b[36m\x1b[1m", "\x1b[0m")
    assert error.startswith(f"{red}romou:{plain} unknown device 'adreno741'")
    assert hint == f"{cyan}hint:{plain} Did you mean 'adreno740'?"


def test_inputs_from_files_are_checked(tmp_path: Path) -> None:
    from romou.base.inputs import random_inputs
    from romou.cli.run import read_inputs

    signature = {"x": ((1, 3), "float32"), "ids": ((2,), "int64")}
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    assert read_inputs((f"x={tmp_path}/x.npy",), signature)["x"].sum() == 3
    with pytest.raises(UsageError, match=r"holds float32 \(1, 3\); the model takes int64 \(2,\)"):
        read_inputs((f"ids={tmp_path}/x.npy",), signature)
    with pytest.raises(UsageError, match="unknown input 'id'; known: ids, x\nDid you mean 'ids'?"):
        read_inputs((f"id={tmp_path}/x.npy",), signature)
    with pytest.raises(UsageError, match="cannot read"):
        read_inputs((f"x={tmp_path}/bad.npy",), signature)
    with pytest.raises(UsageError, match="expected NAME=FILE.npy"):
        read_inputs(("x",), signature)
    values = random_inputs(signature, seed=0)
    assert {name: (value.shape, str(value.dtype)) for name, value in values.items()} == signature
    assert set(np.unique(values["ids"])) <= {0, 1}
    np.testing.assert_array_equal(values["x"], random_inputs(signature, seed=0)["x"])


def test_a_variable_that_names_no_device_is_one_error(tmp_path: Path) -> None:
    """Each command gives the same one."""
    saved = tmp_path / "m.romou"
    g = NetworkBuilder({"x": (1, 4)})
    romou.compile(g.model(g.add("Exp", "x")), target="opencl -device=host", verify=False).save(saved)
    for kind, title, command in (
        ("OPENCL", "OpenCL", ["devices"]),
        ("OPENCL", "OpenCL", ["run", str(saved)]),
        ("VULKAN", "Vulkan", ["devices"]),
    ):
        done = run_process(*command, **{f"ROMOU_{kind}_DEVICE": "foo"})
        assert (done.returncode, done.stdout) == (2, ""), command
        loading, error, _ = done.stderr.splitlines()
        assert loading == LOADING
        assert error.startswith(f"romou: ROMOU_{kind}_DEVICE='foo' matches no {title} device; found are: ")


def test_the_meaning_of_the_variable_is_what_happens(tmp_path: Path) -> None:
    """Devices that match come first. No device is hidden."""
    both = [json.loads(run_process("devices", "--json", ROMOU_OPENCL_DEVICE=number).stdout) for number in ("", "1")]
    names = [[entry["name"] for entry in found["attached"] if entry["backend"] == "opencl"] for found in both]
    assert sorted(names[0]) == sorted(names[1])
    assert len(names[0]) < 2 or names[0][1] == names[1][0]
    assert "come first" in VARIABLES["ROMOU_OPENCL_DEVICE"].help
    assert "come first" in VARIABLES["ROMOU_VULKAN_DEVICE"].help


def test_the_cpu_is_named_by_no_other_kind() -> None:
    known = {entry["name"]: entry for entry in json.loads(invoke("devices", "--json").stdout)["known"]}
    assert "vulkan" in known["host"]["kinds"]
    assert "OpenCL" not in known["host"]["title"]


def test_devices_are_data_in_python() -> None:
    """Each name that is listed is one that `device` takes."""
    devices = romou.devices()
    assert devices == json.loads(invoke("devices", "--json").stdout)["attached"]
    assert romou.devices is importlib.import_module("romou.devices"), "its rooms are imported as ever"
    assert "opencl:0" in [each["device"] for each in devices]
    for each in devices:
        assert {"name", "platform", "driver", "type"} <= set(each)
        assert with_device(romou.Target(each["backend"]), each["device"])[1] == each["index"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["tune"], f"{LOADING}\nworking\n"), (["tune", "-q"], "working\n"), (["version"], "working\n")],
)
def test_the_first_line_comes_before_tvm_is_loaded(words: list[str], expected: str) -> None:
    @debug_option
    def work() -> None:
        click.echo("working", err=True)

    assert CliRunner().invoke(click.command(words[0])(work), words[1:]).stderr == expected


@pytest.mark.parametrize("command", [["tune", "--trials", "2"], ["compile"]])
def test_a_machine_without_a_linker_says_so_at_the_start(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("romou.compiler.compilation.import_model", None)  # nothing is begun
    result = invoke(*command, "-q", "bundled:squeezenet1_0", "-o", str(tmp_path / "m.romou"))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "romou: no linker, which every tuned or saved model needs: none of g++, clang++, c++, gcc, clang, cc, ld,"
        " ld.lld is on PATH",
        "hint: apt-get install g++ (Debian, Ubuntu), or without root: pip install ziglang",
    ]
