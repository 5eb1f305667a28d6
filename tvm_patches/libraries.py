"""Loads compiled libraries so that they are unloaded with their last user.

TVM keeps every library that it loads until the process ends, with the kernels that a driver compiled from it.
"""

from __future__ import annotations

import _ctypes
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_patches import runtime

if TYPE_CHECKING:
    import tvm.runtime

_lock = threading.Lock()


def load_library(path: Path) -> tvm.runtime.Module:
    """Load a library. It is unloaded with the last object that holds its module or one of its functions.

    A file that this process has loaded before is loaded from a copy. The system would return the same library again,
    and the library's host code holds the kernels of one module only.

    Raises
    ------
    Exception
        Whatever `tvm.runtime.load_module` raises.
    OSError
        If the copy cannot be written.
    """
    import tvm_ffi

    runtime.load()
    with _lock:
        if not _is_loaded(path):
            return tvm_ffi.load_module(str(path.resolve()), keep_module_alive=False)
        with tempfile.TemporaryDirectory(prefix="romou-library-") as folder:
            copy = shutil.copyfile(path, Path(folder, path.name))
            return tvm_ffi.load_module(str(copy), keep_module_alive=False)


def _is_loaded(path: Path) -> bool:
    """Return whether this process has loaded the file as a library, under any name."""
    try:
        handle = _ctypes.dlopen(os.fspath(path.resolve()), os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        return False
    _ctypes.dlclose(handle)
    return True
