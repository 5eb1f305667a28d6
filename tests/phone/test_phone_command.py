"""`romou phone` with a stand-in for adb and a phone: it records its calls, and the phone's programs run in a folder
here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tvm
from click.testing import CliRunner, Result
from tvm import rpc

import romou
from romou.cli import main
from romou.runtime.deploy.phone import FOLDER
from support.models.small_networks import NetworkBuilder
from support.servers.rpc_servers import free_port

# Acts on state.json in its folder: devices (serial -> state), properties, forwards. The phone's folder is phone/ there.
ADB = f"""#!{sys.executable}
import json, pathlib, shutil, subprocess, sys
here = pathlib.Path(__file__).parent
state = json.loads((here / "state.json").read_text())
def save(): (here / "state.json").write_text(json.dumps(state))
words = sys.argv[1:]
with open(here / "calls", "a") as log: log.write(json.dumps(words) + "\\n")
serial = None
if words[0] == "-s":
    serial, words = words[1], words[2:]
    if state["devices"].get(serial) != "device": sys.exit(f"adb: device '{{serial}}' not found")
if words[0] == "devices":
    print("List of devices attached")
    for name, how in state["devices"].items(): print(name + "\\t" + how)
elif words[0] == "push":
    if state.get("push_fails"): print("adb: error: failed to copy: No space left on device"); sys.exit(1)
    shutil.copytree(words[1].removesuffix("/."), words[2].replace("{FOLDER}", str(here / "phone")), dirs_exist_ok=True)
elif words[0] == "pull":
    source = pathlib.Path(words[1].replace("{FOLDER}", str(here / "phone")))
    shutil.copytree(source, pathlib.Path(words[2]) / source.name, dirs_exist_ok=True)
elif words[0] in ("forward", "reverse"):
    ports = state[words[0]]
    if words[1] == "--list": print("".join((serial if words[0] == "forward" else "UsbFfs") + f" {{a}} {{b}}\\n" for a, b in ports))
    elif words[1] == "--remove": state[words[0]] = [p for p in ports if p[0] != words[2]]; save()
    else: ports.append(words[1:]); save()
elif words[0] == "shell":
    command = words[1].replace("{FOLDER}", str(here / "phone"))
    if command.startswith("getprop "): print(state["properties"].get(command.split()[1], "")); sys.exit()
    sys.exit(subprocess.run(["sh", "-c", command]).returncode)
