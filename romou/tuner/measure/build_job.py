"""The job of a build process: builds one candidate."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from typing import Any

from romou.base.errors import BuildError, InvalidConfigError
from romou.base.linking import export_library
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.devices.backends import backend
from romou.runtime.workers.calls import resolve, shorten
from romou.tuner.measure.fingerprint import split_device
from romou.tuner.measure.types import StoredAs, Toolchain


def build(
    toolchain: Toolchain,
    task_json: str,
    config: dict[str, int | str | bool],
    target_json: str,
    library: str,
    entry: str,
    compile_for: str | None,
) -> tuple[Outcome, float, str | None, tuple[str, ...], tuple[StoredAs | None, ...]]:
    """Build one candidate into the shared library file `library`, under the name `entry`.

    With `compile_for` ("opencl:0") its kernels also reach the driver's cache.

    Return (outcome, seconds, error text or None, memory scope of each parameter, `BuildResult.stored`). The outcome
    is OK, INVALID or BUILD_ERROR.

    Raises
    ------
    Exception
        The candidate is not the cause: a bug, a missing compiler, a full disk.
    """
    task = resolve(toolchain.load_task)(task_json)
    target = resolve(toolchain.load_target)(target_json)
    start = time.perf_counter()
    try:
        module = resolve(toolchain.build)(task, Config(config), target)
        export_library(module, library, host=target.host, entry=entry)
        if compile_for is not None:
            _compile(module, compile_for)
    except Exception as error:
        outcome = outcome_of_build(error)
        if outcome is None:
            raise
        return outcome, time.perf_counter() - start, shorten(f"{type(error).__name__}: {error}"), (), ()
    images = task.image_scopes(Config(config), target)
    # Without kernels the reference runs. It reads the weight without a conversion.
    weight = task.stored_weight(Config(config)) if target.backend.has_kernels else None
    names = [str(p.name) for p in task.func.params]
    scopes, stored = (
        tuple(images.get(name, "global") for name in names),
        tuple(weight if weight and name == weight.name else None for name in names),
    )
    return Outcome.OK, time.perf_counter() - start, None, scopes, stored


def _compile(module: Any, device: str) -> None:
    kind, index = split_device(device)
    # If the driver refuses a kernel, the process that runs it gets the same error and records it.
    with contextlib.suppress(RuntimeError):
        backend(kind).compile_kernels(module, index)


# Exceptions that Python raises for wrong code. TVM raises some of these too, for wrong calls in our own code.
_BUG_TYPES = (
    TypeError,
    AttributeError,
    NameError,
    LookupError,
    ImportError,
    AssertionError,
    NotImplementedError,
    ZeroDivisionError,
)

# Frames of TVM and its FFI. Compiled frames carry the names of C++ or Cython files.
_NATIVE_SUFFIXES = (".cc", ".h", ".cpp", ".pxi", ".pyx", "<unknown>")
_TVM_FOLDERS = (f"{os.sep}tvm{os.sep}", f"{os.sep}tvm_ffi{os.sep}")


def outcome_of_build(error: BaseException) -> Outcome | None:
    """Return INVALID or BUILD_ERROR for an error of the candidate. None for a bug or a broken machine.

    A failed candidate is data, and the search goes on. A bug must stop the run, or every candidate would quietly become
    a BUILD_ERROR.
    """
    if isinstance(error, InvalidConfigError):
        return Outcome.INVALID
    if isinstance(error, (BuildError, MemoryError)):
        return Outcome.BUILD_ERROR
    # OSError: no compiler, no space, no permission. Every other candidate would fail the same way.
    if not isinstance(error, Exception) or isinstance(error, (*_BUG_TYPES, OSError)):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    is_raised_in_tvm = bool(frames) and (
        frames[-1].filename.endswith(_NATIVE_SUFFIXES) or any(folder in frames[-1].filename for folder in _TVM_FOLDERS)
    )
    return Outcome.BUILD_ERROR if is_raised_in_tvm else None
