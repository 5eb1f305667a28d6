"""Is a device usable: a tiny kernel was built, ran and gave the right numbers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from typing import Any

from romou.backends import backend
from romou.core.errors import DeviceError
from romou.core.interpreter import child_environment, python_command

PROBE_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """The finding on one device. `problem` is None for a usable one; `has_images`, `has_fp16` and `has_recorded_runs` (command
    buffers, CUDA graphs) tell what it can do besides.
    """

    index: int
    device: str
    platform: str
    driver: str
    is_usable: bool
    has_images: bool
    has_fp16: bool
    has_recorded_runs: bool = False
    problem: str | None = None
    mend: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"notes": list(self.notes)}


def check_device_of(kind: str, index: int, *, timeout_s: float = PROBE_TIMEOUT_S) -> DeviceReport:
    """Build and run tiny kernels on device `index` of a kind (as in `tvm.opencl(index)`) in a child process.

    Raises
    ------
    DeviceError
        There is no device with this index; says how many there are and how to get one.
    """
    found = backend(kind).list_devices()
    if not 0 <= index < len(found):
        raise backend(kind).no_device_error(index, found)
    facts = found[index]
    answers, crash = _probe(kind, index, timeout_s)
    problem = crash or answers.get("buffers")
    notes = [f"{aspect}: {_first_line(answers[aspect])}" for aspect in ("fp16", "images", "fp16_images") if answers.get(aspect)]
    return DeviceReport(
        index=index,
        device=str(facts["name"]),
        platform=str(facts["platform"]),
        driver=str(facts["driver"]),
        is_usable=problem is None,
        has_images=problem is None and bool(facts["has_images"]) and answers.get("images") is None,
        has_fp16=problem is None and answers.get("fp16") is None,
        has_recorded_runs=problem is None and (kind == "cuda" or "cl_khr_command_buffer" in str(facts.get("extensions", "")).split()),
        problem=problem,
        mend=_mend(kind, facts) if problem else None,
        notes=tuple(notes) if problem is None else (),
    )


def is_usable_of(kind: str, index: int = 0) -> bool:
    """True if device `index` exists and computed a tiny kernel correctly; `check_device_of` gives the reasons."""
    try:
        return check_device_of(kind, index).is_usable
    except DeviceError:
        return False


def _probe(kind: str, index: int, timeout_s: float) -> tuple[dict[str, str | None], str | None]:
    """(answers per aspect, what broke the probe itself)."""
    command = python_command("romou.backends.probe", kind, str(index))
    try:
        # The environment as Python found it: a driver that was loaded here may have set variables that hide its devices from a child
        # (seen with NVIDIA's and PoCL's side by side).
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, env=child_environment(), check=False)
    except subprocess.TimeoutExpired:
        return {}, f"a tiny kernel did not finish within {timeout_s:g} s"
    if done.returncode < 0:
        return {}, f"the driver crashed on a tiny kernel (signal {-done.returncode}): {_last_line(done.stderr)}"
    if done.returncode != 0:
        return {}, f"the probe failed (exit code {done.returncode}): {_last_line(done.stderr)}"
    return json.loads(done.stdout.strip().splitlines()[-1]), None


def _mend(kind: str, facts: dict[str, Any]) -> str:
    if facts.get("type") == "cpu":
        return "Reinstall the CPU's platform (apt-get install --reinstall pocl-opencl-icd) or choose another device with ROMOU_OPENCL_DEVICE=NAME."
    other = "CUDA_VISIBLE_DEVICES=NUMBER" if kind == "cuda" else "ROMOU_OPENCL_DEVICE=NAME"
    return f"Update or reinstall the vendor's driver, or choose another device with {other}."


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
