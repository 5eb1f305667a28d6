"""ArchProbe measures the properties of a GPU that its vendor does not publish (Romou paper, MobiCom 2022, section 3).

A probe is a kernel, a sweep and a pure analysis. The kernel runs on a device and gives a curve. The analysis derives
numbers from the curve, each with a confidence, or declines and gives the reason. `archprobe run` measures. `archprobe
show`, `plot` and `compare` read reports. ``archprobe.analysis`` works on any curve, Microsoft ArchProbe's CSV files
included.
"""

from archprobe.errors import (
    ArchProbeError,
    BuildError,
    ConnectionLostError,
    DeviceError,
    KernelError,
    ReportError,
    UsageError,
)

__version__ = "0.2.0"
__all__ = [
    "ArchProbeError",
    "BuildError",
    "ConnectionLostError",
    "DeviceError",
    "KernelError",
    "ReportError",
    "UsageError",
    "__version__",
]
