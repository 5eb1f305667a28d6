"""The fingerprint of a device: name, driver and platform. A measured time is valid only for its fingerprint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from romou.base.errors import UsageError
from romou.devices.backends import backend


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceFingerprint:
    """A device as its driver names it. Times are comparable only between equal fingerprints.

    is_host_cpu: whether kernels run on the cores that build the candidates (PoCL, plain LLVM)
    """

    kind: str
    name: str
    driver: str
    platform: str
    is_host_cpu: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready data."""
        return dataclasses.asdict(self)

    @staticmethod
    def of_facts(kind: str, facts: Mapping[str, Any], *, is_here: bool = True) -> DeviceFingerprint:
        """Return the fingerprint of an entry of `list_devices`, from this machine or another one."""
        is_host_cpu = is_here and facts["type"] == "cpu"
        return DeviceFingerprint(
            kind=kind,
            name=str(facts["name"]),
            driver=str(facts["driver"]),
            platform=str(facts["platform"]),
            is_host_cpu=is_host_cpu,
        )

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> DeviceFingerprint:
        """Return the fingerprint that `to_dict` wrote. TypeError for missing or unknown fields."""
        return DeviceFingerprint(**data)


def split_device(device: str) -> tuple[str, int]:
    """Return kind and index of a device.

    "opencl:1" -> ("opencl", 1), "opencl" -> ("opencl", 0)
    """
    kind, _, index = device.partition(":")
    if not kind or not (index or "0").isdecimal():
        raise UsageError(f"device {device!r}: expected KIND:INDEX, for example opencl:0")
    return kind, int(index or 0)


def device_fingerprint(device: str) -> DeviceFingerprint:
    """Return the fingerprint of `device` ("opencl:0"). DeviceError if it does not exist.

    Called in a worker process, because a broken driver may crash the process.
    """
    return identified_device(device)[0]


def identified_device(device: str) -> tuple[DeviceFingerprint, str]:
    """Return the fingerprint of a device, and its `Backend.identity`."""
    kind, index = split_device(device)
    facts = backend(kind).facts(index)
    return DeviceFingerprint.of_facts(kind, facts), backend(kind).identity(facts)
