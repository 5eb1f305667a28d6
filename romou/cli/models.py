"""The MODEL argument of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from romou.base.errors import UsageError


def read_model(text: str) -> Any:
    """Return the bundled network that bundled:NAME names, or the path of an ONNX file.

    UsageError if neither exists.
    """
    from romou import models  # imports NumPy, which --help does without

    network = models.bundled(text)
    if network is not None:
        return network
    if not Path(text).is_file():
        raise UsageError(f"model file {text!r} does not exist", hint=models.hint(text), path=text)
    return Path(text)


def default_output(text: str) -> Path:
    """Return the path of a model saved without --output: its name with .romou, in the current folder."""
    return Path(f"{Path(text.removeprefix('bundled:')).stem}.romou")
