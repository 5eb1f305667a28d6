"""Whether a device is usable: a tiny kernel was built, ran and gave the right numbers, in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterable
from typing import Any

from romou.base.interpreter import child_environment, python_command

PROBE_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """The finding on one device. `problem` is None for a usable one; `has_images`, `has_fp16` and `has_recorded_runs`
    (command buffers, CUDA graphs) tell what it can do besides. origin: what brought its driver here, where the backend
    can tell.
    """

    index: int
    device: str
    platform: str
    driver: str
    is_usable: bool
    has_images: bool
    has_fp16: bool
    has_recorded_runs: bool = False
    origin: str | None = None
    problem: str | None = None
    hint: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return dataclasses.asdict(self) | {"notes": list(self.notes)}


def run_probe(
    kind: str, index: int, timeout_s: float, *, without: Iterable[str] = ()
) -> tuple[dict[str, str | None], str | None]:
    """Try `romou.devices.backends.probe` on a device.

    Returns
    -------
    (aspect -> None or what went wrong, what broke the probe itself). Aspects in `without` are left out.
    """
    command = python_command("romou.devices.backends.probe", kind, str(index), *without)
    try:
        # The environment as Python found it: a driver that was loaded here may have set variables that hide its devices
        # from a child (seen with NVIDIA's and PoCL's side by side).
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"a tiny kernel did not finish within {timeout_s:g} s"
    if done.returncode < 0:
        return {}, f"the driver crashed on a tiny kernel (signal {-done.returncode}): {_last_line(done.stderr)}"
    if done.returncode != 0:
        return {}, f"the probe failed (exit code {done.returncode}): {_last_line(done.stderr)}"
    return json.loads(done.stdout.strip().splitlines()[-1]), None


def first_line(text: str) -> str:
    """The first line of a message that may bring a whole log."""
    return (text.strip() or "no message").splitlines()[0]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
