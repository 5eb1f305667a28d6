"""Targets of a compilation: a device kind, the facts of one device, and the machine of the host code."""

from romou.devices.targets.choice import misfit
from romou.devices.targets.device import attached_index, device_text, gpu_called, gpu_for, with_device
from romou.devices.targets.target import Target

__all__ = ["Target", "attached_index", "device_text", "gpu_called", "gpu_for", "misfit", "with_device"]
