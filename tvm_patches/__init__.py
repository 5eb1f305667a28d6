"""What the TVM wheel lacks or gets wrong; README.md beside this file gives reason and version for each."""

from __future__ import annotations

import ctypes
from pathlib import Path

RUNTIME = Path(__file__).parent / "opencl_runtime" / "libtvm_runtime_opencl.so"

# Why the runtime could not be loaded; compat.check_versions says it when it matters.
load_error: str | None = None


def autoload() -> None:
    """TVM calls this at `import tvm` (entry point tvm.backends): plain TVM code gets OpenCL. Never raises, and needs no OpenCL."""
    global load_error
    try:
        _libraries.append(ctypes.CDLL(str(RUNTIME), mode=ctypes.RTLD_LOCAL))
    except OSError as error:
        load_error = str(error)


_libraries: list[ctypes.CDLL] = []
