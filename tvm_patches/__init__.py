"""Device runtimes, converters and fixes that the TVM wheel lacks. README.md beside this file gives the reasons."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path

from tvm_patches import cuda_runtime, pypi_driver, value_hashes
from tvm_patches.version import __version__ as __version__


def find_runtime(kind: str) -> Path:
    """Return the path of a device kind's runtime library, beside this file.

    In a checkout that was not built, Python finds this package before an installed one: return the installed library.
    """
    beside = Path(__file__).parent / f"{kind}_runtime" / f"libtvm_runtime_{kind}.so"
    if beside.exists():
        return beside
    name = str(beside.relative_to(Path(__file__).parents[1]))
    return next((path for path in _installed(name) if path.exists()), beside)


def _installed(name: str) -> Iterator[Path]:
    """Yield the path of the file `name` in each distribution with this package. The file may not exist."""
    points = importlib.metadata.entry_points(group="tvm.backends")
    owners = {point.dist.name for point in points if point.dist is not None and point.module == __name__}
    for owner in sorted(owners):
        for distribution in importlib.metadata.distributions(name=owner):
            yield Path(str(distribution.locate_file(name)))


# A folder `KIND_runtime` has the sources of a kind's runtime, or the library built from them.
_KINDS = sorted(
    {
        path.parent.name.removesuffix("_runtime")
        for path in Path(__file__).parent.glob("*_runtime/*")
        if path.name == "module.cc" or path.suffix == ".so"
    }
)
RUNTIMES = {kind: find_runtime(kind) for kind in _KINDS}

# Kind -> why its runtime could not be loaded. compat.check_versions reports it.
load_errors: dict[str, str] = {}


def autoload() -> None:
    """Load what Romou adds to TVM into the process. TVM calls this at `import tvm` (entry point tvm.backends)."""
    load_runtimes()
    _try(value_hashes.replace_c_functions)


def load_runtimes() -> None:
    """Load the runtimes of devices into the process, on top of TVM's runtime, unless they are there.

    It never raises: `load_errors` keeps the reasons. It needs no driver of OpenCL or Vulkan.
    """
    if _libraries:
        return
    for kind, path in RUNTIMES.items():
        try:
            _load(kind, path)
        except Exception as error:
            load_errors[kind] = str(error)
    _try(cuda_runtime.load)


def _try(load: Callable[[], object]) -> None:
    try:
        load()
    except Exception as error:
        load_errors[load.__module__] = str(error)


def _load(kind: str, path: Path) -> None:
    import tvm_ffi  # TVM has it in the process already

    if tvm_ffi.get_global_func(f"device_api.{kind}", allow_missing=True) is not None:
        # Registering a device twice ends the process inside C++, and Python cannot catch that.
        load_errors[kind] = f"another runtime of {kind} devices is in the process already (a TVM built with it?)"
        return
    _libraries.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL))
    # Vulkan has no driver on PyPI, and no such function.
    offer = tvm_ffi.get_global_func(f"romou.{kind}.offer_driver", allow_missing=True)
    if offer is not None:
        offer(pypi_driver.libraries())


_libraries: list[ctypes.CDLL] = []
