"""Cached results of compilers, by their inputs: a text that did not change since the last run is not compiled again."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[3] / ".pytest_cache" / "compiled"


def kept(suffix: str, *given: str) -> Path:
    """Return the path of the cached result for `given`, whether it exists or not."""
    return FOLDER / f"{hashlib.sha256(chr(0).join(given).encode()).hexdigest()[:32]}{suffix}"


@contextlib.contextmanager
def holding(name: str) -> Iterator[None]:
    """Hold a lock of all processes of the checkout."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compiled(suffix: str, *given: str, by: Callable[[Path], None]) -> Path:
    """Return the file that `by` writes, or the cached file of an earlier call with the same `given`. Of several
    processes that call it concurrently, one compiles, and the others wait.
    """
    path = kept(suffix, *given)
    if not path.exists():
        with holding(path.stem):
            if not path.exists():
                partial = path.with_name(f"{path.stem}.{os.getpid()}{suffix}")
                try:
                    by(partial)
                    partial.replace(path)
                finally:
                    partial.unlink(missing_ok=True)
    return path
