"""Folders that appear whole or not at all, and temporary ones that outlive no process."""

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
    """A private temporary folder, removed with its process: by the process itself, or after a kill by the next one that
    makes such a folder.

    The process holds a lock on the folder, which ends with it. So no other one takes the folder of a live process for a
    left-over, also where process numbers are used again or mean another process, as in containers that share a folder.

    purpose: part of the folder's name.
    inside: where it lies; None: in the temporary folder of the system. Left-overs there are removed first, once a
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
        """Where the folder is."""
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
    """A descriptor that holds the lock of a folder of this user's; None where another process has it or the folder is
    gone.

    is_ours: the folder was made here just now, so it is taken on a file system without locks, too.
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
    """UsageError where `replacing` would raise it as things are; `folder` stays as it is."""
    with contextlib.suppress(_UndoneError), replacing(folder, marker=marker, what=what):
        raise _UndoneError


class _UndoneError(Exception):
    """Ends `replacing` before it replaces."""


@contextlib.contextmanager
def replacing(folder: Path, *, marker: str, what: str) -> Iterator[Path]:
    """A fresh folder to fill, which takes the place of `folder` at the end; after an error `folder` is as it was.

    marker: a file that tells one of our folders.   what: one of ours in words, "a saved model".

    UsageError where `folder` exists and is none of ours, or cannot be written.
    """
    try:
        if folder.exists() and not (folder / marker).is_file():
            raise UsageError(f"{folder} exists and is not {what}; choose another folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its final place and moved: a half-written one never stands under the name.
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
