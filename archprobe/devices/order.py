"""The order of an API's devices, which gives them their numbers.

It is the order of Romou's runtimes (tvm_patches/device_runtime/selection.h), in whatever order drivers are listed: by
type, GPUs first. Devices that an environment variable names come before all others. tests/archprobe/test_order.py
compares both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from archprobe.devices.base import ListedDevice
from archprobe.errors import UsageError


def in_order(devices: Sequence[ListedDevice], variable: str) -> list[ListedDevice]:
    """Return devices by rank, those that the environment variable names before the others.

    The variable holds a part of a platform's or device's name in any case, or a number in the order by rank. UsageError
    if it names none of the devices.
    """
    by_rank = sorted(devices, key=lambda device: device.rank)
    wanted = os.environ.get(variable, "").lower() if variable else ""
    if not wanted or not by_rank:
        return by_rank
    # A number of four digits or more is a part of a name.
    if wanted.isdecimal() and len(wanted) < 4 and int(wanted) < len(by_rank):
        chosen = [by_rank[int(wanted)]]
    else:
        chosen = [device for device in by_rank if wanted in f"{device.platform}\n{device.name}".lower()]
    if not chosen:
        raise UsageError(
            f"{variable}={os.environ[variable]!r} matches no device; found are {'; '.join(map(str, by_rank))}. Set it"
            " to a part of a platform or device name, or to a number, or unset it",
            variable=variable,
        )
    return [*chosen, *(device for device in by_rank if device not in chosen)]
