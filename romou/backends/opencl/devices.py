"""Which OpenCL devices the runtime sees, and their limits as a HardwareSpec.

The facts come from the runtime's own packed function, so they are those of the device that kernels will run on: index 0 is
`tvm.opencl(0)`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from romou.errors import DeviceError
from romou.hardware import HardwareSpec, load_device

MEND_NO_LOADER = "Install an OpenCL ICD loader: apt-get install ocl-icd-libopencl1 (Debian, Ubuntu)."
MEND_NO_PLATFORM = (
    "Install an OpenCL platform: apt-get install pocl-opencl-icd for the CPU, or the GPU vendor's driver. "
    "If one is installed, OCL_ICD_VENDORS may point past it; the usual place is /etc/OpenCL/vendors."
)


def list_devices() -> list[dict[str, Any]]:
    """Facts of every OpenCL device that the runtime can see, in `tvm.opencl(i)` order; empty without a loader or platform."""
    import tvm

    ask = tvm.get_global_func("romou.opencl.devices", allow_missing=True)
    if ask is None:
        raise DeviceError(
            "Romou's OpenCL runtime is not loaded: TVM has no function romou.opencl.devices",
            hint="Reinstall Romou so that its C++ runtime is built: pip install --force-reinstall --no-deps romou (needs g++).",
        )
    found = json.loads(str(ask()))
    return list(found)
