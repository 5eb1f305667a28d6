"""Which of several models suits an attached device best. `tvm_patches/app_runtime/choice.h` does the same in an app."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from romou.devices.targets.target import Target

OWN, FAMILY, OTHER_GPU, PROCESSOR, GPU_KERNELS_ON_PROCESSOR = range(5)
_FAR = 1 << 20


def misfit(target: Target, facts: Mapping[str, Any]) -> tuple[int, int]:
    """Return how little a model for `target` suits a device: the smaller, the better; (0, 0) is the model's own device.

    Within a family, the distance is between the numbers in the devices' names. A target that names no device was tuned
    on what is attached, so on a processor its kernels come before plain loops.

    facts: the device's entry of `Backend.list_devices`.
    """
    if not target.backend.has_kernels:
        return PROCESSOR, 0
    is_for_processor = target.device_name is not None and target.spec.is_cpu
    if facts["type"] == "cpu":
        unnamed = FAMILY if target.device_name is None else GPU_KERNELS_ON_PROCESSOR
        return (OWN if is_for_processor else unnamed), 0
    if is_for_processor:
        return OTHER_GPU, _FAR
    wanted, called = _words(target.device_name or ""), _words(target.backend.device_of(facts) or facts["name"])
    if wanted and wanted == called:
        return OWN, 0
    rank = FAMILY if wanted and wanted[0] in called else OTHER_GPU
    return rank, abs(_number(called) - _number(wanted))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", name.lower())


def _number(words: list[str]) -> int:
    return next((int(word[:6]) for word in words if word.isdigit()), 0)
