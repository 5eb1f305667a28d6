"""Facts about devices."""

from romou.devices.hardware.files import (
    device_called,
    families_of,
    known_devices,
    known_families,
    known_shipped_devices,
    load_device,
    load_family,
    load_spec,
)
from romou.devices.hardware.socs import Soc, known_socs, phones_called, soc_called
from romou.devices.hardware.spec import HardwareSpec, spec_from_dict

__all__ = [
    "HardwareSpec",
    "Soc",
    "device_called",
    "families_of",
    "known_devices",
    "known_families",
    "known_shipped_devices",
    "known_socs",
    "load_device",
    "load_family",
    "load_spec",
    "phones_called",
    "soc_called",
    "spec_from_dict",
]
