"""Everything that the TVM wheel lacks or gets wrong. README.md beside this file gives reason and version for each."""

from __future__ import annotations

import ctypes
import importlib.metadata
from pathlib import Path

from romou.tvm_patches import cuda_runtime, pypi_driver


def _find_runtime() -> Path:
    """Return the runtime beside this file. In a checkout that was not built, where Python finds this package before an installed one, the installed runtime."""
    beside = Path(__file__).parent / "opencl_runtime" / "libtvm_runtime_opencl.so"
    if beside.exists():
        return beside
    name = beside.relative_to(Path(__file__).parents[2])
    installed = (Path(str(found.locate_file(name))) for found in importlib.metadata.distributions(name="romou"))
    return next((path for path in installed if path.exists()), beside)


RUNTIME = _find_runtime()

# Why the runtime could not be loaded; compat.check_versions reports it.
load_error: str | None = None


def autoload() -> None:
    """TVM calls this at `import tvm` (entry point tvm.backends): plain TVM code gets OpenCL. Never raises, and needs no OpenCL."""
    global load_error
    if _libraries:
        return
    try:
        import tvm_ffi  # TVM has it in the process already

        if tvm_ffi.get_global_func("device_api.opencl", allow_missing=True) is not None:
            # Registering a device twice ends the process inside C++, where nothing can catch it.
            load_error = "another OpenCL runtime is in the process already (a TVM built with OpenCL?)"
            return
        _libraries.append(ctypes.CDLL(str(RUNTIME), mode=ctypes.RTLD_LOCAL))
        offer = tvm_ffi.get_global_func("romou.opencl.offer_driver", allow_missing=True)
        if offer is not None:  # None: an editable installation's runtime of before, which finds the system's drivers alone
            offer(pypi_driver.libraries())
        cuda_runtime.load()
    except Exception as error:
        load_error = str(error)


_libraries: list[ctypes.CDLL] = []
