"""A phone behind adb: push the runtime of `romou phone build`, start, stop and inspect its RPC server.

All files on the phone are in `FOLDER`. The server listens on the phone's loopback. adb forwards a port of this machine
to it, so that `rpc="127.0.0.1:PORT/KEY"` reaches it and no port is open to a network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import tvm_patches
from romou.base.errors import DeviceError, UsageError
from romou.base.files import read_file
from romou.base.foreign import parsed, refused
from romou.base.schema import made_of
from romou.devices.backends import device_backends
from romou.runtime.deploy.export import META
from romou.runtime.rpc.keys import checked

FOLDER = "/data/local/tmp/romou"
SERVER, BENCH = "romou_rpc_server", "romou_bench"
BUILD_SCRIPT = Path(tvm_patches.__file__).with_name("build_phone_runtime.sh")
BUILD = "romou phone build --out FOLDER"
_LOG, _PID = f"{FOLDER}/server.log", f"{FOLDER}/server.pid"
_WARM = f"{FOLDER}/warm"
_PROGRAMS = "programs"
_ABIS = {"android-arm64": "arm64-v8a"}
_START_PATIENCE_S = 15.0
_ADB_PATIENCE_S = 120.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Device:
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Report:
    """The report of a phone's server on one kind of device."""

    library: str | None = None
    devices: tuple[_Device, ...] = ()
    failure: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhoneDriver:
    """The driver for one kind of device on a phone.

    title: name of the kind, for example "OpenCL".
    library: the library that the server opens, or None.
    devices: names of the devices.
    failure: why there are no devices.
    """

    title: str
    library: str | None
    devices: tuple[str, ...]
    failure: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhoneStatus:
    """The state of a phone, with one driver for each kind of device that the runtime supports."""

    serial: str
    model: str
    android: str
    soc: str
    runtime: dict[str, str] | None
    drivers: tuple[PhoneDriver, ...]
    server_pid: int | None
    forwarded: tuple[str, ...]


