"""Check of a device: a tiny kernel is built, runs and computes the right results in a separate process."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterable
from typing import Any

from romou.base.interpreter import child_environment, python_command

PROBE_TIMEOUT_S = 120.0
# Aspect of the probe -> what kernels do without if its tiny kernel failed.
LEFT_OUT = {
    "fp16": "arithmetic in fp16: kernels compute in fp32",
    "images": "images: tensors are buffers",
    "fp16_images": "images of fp16: fp16 tensors are buffers",
    "int64": "comparisons of 64 bits: the driver compiles them wrongly, so kernels compare in 32 bits, which is exact"
    " for indices and sizes; int64 values beyond 2**31 are not to be trusted",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """The result for one device.

    problem: None for a usable device.
    has_images, has_fp16: its abilities.
    has_recorded_runs: whether runs are recorded: command buffers, launch lists, CUDA graphs.
    origin: the origin of its driver. None if unknown.
    notes: abilities that its driver does not offer, and what kernels do instead.
    limits: abilities whose tiny kernel failed, with what is left out for that.
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
    limits: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready data."""
        return dataclasses.asdict(self) | {"notes": list(self.notes), "limits": list(self.limits)}


def run_probe(
    kind: str, index: int, timeout_s: float, *, without: Iterable[str] = ()
) -> tuple[dict[str, str | None], str | None]:
    """Run `romou.devices.backends.probe` on a device, without the aspects in `without`.

    Returns
    -------
    (aspect -> None or its problem, the problem of the probe itself or None).
    """
    command = python_command("romou.devices.backends.probe", kind, str(index), *without)
    try:
        # The environment as Python found it: a driver that was loaded in this process may have set variables that hide
        # its devices from a child (seen with NVIDIA's and PoCL's drivers together).
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
    """Return the first line of a message that may contain a whole log."""
    return (text.strip() or "no message").splitlines()[0]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
