"""Folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from romou.core.errors import UsageError


@contextlib.contextmanager
def replacing(folder: Path, *, marker: str, what: str) -> Iterator[Path]:
    """A fresh folder to fill, which takes the place of `folder` at the end; after an error `folder` is as it was.

    Parameters
    ----------
    marker
        A file that tells one of our folders.
    what
        One of ours in words, "a saved model".

    Raises
    ------
    UsageError
        `folder` exists and is none of ours.
    """
    if folder.exists() and not (folder / marker).is_file():
        raise UsageError(f"{folder} exists and is not {what}; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its final place and moved: a half-written one never stands under the name.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        yield fresh
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(fresh, folder)
