"""One name or number for a device: an attached one, a GPU, a phone, or a system on a chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from romou.base.arguments import whole_of
from romou.base.errors import DeviceError, UsageError, nearest_name
from romou.devices.backends import DEFAULT_KIND, installed
from romou.devices.hardware import device_called, known_devices, known_socs, phones_called, soc_called
from romou.devices.targets.target import Target

# It comes before other drivers of a CPU (Device::type_rank in tvm_patches/opencl_runtime/device.cc).
_FAST_ON_CPUS = "Intel(R) OpenCL"
_FORMS = "a number of `romou devices` (1, vulkan:0), a part of an attached device's name, or a GPU, phone or SoC"


def gpu_called(name: str) -> str | None:
    """Return the name of a device's file, given that name, its driver's name, or that of a phone or SoC, or None."""
    soc = soc_called(name)
    return name if name in known_devices() else device_called(name) or (None if soc is None else soc.gpu)


def with_device(target: Target, device: int | str | None) -> tuple[Target, int | None]:
    """Return the target of a device, and its number if it is attached and was chosen.

    (opencl, 1)                      ->      (opencl, 1)
    (opencl, "vulkan:0")             ->      (vulkan, 0)
    (opencl, "Intel")                ->      (opencl, 1)
    (opencl, "Snapdragon 8 Gen 2")   ->      (opencl -device=adreno740, None)

    Raises
    ------
    UsageError
        The name is unknown, or the target names another device or kind.
    DeviceError
        There is no attached device of this number.
    """
    if device is None:
        return target, None
    if not isinstance(device, str):
        device = whole_of("device", device)
    kind, number = _numbered(target, device)
    if number is not None:
        if kind != target.kind:
            if target != Target(DEFAULT_KIND):
                raise UsageError(f"device {device!r} is of kind {kind}, but the target is {str(target)!r}")
            target = Target(kind)
        target.backend.facts(number)
        return target, number
    name = str(device).strip()
    gpu = gpu_called(name)
    if gpu is not None:
        if target.device_name not in (None, gpu):
            raise UsageError(
                f"device {name!r} is {gpu}, but the target is {str(target)!r}", hint="Leave one of them out."
            )
        return target.with_options(device=gpu), None
    attached = target.backend.list_devices()
    for index, facts in enumerate(attached):
        if name and name.lower() in f"{facts['name']} ({facts['platform']})".lower():
            return target, index
    raise _unknown(name, target.kind, attached)


def attached_index(target: Target, device: int | str | None) -> int | None:
    """Return the number of the attached device of a target's kind that has this number or name. None for None.

    Raises
    ------
    UsageError
        The name is unknown.
    DeviceError
        It is not attached.
    """
    named, index = with_device(Target(target.kind), device)
    if named.kind != target.kind:
        raise UsageError(f"device {device!r} is of kind {named.kind}, but the model is for {target.kind}")
    if index is not None or device is None:
        return index
    attached = target.backend.list_devices()
    for number, facts in enumerate(attached):
        if not named.missing_on(facts):
            return number
    names = ", ".join(f"{number}: {facts['name']}" for number, facts in enumerate(attached)) or "none"
    raise DeviceError(f"no {named.device_name} is attached; there are: {names}", device=named.device_name)


def _numbered(target: Target, device: int | str) -> tuple[str, int | None]:
    """Return kind and number of "1", "vulkan:0" or 1. The number is None for any other text."""
    if isinstance(device, int):
        return target.kind, device
    kind, colon, number = device.rpartition(":")
    if number.isascii() and number.isdigit() and (not colon or kind in installed()):
        return kind or target.kind, int(number)
    return target.kind, None


def _unknown(name: str, kind: str, attached: list[dict[str, Any]]) -> UsageError:
    socs = known_socs()
    words = [*known_devices(), *(word for soc in socs for word in (soc.name, *soc.models, *soc.phones))]
    near = nearest_name(name, words)
    meant = " or ".join(map(repr, phones_called(name) or filter(None, [near])))
    named = ", ".join(f"{kind}:{index} {facts['name']}" for index, facts in enumerate(attached)) or "none"
    return UsageError(
        f"unknown device {name!r}; it is {_FORMS}; attached: {named}",
        hint=f"Did you mean {meant}?" if meant else "`romou devices --all` lists GPUs, SoCs and phones.",
        name=name,
        nearest=near,
    )


def device_text(target: Target, index: int | None = None, *, is_timed: bool = True) -> str:
    """Return the device that a target is for in words: its number, name and platform. "" if none is attached.

    A target for a GPU that is not attached has the GPU's title, and after it the device that is timed in its place.
    """
    devices = target.backend.list_devices()
    if not devices:
        return "" if target.device_name is None else f"{target.spec.title}, not attached"
    chosen = target.backend.device_index(target.device_name, devices) if index is None else index
    here = _words(target.kind, chosen, devices[chosen])
    if target.missing_on(devices[chosen]):
        return f"{target.spec.title}, not attached" + (f"; {here} in its place" if is_timed else "")
    if index is None and devices[chosen]["type"] == "cpu":
        for number, facts in enumerate(devices):
            if number == chosen or facts["type"] != "cpu":
                continue
            if devices[chosen]["platform"] == _FAST_ON_CPUS:
                return f"{here}, usually faster than {_words(target.kind, number, facts)}"
            if facts["platform"] == _FAST_ON_CPUS:  # a variable put the chosen one first
                return f"{here}; usually faster: --device {number}, {_words(target.kind, number, facts)}"
    return here


def _words(kind: str, index: int, facts: Mapping[str, Any]) -> str:
    return f"{kind}:{index} {facts['name']} ({facts['platform']})"


def gpu_for(name: str, target: Target) -> str:
    """Return the GPU that mobile compilers compile a target's kernels for: `name`, unchecked, or for `OWN` its own GPU.

    UsageError if Mesa compiles no kernels of the target.
    """
    from romou.devices.mobile_compilers import OWN, compiler_for

    if target.backend.language != "OpenCL C":
        text = f"--gpu asks compilers of OpenCL C; the kernels of target {str(target)!r} are no such text"
        raise UsageError(text, hint="Give an opencl target, or leave --gpu out.")
    return compiler_for(target.device_name) if name == OWN else name
