"""A lock of each device among the processes of a user: whoever times on the device holds it, so that nobody measures
another one's load.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import platform
import threading
from collections.abc import Iterator
from pathlib import Path

from romou.base import environment

logger = logging.getLogger("romou")

# Other processes give the device back after each candidate.
_PATIENCE_S = 5.0
# File -> the lock of this process, and the descriptors that hold locks.
_locks: dict[Path, DeviceLock] = {}
_descriptors: set[int] = set()


class DeviceLock:
    """The lock of one device, which ends with the process. The thread that holds it may take it again.

    A second lock is the door: only who holds it waits for the device. So a process that takes the device again at once
    comes behind one that waits.

    path: its file; the door's stands beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._door = path, path.with_suffix(".door")
        self._of_threads = threading.RLock()
        self._depth = 0
        self._held: int | None = None

    def acquire(self) -> None:
        """Wait for the device. A file that cannot be locked keeps nobody waiting."""
        self._of_threads.acquire()
        try:
            if not self._depth:
                door = _locked(self._door)
                try:
                    self._held = _locked(self._path)
                finally:
                    _unlock(door)
            self._depth += 1
        except BaseException:
            self._of_threads.release()
            raise

    def release(self) -> None:
        """Let the next one in; for the thread that holds it."""
        self._depth -= 1
        if not self._depth:
            held, self._held = self._held, None
            _unlock(held)
        self._of_threads.release()


def lock_path(identity: str) -> Path | None:
    """The lock file of a device of this machine, see `Backend.identity`; None where ROMOU_DEVICE_LOCK=0, or, with a
    warning, where it cannot be written.
    """
    settings = environment.from_environment()
    if not settings.has_device_lock:
        return None
    # Several machines may share the folder.
    path = settings.cache_dir.expanduser() / "locks" / f"{platform.node()}-{identity}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        _warn(str(path), error.strerror)
        return None
    return path


def device_lock(path: Path) -> DeviceLock:
    """The lock of this process with this file."""
    return _locks.setdefault(path, DeviceLock(path))


@contextlib.contextmanager
def saying_that_it_waits(device: str, path: Path) -> Iterator[None]:
    """Log a line if what is done meanwhile takes long. device: its name for a person."""
    text = "waiting for another process that times on %s (the one that holds %s); ROMOU_DEVICE_LOCK=0 times beside it"
    line = threading.Timer(_PATIENCE_S, logger.warning, (text, device, path))
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()


@contextlib.contextmanager
def alone_on(device: str, identity: str) -> Iterator[None]:
    """Hold the lock of a device while something is timed on it. device: its name for a person; identity: see
    `Backend.identity`.
    """
    path = lock_path(identity)
    if path is None:
        yield
        return
    lock = device_lock(path)
    with saying_that_it_waits(device, path):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a file, once nobody else does; None where the file, or its file system, has
    none.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        return None
    except BaseException:
        # Ctrl-C while it waited.
        os.close(descriptor)
        raise
    _descriptors.add(descriptor)
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        # Not by closing it alone: a process that was forked just now may have it as well.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        _descriptors.discard(descriptor)
        os.close(descriptor)


@functools.cache
def _warn(path: str, reason: str | None) -> None:
    logger.warning(
        "%s cannot be written (%s): times may be those of a device that other processes use meanwhile", path, reason
    )


def _leave_to_parent() -> None:
    """In a forked process: the locks are the parent's, and end with it though this process lives on."""
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()
    _locks.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
