"""Regular files in folders that anybody can write to.

Opening a pipe would wait for its other end without a limit, and opening a device may act on it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

# Bytes of a file that is read whole, and of its decompressed content.
MOST_BYTES = 1 << 28


def regular(path: str | Path, flags: int) -> int:
    """Open a regular file and return its descriptor, as the opener of `open(path, mode, opener=regular)`.

    Raises OSError if the name belongs to anything but a regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is no regular file", str(path))


def digest_of(content: bytes) -> bytes:
    """Return the SHA-256 of a file's content, which ends the file."""
    return hashlib.sha256(content).hexdigest().encode()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the file `path` when the block ends. The folder is made.

    A reader sees the old file or the whole new one. After an exception the old one stays. A symbolic link stays, and
    its file is replaced.

    Raises OSError if the name belongs to anything but a regular file.
    """
    path = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_file(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file. Raises OSError as `regular` does, or if it has more than `most_bytes`."""
    with open(path, "rb", opener=regular) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes >> 20} MiB", str(path))
    return content
