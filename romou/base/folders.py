"""Folders that appear whole or not at all, and temporary folders, which are removed with their process."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from romou.base.errors import UsageError

_HELD = "romou-held-"


class HeldFolder(tempfile.TemporaryDirectory[str]):
    """A private temporary folder. Its process removes it, or after a kill the next process that makes such a folder.

    The process holds a lock on the folder, which ends with the process. So no process mistakes the folder of a live one
    for a left-over, even if containers that share a folder use the same process numbers.

    purpose: part of the folder's name.
    inside: its parent folder. None for the system's temporary folder. Left-overs there are removed first, once a
    process.
    """

    def __init__(self, purpose: str, *, inside: str | Path | None = None) -> None:
        where = str(inside if inside is not None else tempfile.gettempdir())
        _remove_left_overs(where)
        lock = None
        while lock is None:
            super().__init__(prefix=f"{_HELD}{purpose}-", dir=where, ignore_cleanup_errors=True)
            # Another process may have seen the folder before it was locked, and have removed it.
            lock = _lock(self.name, is_ours=True)
        self._let_go = weakref.finalize(self, os.close, lock)

    @property
    def path(self) -> Path:
        """The folder's path."""
        return Path(self.name)

    def cleanup(self) -> None:
        """Remove the folder."""
        super().cleanup()
        self._let_go()


@functools.cache
def _remove_left_overs(where: str) -> None:
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            if entry.name.startswith(_HELD) and (lock := _lock(entry.path)) is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)


def _lock(path: str, *, is_ours: bool = False) -> int | None:
    """Return a descriptor that holds the lock of a folder. None if another process holds it or the folder is gone.

    is_ours: the folder was made just now, so it is taken even on a file system without locks.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if is_ours and not isinstance(error, FileNotFoundError):
            raise
        return None
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(folder), os.stat(path)):
                return folder
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        if is_ours:
            return folder
    os.close(folder)
    return None


def check_replaceable(folder: Path, *, marker: str, what: str) -> None:
    """Raise the UsageError that `replacing` would raise now. `folder` stays as it is."""
    with contextlib.suppress(_UndoneError), replacing(folder, marker=marker, what=what):
        raise _UndoneError


class _UndoneError(Exception):
    """Ends `replacing` before it replaces the folder."""


@contextlib.contextmanager
def replacing(folder: Path, *, marker: str, what: str) -> Iterator[Path]:
    """Yield an empty folder, which replaces `folder` at the end. After an exception `folder` is as it was.

    marker: a file in every folder that may be replaced.
    what: such a folder in words, for example "a saved model".

    Raises UsageError if `folder` exists without the marker, or cannot be written.
    """
    try:
        if folder.exists() and not (folder / marker).is_file():
            raise UsageError(f"{folder} exists and is not {what}; choose another folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its final place and then moved, so the name never belongs to a half-written folder.
        with HeldFolder("save", inside=folder.parent) as scratch:
            fresh, old = Path(scratch, "fresh"), Path(scratch, "old")
            fresh.mkdir()
            yield fresh
            has_old = folder.exists()
            if has_old:
                folder.rename(old)
            try:
                fresh.rename(folder)
            except OSError:
                if has_old:
                    old.rename(folder)
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"{folder}: {what} cannot be written here: {reason}",
            hint="Free some space, or choose a folder that may be written.",
        ) from error
