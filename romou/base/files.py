"""Files of folders that anybody may have put something into: only regular ones are opened, and nothing is waited for.

Opening a pipe waits for its other end, without a limit; opening a device may act on it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def regular(path: str | Path, flags: int) -> int:
    """Open a regular file, and return its descriptor; the opener of `open(path, mode, opener=regular)`.

    OSError where something else has that name.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is no regular file", str(path))


def read_file(path: Path) -> bytes:
    """Return what a regular file holds; OSError as of `regular`."""
    with open(path, "rb", opener=regular) as file:
        return file.read()
