"""Facts about devices."""

from romou.hardware.spec import HardwareSpec, known_devices, load_device, load_spec, spec_from_dict

__all__ = ["HardwareSpec", "known_devices", "load_device", "load_spec", "spec_from_dict"]
