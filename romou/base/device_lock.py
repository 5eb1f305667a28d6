"""A lock of each device among the processes of a user, so that no process measures the load of another one."""

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
    """A ticket lock of one device. It ends with the process, and the thread that holds it may take it again.

    A process has to hold the queue lock to wait for the device, so a process that takes the device again at once cannot
    overtake one that waits.

    path: the lock's file. The file of the queue lock is beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._door = path, path.with_suffix(".door")
        self._of_threads = threading.RLock()
        self._depth = 0
        self._held: int | None = None

    def acquire(self) -> None:
        """Wait for the device. If its file cannot be locked, do not wait."""
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
        """Let the next process in."""
        self._depth -= 1
        if not self._depth:
            held, self._held = self._held, None
            _unlock(held)
        self._of_threads.release()


def lock_path(identity: str) -> Path | None:
    """Return the lock file of a device of this machine, by its `Backend.identity`.

    None if ROMOU_DEVICE_LOCK=0 or, with a warning, if the file cannot be written.
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
    """Return this process's lock with a file."""
    return _locks.setdefault(path, DeviceLock(path))


@contextlib.contextmanager
def saying_that_it_waits(device: str, path: Path) -> Iterator[None]:
    """Log a line if the work inside takes long. device: its name in the message."""
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
    """Hold the lock of a device while something is timed on it.

    device: its name in messages.
    identity: see `Backend.identity`.
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
    """Wait for the lock of a file, and return the descriptor that holds it. None if the file cannot be locked."""
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
        # Closing it is not enough: a process that was forked just now may hold it as well.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        _descriptors.discard(descriptor)
        os.close(descriptor)


@functools.cache
def _warn(path: str, reason: str | None) -> None:
    logger.warning(
        "%s cannot be written (%s): times may be those of a device that other processes use meanwhile", path, reason
    )


def _leave_to_parent() -> None:
    """Forget all locks in a forked process. They are the parent's and end with the parent."""
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()
    _locks.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
