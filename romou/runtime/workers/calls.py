"""Functions that a worker process finds by name, and the texts of their errors."""

from __future__ import annotations

import importlib
from typing import Any

from romou.base.errors import UsageError

_ERROR_CHARS = 1200


def resolve(name: str) -> Any:
    """Return the object that "package.module:Class.attribute" names."""
    module, colon, path = name.partition(":")
    if not colon:
        raise UsageError(f"{name!r} does not name a function; write it as 'module:name'")
    obj: Any = importlib.import_module(module)
    for part in path.split("."):
        obj = getattr(obj, part)
    return obj


def shorten(text: str) -> str:
    """Cut the middle of a long text. Its first lines name the error, the last the location."""
    text = text.strip()
    if len(text) <= _ERROR_CHARS:
        return text
    half = _ERROR_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
