"""Compilers' results by what went into them: a text that did not change since the run before is not compiled again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[3] / ".pytest_cache" / "compiled"


def kept(suffix: str, *given: str) -> Path:
    """Return where the result of what is `given` is kept, be it there or not."""
    return FOLDER / f"{hashlib.sha256(chr(0).join(given).encode()).hexdigest()[:32]}{suffix}"


def compiled(suffix: str, *given: str, by: Callable[[Path], None]) -> Path:
    """Return the file that `by` writes, or what it wrote when it was `given` the same; processes may ask for it at the
    same time.
    """
    path = kept(suffix, *given)
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.stem}.{os.getpid()}{suffix}")
        try:
            by(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    return path
