"""What a model is compiled for: a device kind, the facts of one device, and where the host code runs."""

from romou.devices.targets.target import Target

__all__ = ["Target"]