"""  # noqa: E501
PROPERTIES = {
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.product.manufacturer": "Google",
    "ro.product.model": "Pixel 4",
    "ro.build.version.release": "13",
    "ro.board.platform": "msmnile",
}


class FakePhone:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "adb").write_text(ADB)
        (folder / "adb").chmod(0o755)
        self.set(devices={"P1": "device"}, properties=PROPERTIES, forward=[], reverse=[])

    def set(self, **changes: Any) -> None:
        path = self.folder / "state.json"
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "state.json").read_text()))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePhone]:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield FakePhone(folder)
    for process in psutil.process_iter(["exe"]):
        if (process.info["exe"] or "").startswith(str(folder)):
            process.kill()


@pytest.fixture
def runtime(host_runtime: Path, tmp_path: Path) -> Path:
    """Return this machine's runtime, labelled as a phone's: pushed files run here."""
    folder = shutil.copytree(host_runtime, tmp_path / "runtime")
    facts = json.loads((folder / "runtime.json").read_text())
    (folder / "runtime.json").write_text(json.dumps(facts | {"target": "android-arm64"}))
    return folder


def invoke(*arguments: str, key: str | None = None) -> Result:
    return CliRunner().invoke(main, ["phone", *arguments], env={"ROMOU_RPC_KEY": key})


def test_push_start_use_status_stop(fake: FakePhone, runtime: Path) -> None:
    assert invoke("push", str(runtime)).output == f"the runtime is on P1, in {FOLDER}\n"
    assert ["-s", "P1", "push", f"{runtime}/.", f"{FOLDER}/"] in fake.calls
    port, tracker_port = free_port(), free_port()
    started = invoke("start", "--port", str(port), "--timeout", "60", "--json", key="secret")
    assert json.loads(started.stdout) == {"serial": "P1", "rpc": f"127.0.0.1:{port}/secret"}
    assert ["-s", "P1", "forward", f"tcp:{port}", f"tcp:{port}"] in fake.calls
    # No list of processes shows the key, here or on the phone.
    running = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert any(f"--port {port}" in command for command in running)
    assert not any("secret" in command for command in [*running, *map(str, fake.calls)])
    device = rpc.connect("127.0.0.1", port, "secret").device("opencl", 0)
    np.testing.assert_array_equal(tvm.runtime.tensor(np.arange(5), device).numpy(), np.arange(5))
    again = invoke("start", "--port", str(port), key="secret")
    assert (again.exit_code, "already running on P1 (process" in again.output, "romou phone stop" in again.output) == (
        3,
        True,
        True,
    )
    refused = invoke("push", str(runtime))
    assert (refused.exit_code, "an RPC server is running on P1" in refused.output) == (3, True)
    status = invoke("status")
    assert status.exit_code == 0
    assert "phone:   Google Pixel 4, msmnile, Android 13 (P1)" in status.output
    assert re.search(r"OpenCL: +\S.* through libOpenCL", status.output)
    assert re.search(r"Vulkan: +llvmpipe.* through libvulkan", status.output)
    assert re.search(r"server: +running, process \d+", status.output)
    assert f"forward tcp:{port} tcp:{port}" in status.output
    assert invoke("stop").output == "the RPC server on P1 is stopped\n"
    assert fake.state["forward"] == []
    assert json.loads(invoke("status", "--json").stdout)["server_pid"] is None
    assert invoke("stop").output == "the RPC server on P1 was not running\n"
    assert invoke("start", "--key", "k", "--port", str(port), "--tracker", f"127.0.0.1:{tracker_port}").exit_code == 0
    assert fake.state["reverse"] == [[f"tcp:{tracker_port}", f"tcp:{tracker_port}"]]
    invoke("stop")
    assert fake.state["reverse"] == []


@pytest.mark.parametrize(
    ("devices", "options", "code", "message"),
    [
        ({}, (), 3, "romou: adb sees no phone\nhint: Attach it by USB, turn on developer options and USB debugging"),
        (
            {"P1": "unauthorized"},
            (),
            3,
            "romou: the phone P1 does not trust this machine yet\nhint: Unlock it and confirm",
        ),
        ({"P1": "offline"}, (), 3, "romou: the phone P1 does not answer (adb says: offline)\nhint: Replug it"),
        ({"P1": "no permissions (missing udev rules?)"}, (), 3, "android-sdk-platform-tools-common"),
        (
            {"P1": "device", "P2": "device"},
            (),
            2,
            "romou: several phones are attached: P1, P2\nhint: Choose one: --serial NUMBER",
        ),
        ({"P1": "device"}, ("--serial", "P3"), 2, "romou: no phone has the serial number P3; attached: P1"),
    ],
)
def test_a_missing_phone_is_told_with_what_to_do(
    fake: FakePhone, devices: dict[str, str], options: tuple[str, ...], code: int, message: str
) -> None:
    fake.set(devices=devices)
    for arguments in (("start", "--key", "k"), ("stop",), ("status",)):
        result = invoke(*arguments, *options)
        assert result.exit_code == code
        assert message in result.output


def test_one_of_several_phones(fake: FakePhone, runtime: Path) -> None:
    fake.set(devices={"P1": "unauthorized", "P2": "device"})
    assert invoke("push", str(runtime), "--serial", "P2").exit_code == 0
    assert ["-s", "P2", "push", f"{runtime}/.", f"{FOLDER}/"] in fake.calls


def test_without_adb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = invoke("status")
    assert result.exit_code == 3
    assert (
        "romou: adb is not on the PATH\nhint: apt-get install adb (Debian, Ubuntu), or Android's platform-tools."
        in result.output
    )


def test_what_is_pushed_must_be_a_phones_runtime(
    fake: FakePhone, runtime: Path, host_runtime: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    result = invoke("push", str(tmp_path / "other"))
    assert (
        result.exit_code,
        "other holds no runtime for a phone: No such file or directory\nhint: Build it: romou phone build"
        in result.output,
    ) == (2, True)
    result = invoke("push", str(host_runtime))
    assert (result.exit_code, "was built for host; P1 is a phone with arm64-v8a" in result.output) == (2, True)
    fake.set(push_fails=True)
    result = invoke("push", str(runtime))
    assert (
        result.exit_code,
        "adb could not push the runtime: adb: error: failed to copy: No space left on device" in result.output,
    ) == (3, True)


def test_a_phone_writes_nothing_outside_of_the_model(fake: FakePhone, tmp_path: Path) -> None:
    """What it names are not the variants that were pushed, and its texts may be of any encoding."""
    other = tmp_path / "other"
    adb = (fake.folder / "adb").read_text()
    answers = f'''
    if "ls -d" in words[1]: print("{other}/programs ../up/programs mine/programs"); sys.exit()
    if "runtime.json" in words[1]: print("{{}}"); sys.exit()
    if words[1].startswith("getprop"): sys.stdout.buffer.write(b"caf\\xe9"); sys.exit()
    if "romou" in words[1]: sys.exit()
'''
    start = 'elif words[0] == "shell":'
    assert start in adb
    (fake.folder / "adb").write_text(adb.replace(start, start + answers))
    (tmp_path / "model" / "mine").mkdir(parents=True)
    (tmp_path / "model" / "model.json").write_text("{}")
    (fake.folder / "phone" / "warm" / "mine" / "programs").mkdir(parents=True)
    result = invoke("warm", str(tmp_path / "model"))
    assert result.exit_code == 0, result.output
    pulled = [call for call in fake.calls if "pull" in call]
    assert [call[-1] for call in pulled] == [str(tmp_path / "model" / "mine")]
    assert not other.exists()
    assert not (tmp_path / "up").exists()
    status = invoke("status", "--json")
    assert json.loads(status.stdout)["android"] == "caf\ufffd"


def test_without_a_runtime_on_the_phone(fake: FakePhone) -> None:
    result = invoke("start", "--key", "k")
    assert (result.exit_code, "the runtime is not on P1\nhint: Build and push it" in result.output) == (3, True)
    status = invoke("status")
    assert status.exit_code == 3
    assert "runtime: not pushed" in status.output
    assert "OpenCL:  none: the runtime is not on the phone: romou phone push FOLDER" in status.output


def test_a_phone_without_a_driver(fake: FakePhone, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROMOU_OPENCL_LIBRARY", "/vendor/lib64/libOpenCL.so")
    invoke("push", str(runtime))
    # Vulkan is left.
    assert invoke("status").exit_code == 0
    monkeypatch.setenv("ROMOU_VULKAN_LIBRARY", "/vendor/lib64/libvulkan.so")
    status = invoke("status")
    assert status.exit_code == 3
    assert re.search(r"Vulkan: +none: .*/vendor/lib64/libvulkan.so: ", status.output.replace("\n", " "))
    assert re.search(r"OpenCL: +none: .*/vendor/lib64/libOpenCL.so: ", status.output.replace("\n", " "))


def test_a_server_that_cannot_start_leaves_no_ports(fake: FakePhone, runtime: Path) -> None:
    import socket

    invoke("push", str(runtime))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = invoke("start", "--key", "k", "--port", str(port))
    assert result.exit_code == 3
    assert (
        f"does not start: romou_rpc_server: cannot listen on 127.0.0.1:{port}: Address already in use"
        in result.output.replace("\n", " ")
    )
    assert fake.state["forward"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--key", "a/b"), "romou: the key must be a word without spaces, slashes and colons"),
        (("--key", "k", "--tracker", "here"), "romou: tracker 'here': write host:port"),
        (
            ("--key", "k", "--tracker", "10.0.0.9:9190"),
            "the tracker is on 10.0.0.9; a phone on a cable reaches those of this machine only",
        ),
    ],
)
def test_wrong_options(fake: FakePhone, options: tuple[str, ...], message: str) -> None:
    result = invoke("start", *options)
    assert (result.exit_code, message in result.output) == (2, True)


def test_warm_brings_the_phones_programs_back(fake: FakePhone, runtime: Path, tmp_path: Path) -> None:
    """The exported folder then holds the programs of that device. Nothing of it stays on the phone."""
    graph = NetworkBuilder({"x": (1, 3, 7, 7)})
    model = romou.compile(graph.model(graph.conv("x", 3, 5)), target="opencl -device=host", verify=False)
    exported = model.export_android(tmp_path / "model", host="x86_64-linux-gnu")
    early = invoke("warm", str(exported))
    assert (early.exit_code, "the runtime is not on P1" in early.output) == (3, True)
    assert invoke("push", str(runtime)).exit_code == 0
    warmed = invoke("warm", str(exported), "--json")
    assert warmed.exit_code == 0, warmed.output
    found = json.loads(warmed.stdout)
    (compiled,) = re.findall(r"programs +\S+ ms  0 loaded, (\d+) compiled", found["printed"])
    assert found["programs"] == int(compiled) == len(list(exported.glob("*/programs/*.program"))) > 0
    assert not (fake.folder / "phone" / "warm").exists()
    # A device of the same kind has nothing to compile.
    assert re.search(rf"programs +\S+ ms  {compiled} loaded, 0 compiled", invoke("warm", str(exported)).output)
    wrong = invoke("warm", str(tmp_path))
    assert (wrong.exit_code, "lacks model.json" in wrong.output) == (2, True)
