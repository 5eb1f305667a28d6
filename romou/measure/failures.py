"""Which exception of a build is a property of the candidate, and which is a bug in Romou.

A failed candidate is data and the search goes on; a bug must stop the run, or every candidate would quietly become a BUILD_ERROR.
Kernels are judged otherwise: whatever a call into a built kernel raises is the kernel's failure (see run_job.py).
"""

from __future__ import annotations

import os
import traceback

from romou.core.errors import BuildError, InvalidConfigError
from romou.core.outcome import Outcome

# What Python raises for wrong code. TVM raises some of these too, for calls that our own code got wrong.
_BUG_TYPES = (TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError, NotImplementedError, ZeroDivisionError)

# Frames of TVM and its FFI; the compiled ones carry the names of C++ or Cython files.
_NATIVE_SUFFIXES = (".cc", ".h", ".cpp", ".pxi", ".pyx", "<unknown>")
_TVM_FOLDERS = (f"{os.sep}tvm{os.sep}", f"{os.sep}tvm_ffi{os.sep}")


def outcome_of_build(error: BaseException) -> Outcome | None:
    """INVALID or BUILD_ERROR where `error` belongs to the candidate, None where it is a bug or a broken machine."""
    if isinstance(error, InvalidConfigError):
        return Outcome.INVALID
    if isinstance(error, (BuildError, MemoryError)):
        return Outcome.BUILD_ERROR
    # OSError: no compiler, no space, no rights. Every other candidate would meet the same.
    if not isinstance(error, Exception) or isinstance(error, (*_BUG_TYPES, OSError)):
        return None
    return Outcome.BUILD_ERROR if is_raised_in_tvm(error) else None


def is_raised_in_tvm(error: BaseException) -> bool:
    """Whether the innermost frame of `error` lies in TVM, compiled or Python."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return False
    file = frames[-1].filename
    return file.endswith(_NATIVE_SUFFIXES) or any(folder in file for folder in _TVM_FOLDERS)
