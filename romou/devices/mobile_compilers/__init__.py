"""Mesa's compilers for Adreno and Mali: registers, spills and instructions of a kernel without a phone.

They are not the vendors' compilers, which phones run. `romou setup mobile-compilers` fetches them. If the user has a
vendor's compiler, its numbers stand beside (`vendor`).
"""

from romou.devices.mobile_compilers.compilers import Compiler, compilers_for
from romou.devices.mobile_compilers.gpus import GPUS, OWN, compiler_for, mobile_gpu
from romou.devices.mobile_compilers.mesa import (
    SETUP_SCRIPT,
    MobileCompilersMissingError,
    compile_all,
    compile_statistics,
    find_compilers,
    mesa_version,
)
from romou.devices.mobile_compilers.statistics import KernelStatistics, LoopStatistics
from romou.devices.mobile_compilers.vendor import VendorStatistics, compile_by_vendor, vendor_compiler

__all__ = [
    "GPUS",
    "OWN",
    "SETUP_SCRIPT",
    "Compiler",
    "KernelStatistics",
    "LoopStatistics",
    "MobileCompilersMissingError",
    "VendorStatistics",
    "compile_all",
    "compile_by_vendor",
    "compile_statistics",
    "compiler_for",
    "compilers_for",
    "find_compilers",
    "mesa_version",
    "mobile_gpu",
    "vendor_compiler",
]
