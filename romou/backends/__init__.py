"""Device kinds that kernels can run on. A backend is a folder here plus one line in BACKENDS.

Each backend module offers `list_devices()`, `check_device(index)`, `is_usable(index)`, `device_index(device_name)`, `no_device_error(index, found)` and
`attached_spec()`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from romou.core.errors import unknown_name

BACKENDS = ("opencl", "cuda")


def backend(kind: str) -> ModuleType:
    """The module of a device kind; UsageError that lists the known ones otherwise."""
    if kind not in BACKENDS:
        raise unknown_name("backend", kind, BACKENDS)
    return importlib.import_module(f"romou.backends.{kind}")
