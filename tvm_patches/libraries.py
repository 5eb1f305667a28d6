"""Compiled libraries that are unloaded when nothing of them is used any more.

TVM keeps every library that it loads until the process ends, with the kernels that a driver compiled of it.
"""

from __future__ import annotations

import _ctypes
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm.runtime

_lock = threading.Lock()


def load_library(path: Path) -> tvm.runtime.Module:
    """Load a library. It goes with the last object that holds its module, or a function of it.

    A file that this process has loaded is loaded from a copy: the system would give the same library again, and host
    code keeps in it where its kernels are, which are those of one module.

    Errors are those of `tvm.runtime.load_module`; OSError where the copy cannot be written.
    """
    import tvm_ffi

    with _lock:
        if not _is_loaded(path):
            return tvm_ffi.load_module(str(path.resolve()), keep_module_alive=False)
        with tempfile.TemporaryDirectory(prefix="romou-library-") as folder:
            copy = shutil.copyfile(path, Path(folder, path.name))
            return tvm_ffi.load_module(str(copy), keep_module_alive=False)


def _is_loaded(path: Path) -> bool:
    """Whether this process has the file in use as a library, under whatever name."""
    try:
        handle = _ctypes.dlopen(os.fspath(path.resolve()), os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        return False
    _ctypes.dlclose(handle)
    return True
