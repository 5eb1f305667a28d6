"""Mesa's compilers for Adreno and Mali: registers, spills and instructions of a kernel without a phone.

They are not the vendors' compilers, which phones run. `romou setup mobile-compilers` fetches them.
"""

from romou.devices.mobile_compilers.gpus import GPUS, OWN, compiler_for, mobile_gpu
from romou.devices.mobile_compilers.mesa import (
    SETUP_SCRIPT,
    Compiler,
    MobileCompilersMissingError,
    compile_all,
    compile_statistics,
    find_compilers,
    mesa_version,
)
from romou.devices.mobile_compilers.statistics import KernelStatistics, LoopStatistics

__all__ = [
    "GPUS",
    "OWN",
    "SETUP_SCRIPT",
    "Compiler",
    "KernelStatistics",
    "LoopStatistics",
    "MobileCompilersMissingError",
    "compile_all",
    "compile_statistics",
    "compiler_for",
    "find_compilers",
    "mesa_version",
    "mobile_gpu",
]