class Phone:
    """A phone, chosen by `serial` if several are attached.

    Raise DeviceError if adb is missing, no phone is attached, or the phone refuses this machine. The hint says what to
    do. Raise UsageError if several phones are attached and none was chosen, or none has this serial number.
    """

    def __init__(self, serial: str | None = None) -> None:
        program = shutil.which("adb")
        if program is None:
            raise DeviceError(
                "adb is not on the PATH", hint="apt-get install adb (Debian, Ubuntu), or Android's platform-tools."
            )
        self._adb = [program]
        self.serial = _choose(self._run("devices", what="list phones"), serial)
        self._adb += ["-s", self.serial]

    def push(self, runtime: Path) -> None:
        """Copy the runtime folder to the phone.

        Raise UsageError if `runtime` is no such folder, or was built for another kind of machine. Raise DeviceError if
        a server is running, or adb fails.
        """
        facts = runtime_facts(runtime)
        abi, phone_abi = _ABIS.get(facts["target"]), self._property("ro.product.cpu.abi")
        if abi != phone_abi:
            raise UsageError(
                f"{runtime} was built for {facts['target']}; {self.serial} is a phone with {phone_abi}",
                hint=f"Build it for the phone: {BUILD}",
            )
        if self._server_pid() is not None:
            raise DeviceError(f"an RPC server is running on {self.serial}", hint="Stop it first: romou phone stop")
        # Files of an older version must not stay.
        self._shell(f"rm -rf {FOLDER} && mkdir -p {FOLDER}", what="make a folder")
        self._run("push", f"{runtime}/.", f"{FOLDER}/", what="push the runtime")
        self._shell(f"chmod 755 {FOLDER}/{SERVER} {FOLDER}/{BENCH}", what="make the programs executable")

    def start(self, *, key: str, port: int = 9090, tracker: str | None = None, timeout_s: float = 300.0) -> str:
        """Start the server in the background, forward `port` of this machine to it, and return the address for `rpc=`.

        key: key that clients have to send.
        port: port on both sides, different for each phone.
        tracker: "host:port" of a tracker on this machine, which the phone reaches through adb.
        timeout_s: a session without traffic for this time is ended. 0: never.
        """
        checked(key)
        tracker_port = None if tracker is None else _tracker_port(tracker)
        if self._pushed() is None:
            raise DeviceError(
                f"the runtime is not on {self.serial}", hint=f"Build and push it: {BUILD}, then romou phone push FOLDER"
            )
        pid = self._server_pid()
        if pid is not None:
            raise DeviceError(
                f"an RPC server is already running on {self.serial} (process {pid})",
                hint="Stop it first: romou phone stop",
            )
        options = ["--host", "127.0.0.1", "--port", str(port), "--timeout", f"{timeout_s:g}", "--work-dir", FOLDER]
        self._run("forward", f"tcp:{port}", f"tcp:{port}", what=f"forward port {port}")
        if tracker_port is not None:
            self._run(
                "reverse", f"tcp:{tracker_port}", f"tcp:{tracker_port}", what=f"lead the phone to port {tracker_port}"
            )
            options += ["--tracker", f"127.0.0.1:{tracker_port}"]
        command = shlex.join([f"./{SERVER}", *options])
        # A new session without open streams outlives the adb shell. The key is in no command line, here or there.
        environment = (
            f"read -r ROMOU_RPC_KEY; export ROMOU_RPC_KEY LD_LIBRARY_PATH={FOLDER} ROMOU_CACHE_DIR={FOLDER}/cache"
        )
        start = f"cd {FOLDER} || exit 1; {environment}; setsid {command} > {_LOG} 2>&1 < /dev/null & echo $! > {_PID}"
        self._shell(start, what="start the server", stdin=f"{key}\n")
        try:
            self._wait_for_server()
        except DeviceError:
            self._remove_forwards(port, tracker_port)
            raise
        return f"127.0.0.1:{port}/{key}"

    def stop(self) -> bool:
        """End the server and the forwarding. Return whether a server was running."""
        pid = self._server_pid()
        for kind in ("forward", "reverse"):
            for line in self._forwards(kind):
                self._run(kind, "--remove", line.split()[0], what="end the forwarding")
        if pid is None:
            return False
        # Wait until the server is gone and its port is free, because a second start may follow at once.
        until_gone = (
            f"n=0; while grep -q {SERVER} /proc/{pid}/cmdline 2> /dev/null && [ $n -lt 50 ]; do sleep 0.1; n=$((n +"
            " 1)); done"
        )
        self._shell(f"kill {pid}; {until_gone}; rm -f {_PID}", what="stop the server")
        return True

    def warm(self, folder: Path) -> str:
        """Run the exported model in `folder` on the phone, and copy its compiled programs to folder/VARIANT/programs.

        With them, devices of the same kind and driver need not compile. Other devices ignore them. Return the output of
        `romou_bench`.

        Raise UsageError if `folder` holds no exported model. Raise DeviceError if the runtime is not on the phone, or
        the model fails there.
        """
        if not (folder / META).is_file():
            raise UsageError(f"{folder} lacks {META}", hint="`romou export model.romou --android FOLDER` writes it.")
        if self._pushed() is None:
            raise DeviceError(
                f"the runtime is not on {self.serial}", hint=f"Build and push it: {BUILD}, then romou phone push FOLDER"
            )
        self._shell(f"rm -rf {_WARM} && mkdir -p {_WARM}", what="make a folder")
        try:
            self._run("push", f"{folder}/.", f"{_WARM}/", what="push the model")
            printed = self._shell(
                f"LD_LIBRARY_PATH={FOLDER} {FOLDER}/{BENCH} {_WARM} --repeats 1",
                what="run the model",
            )
            listed = self._shell(f"cd {_WARM} && ls -d */{_PROGRAMS}", what="find the programs").split()
            # Only into the variants that were pushed: the phone may name any folder.
            for variant in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
                if f"{variant.name}/{_PROGRAMS}" in listed:
                    where = f"{_WARM}/{variant.name}/{_PROGRAMS}"
                    self._run("pull", where, str(variant), what="pull the programs")
        finally:
            self._shell(f"rm -rf {_WARM}", what="remove the folder", is_checked=False)
        return printed

    def status(self) -> PhoneStatus:
        """Return the state that `romou phone status` prints."""
        pushed = self._pushed()
        missing = _Report(failure="the runtime is not on the phone: romou phone push FOLDER")
        kinds = [served for served in device_backends() if served.is_served]
        drivers = dict.fromkeys((kind.name for kind in kinds), missing) if pushed is None else self._drivers()
        return PhoneStatus(
            serial=self.serial,
            model=f"{self._property('ro.product.manufacturer')} {self._property('ro.product.model')}".strip(),
            android=self._property("ro.build.version.release"),
            soc=self._property("ro.soc.model") or self._property("ro.board.platform"),
            runtime=pushed,
            drivers=tuple(
                _driver(kind.title, drivers.get(kind.device_type) or drivers.get("") or _Report()) for kind in kinds
            ),
            server_pid=self._server_pid(),
            forwarded=tuple(f"{kind} {line}" for kind in ("forward", "reverse") for line in self._forwards(kind)),
        )

    def _wait_for_server(self) -> None:
        until = time.monotonic() + _START_PATIENCE_S
        while True:
            log = self._shell(f"cat {_LOG}", what="read the server's log", is_checked=False)
            if "serving on" in log:
                return
            if self._server_pid() is None or time.monotonic() > until:
                last = " | ".join(log.strip().splitlines()[-5:]) or "it wrote nothing"
                raise DeviceError(
                    f"the RPC server on {self.serial} does not start: {last}",
                    hint="`romou phone status` shows the phone's driver and ports.",
                )
            time.sleep(0.2)

    def _drivers(self) -> dict[str, _Report]:
        """Return (kind -> the server's report on its library and devices), or a failure under "" if it does not run."""
        text = self._shell(
            f"cd {FOLDER} && LD_LIBRARY_PATH={FOLDER} ./{SERVER} --devices", what="ask for devices", is_checked=False
        )
        lines = [line for line in text.splitlines() if line.startswith("{")]
        try:
            return made_of(dict[str, _Report], parsed(lines[-1]))
        except (IndexError, ValueError):
            failure = f"the server does not run on this phone: {text.strip()[-300:] or 'no output'}"
            return {"": _Report(failure=failure)}

    def _pushed(self) -> dict[str, str] | None:
        """Return the contents of runtime.json on the phone, or None."""
        text = self._shell(f"cat {FOLDER}/runtime.json", what="look for the runtime", is_checked=False)
        try:
            return made_of(dict[str, str], parsed(text))
        except ValueError:
            return None

    def _server_pid(self) -> int | None:
        # The process number may have been reused, so check the command as well.
        check = f'p=$(cat {_PID} 2> /dev/null) && grep -q {SERVER} /proc/$p/cmdline 2> /dev/null && echo "pid $p"'
        match = re.search(
            r"^pid (\d+)$", self._shell(check, what="look for the server", is_checked=False), re.MULTILINE
        )
        return int(match[1]) if match else None

    def _forwards(self, kind: str) -> list[str]:
        """Return "tcp:9090 tcp:9090" for each port that adb forwards to (forward) or from (reverse) this phone."""
        lines = [line.split() for line in self._run(kind, "--list", what="list ports").splitlines()]
        return [
            f"{words[1]} {words[2]}"
            for words in lines
            if len(words) == 3 and (kind == "reverse" or words[0] == self.serial)
        ]

    def _remove_forwards(self, port: int, tracker_port: int | None) -> None:
        with contextlib.suppress(DeviceError):
            self._run("forward", "--remove", f"tcp:{port}", what="end the forwarding")
            if tracker_port is not None:
                self._run("reverse", "--remove", f"tcp:{tracker_port}", what="end the forwarding")

    def _property(self, name: str) -> str:
        return self._shell(f"getprop {name}", what="ask for the model").strip()

    def _shell(self, command: str, *, what: str, is_checked: bool = True, stdin: str = "") -> str:
        return self._run("shell", command, what=what, is_checked=is_checked, stdin=stdin)

    def _run(self, *arguments: str, what: str, is_checked: bool = True, stdin: str = "") -> str:
        """Run adb with `stdin` as its input, and return its output. is_checked: raise DeviceError if it fails."""
        try:
            done = subprocess.run(
                [*self._adb, *arguments],
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                # A driver's message may be in any encoding.
                errors="replace",
                timeout=_ADB_PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"adb could not {what} within {_ADB_PATIENCE_S:.0f} s", hint="Replug the phone, or: adb kill-server"
            ) from error
        if is_checked and done.returncode != 0:
            raise DeviceError(
                f"adb could not {what}: {done.stdout.strip()[-300:]}",
                hint="Is the phone still attached? `adb devices` lists it.",
            )
        return done.stdout


