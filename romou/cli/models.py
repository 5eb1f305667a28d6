"""The MODEL argument of commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romou.base.errors import UsageError
from romou.base.open_dimensions import check_closed


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


def check_dimensions(text: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError if the options of an import leave dimensions of an ONNX file open, before anything is loaded.

    A file that cannot be read is an error later.
    """
    if not Path(text).is_file():
        return
    import onnx

    try:
        model = onnx.load(text, load_external_data=False)
    except Exception:  # protobuf raises many types
        return
    shapes = options["shapes"] or {}
    given = {name for each in (shapes if isinstance(shapes, list) else [shapes]) for name in each}
    check_closed(model, {*given, *(options["constants"] or {})}, options["dims"] or ())


def default_output(text: str) -> Path:
    """Return the path of a model saved without --output: its name with .romou, in the current folder."""
    return Path(f"{Path(text.removeprefix('bundled:')).stem}.romou")
