"""Everything that the TVM wheel lacks or gets wrong. README.md beside this file gives reason and version for each."""

from __future__ import annotations

import ctypes
import importlib.metadata
from pathlib import Path

from tvm_patches import cuda_runtime, pypi_driver


def find_runtime(kind: str) -> Path:
    """Return a device kind's runtime beside this file. In a checkout that was not built, where Python finds this
    package before an installed one, the installed runtime.
    """
    beside = Path(__file__).parent / f"{kind}_runtime" / f"libtvm_runtime_{kind}.so"
    if beside.exists():
        return beside
    name = beside.relative_to(Path(__file__).parents[1])
    installed = (Path(str(found.locate_file(name))) for found in importlib.metadata.distributions(name="romou"))
    return next((path for path in installed if path.exists()), beside)


# Each kind of device has a folder of sources and, once it was built, the library.
_KINDS = sorted(path.parent.name.removesuffix("_runtime") for path in Path(__file__).parent.glob("*_runtime/module.cc"))
RUNTIMES = {kind: find_runtime(kind) for kind in _KINDS}

# Why a kind's runtime could not be loaded; compat.check_versions reports it.
load_errors: dict[str, str] = {}


def autoload() -> None:
    """TVM calls this at `import tvm` (entry point tvm.backends): plain TVM code gets OpenCL and Vulkan. Never raises,
    and needs neither.
    """
    if _libraries:
        return
    for kind, path in RUNTIMES.items():
        try:
            _load(kind, path)
        except Exception as error:
            load_errors[kind] = str(error)
    try:
        cuda_runtime.load()
    except Exception as error:
        load_errors[cuda_runtime.__name__] = str(error)


def _load(kind: str, path: Path) -> None:
    import tvm_ffi  # TVM has it in the process already

    if tvm_ffi.get_global_func(f"device_api.{kind}", allow_missing=True) is not None:
        # Registering a device twice ends the process inside C++, where nothing can catch it.
        load_errors[kind] = f"another runtime of {kind} devices is in the process already (a TVM built with it?)"
        return
    _libraries.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL))
    offer = tvm_ffi.get_global_func(f"romou.{kind}.offer_driver", allow_missing=True)
    if (
        offer is not None
    ):  # None: there is no such driver on PyPI, or an editable installation's runtime of before finds the system's drivers alone  # noqa: E501
        offer(pypi_driver.libraries())


_libraries: list[ctypes.CDLL] = []
