"""Checks of the arguments of public functions, each with one wording."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

from romou.base.errors import UsageError


def path_of(name: str, value: Any) -> Path:
    """Return a path that was given as text or as a Path."""
    if not isinstance(value, str | Path) or value == "":
        raise UsageError(f"{name}={value!r}: must be a path", option=name, value=value)
    return Path(value)


def whole_of(name: str, value: Any, *, lowest: int = 0) -> int:
    """Return a whole number, NumPy's too, that is not below `lowest`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = lowest - 1
    if number < lowest or isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: must be a whole number, at least {lowest}", option=name, value=value)
    return number


def instance_of(name: str, value: Any, kind: type) -> None:
    """Raise UsageError unless `value` is of type `kind`."""
    if not isinstance(value, kind):
        raise UsageError(f"{name}={value!r}: must be of type {kind.__name__}", option=name, value=value)