def _choose(listing: str, serial: str | None) -> str:
    """Return the serial number of the phone to use. listing: output of `adb devices`, a header and a line per phone."""
    states = dict(line.split("\t", 1) for line in listing.splitlines() if "\t" in line)
    if not states:
        raise DeviceError(
            "adb sees no phone",
            hint="Attach it by USB, turn on developer options and USB debugging on it, and look at `adb devices`.",
        )
    if serial is None and len(states) > 1:
        raise UsageError(
            f"several phones are attached: {', '.join(sorted(states))}", hint="Choose one: --serial NUMBER"
        )
    chosen = serial if serial is not None else next(iter(states))
    if chosen not in states:
        raise UsageError(f"no phone has the serial number {chosen}; attached: {', '.join(sorted(states))}")
    state = states[chosen].strip()
    if state == "unauthorized":
        raise DeviceError(
            f"the phone {chosen} does not trust this machine yet",
            hint="Unlock it and confirm the question about USB debugging, then try again.",
        )
    if state != "device":
        hint = (
            "apt-get install android-sdk-platform-tools-common (udev rules), then replug it."
            if "permissions" in state
            else "Replug it, or: adb reconnect"
        )
        raise DeviceError(f"the phone {chosen} does not answer (adb says: {state})", hint=hint)
    return chosen


def _driver(title: str, report: _Report) -> PhoneDriver:
    devices = tuple(device.name.strip() for device in report.devices)
    failure = None if devices else report.failure or f"no {title} device"
    return PhoneDriver(title=title, library=report.library or None, devices=devices, failure=failure)


def runtime_facts(runtime: Path) -> dict[str, str]:
    """Return the target and the versions that the runtime in a folder was built for. UsageError if it holds none."""
    with refused(UsageError, f"{runtime} holds no runtime for a phone", hint=f"Build it: {BUILD}"):
        facts = made_of(dict[str, str], parsed(read_file(runtime / "runtime.json")))
        if "target" not in facts:
            raise ValueError("it names no target")
        return facts


def _tracker_port(tracker: str) -> int:
    host, _, port = tracker.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"tracker {tracker!r}: write host:port, for example 127.0.0.1:9190")
    if host not in _LOOPBACK:
        raise UsageError(
            f"the tracker is on {host}; a phone on a cable reaches those of this machine only",
            hint="Run the tracker here and name it 127.0.0.1:PORT.",
        )
    return int(port)
