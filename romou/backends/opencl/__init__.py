"""OpenCL: which devices there are and whether they work."""

from romou.backends.opencl.devices import device_index, list_devices, no_device_error
from romou.backends.opencl.usable import DeviceReport, check_device, is_usable

__all__ = ["DeviceReport", "check_device", "device_index", "is_usable", "list_devices", "no_device_error"]
