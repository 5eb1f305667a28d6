"""Compile programs in a child process, because a driver's compiler may crash."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from romou.devices.backends import backend
from romou.runtime.workers.child import ChildBugError, ChildCrashError, ChildProcess
from tvm_patches.runtime import global_function

logger = logging.getLogger("romou")


def compile_apart(kind: str, modules: Sequence[bytes], index: int, folder: str, threads: int) -> None:
    """Compile modules of kernels in a child process, and keep their programs in `folder`.

    After a crash, the second attempt uses one thread. The mark left in the folder then belongs to the program at fault,
    and later attempts to compile this program are refused. Other errors of the driver are raised again when the program
    is requested.
    """
    child = ChildProcess("compiler")
    try:
        for width in (threads, 1):
            try:
                child.call(
                    "romou.runtime.module.compile_job:compile_modules", kind, list(modules), index, folder, width
                )
                return
            except ChildCrashError as error:
                logger.info("a driver's compiler crashed: %s", error)
            except ChildBugError as error:
                logger.info("programs are compiled in this process: %s", error)
                return
    finally:
        child.kill()


def compile_modules(kind: str, modules: Sequence[bytes], index: int, folder: str, threads: int) -> None:
    """Compile modules of kernels in this process and keep their programs in `folder`."""
    function = backend(kind).function
    backend(kind).set_rules(backend(kind).facts(index), index, global_function)
    prepare, keep = (global_function(function(name)) for name in ("prepare", "keep"))
    load = global_function(f"ffi.Module.load_from_bytes.{kind}")
    for module in map(load, modules):
        prepare(module, index, folder, threads)
        keep(module, index, folder)
