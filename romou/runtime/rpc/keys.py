"""The key of an RPC server, read from sources that other users of this machine cannot read."""

from __future__ import annotations

from pathlib import Path

from romou.base import environment
from romou.base.errors import UsageError
from romou.base.files import read_file
from romou.base.foreign import refused

VARIABLE = "ROMOU_RPC_KEY"
_MOST_BYTES = 4096
WARNING = (
    "WARNING: every user of this machine can read --key in the list of processes, and who knows the key runs code"
    f" here. Use --key-file or {VARIABLE}."
)


def checked(key: str) -> str:
    """Return the key. Raise UsageError if it is invalid."""
    if not key or any(c.isspace() or c in "/:" for c in key) or key.startswith("@"):
        raise UsageError(
            "the key must be a word without spaces, slashes and colons, and not begin with @",
            hint="Anyone who knows the key can run any code.",
        )
    return key


def from_file(path: Path) -> str:
    """Return the key in a file. Raise UsageError if it cannot be read, is invalid, or other users can read it."""
    with refused(UsageError, f"cannot read a key from {path}", hint="Write a secret word into a file of yours."):
        is_open, key = bool(path.stat().st_mode & 0o077), read_file(path, most_bytes=_MOST_BYTES).decode().strip()
    if is_open:
        raise UsageError(f"other users of this machine have access to the key in {path}", hint=f"chmod 600 {path}")
    return checked(key)


def from_environment() -> str | None:
    """Return the key in the environment, or None."""
    key = environment.variable(VARIABLE)
    return None if key is None else checked(key)
