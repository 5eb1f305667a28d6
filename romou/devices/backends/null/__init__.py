"""The null backend: it compiles no kernels, and the unscheduled reference runs on the host.

Everything around kernels works as with a device (spaces, search, measuring, records, saved models), without a driver
and in a fraction of the time.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romou.devices.backends.base import Backend
from romou.devices.backends.usable import DeviceReport
from romou.devices.hardware import HardwareSpec, load_device


class Null(Backend):
    """The host's CPU, through TVM's LLVM code generator.

    A named device's limits and facts hold for spaces and criteria.
    """

    name = "null"
    title = "null"
    tvm_kind = "llvm"
    device_type = "cpu"
    limit_names = ()
    has_kernels = False

    def attached_spec(self) -> HardwareSpec:
        """Return OpenCL's minimum facts, because the host has no kernels."""
        return load_device("host")

    def tvm_config(self, options: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
        """See `Backend.tvm_config`: code for the host, which has no limits."""
        return {"kind": self.tvm_kind} | ({"mtriple": options["host"]} if "host" in options else {})

    def allowed_limits(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """See `Backend.allowed_limits`: the reference runs with any limits of a kernel."""
        return {}

    def list_devices(self) -> list[dict[str, Any]]:
        """Return the host's CPU, which is always there."""
        import tvm

        facts = {
            "name": _cpu_name(),
            "platform": platform.machine(),
            "vendor": "",
            "driver": f"tvm {tvm.__version__}",
            "type": "cpu",
            "extensions": "",
        }
        return [{**facts, "compute_units": 1, "max_work_group_size": 1, "local_mem_bytes": 0, "has_images": False}]

    def check_device(self, index: int, *, timeout_s: float = 0.0) -> DeviceReport:
        """See `Backend.check_device`. The host needs no check."""
        facts = self.facts(index)
        who = {"device": facts["name"], "platform": facts["platform"], "driver": facts["driver"]}
        return DeviceReport(index=index, **who, is_usable=True, has_images=False, has_fp16=True)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


BACKEND = Null()
