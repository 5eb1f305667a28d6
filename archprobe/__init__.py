"""ArchProbe: measures what a GPU's vendor does not tell (Romou paper, MobiCom 2022, section 3).

A probe is a kernel generator, a sweep and a pure analysis: kernels run on a device and give curves, curves give numbers with a
confidence, or a declined answer with the reason. `archprobe run` measures, `archprobe show`, `plot` and `compare` read reports;
``archprobe.analysis`` works on any curve, Microsoft ArchProbe's CSV files included.
"""

from archprobe.errors import ArchProbeError, BuildError, ConnectionLostError, DeviceError, KernelError, ReportError, UsageError

__version__ = "0.1.0"
__all__ = ["ArchProbeError", "BuildError", "ConnectionLostError", "DeviceError", "KernelError", "ReportError", "UsageError", "__version__"]
