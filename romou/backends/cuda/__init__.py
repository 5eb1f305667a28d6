"""CUDA: which devices there are and whether they work."""

import functools

from romou.backends.cuda.devices import attached_spec, device_index, list_devices, no_device_error
from romou.backends.usable import DeviceReport, check_device_of, is_usable_of

check_device = functools.partial(check_device_of, "cuda")
is_usable = functools.partial(is_usable_of, "cuda")

__all__ = ["DeviceReport", "attached_spec", "check_device", "device_index", "is_usable", "list_devices", "no_device_error"]
