"""Every error that ArchProbe raises on purpose.

A message says what went wrong, the value, the limit and what to do next. Exit codes: 0 fine, 1 failed, 2 wrong use, 3
no usable device.
"""

from __future__ import annotations

from typing import Any

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_DEVICE = 3


class ArchProbeError(Exception):
    """Base of all errors with a message meant for a person. Extra keywords become attributes for a program to read."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = dict(fields)
        for name, value in fields.items():
            setattr(self, name, value)


class UsageError(ArchProbeError):
    """The request is invalid: an unknown probe, a bad device text, or a wrong curve."""

    exit_code = EXIT_USAGE


class DeviceError(ArchProbeError):
    """No device can do the work: no driver, no such index, or an operation that the driver refused."""

    exit_code = EXIT_NO_DEVICE


class ConnectionLostError(ArchProbeError):
    """The connection to the device is cut: the error says nothing about the device, and no further call can succeed."""

    exit_code = EXIT_NO_DEVICE


class BuildError(ArchProbeError):
    """The device's compiler rejected a kernel. `source` holds its input, `log` its output."""


class KernelError(ArchProbeError):
    """A kernel gave a wrong result, or its time does not follow its work, so its measurements would mean nothing."""


class ReportError(ArchProbeError):
    """A report or a curve file is unreadable, does not follow the schema, or belongs to another device."""
