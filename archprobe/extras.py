"""Packages that reports and pictures need, and nothing else of Romou."""

from __future__ import annotations

import importlib
from typing import Any

from archprobe.errors import UsageError


def module(name: str) -> Any:
    """Import a module of the extra `archprobe`. UsageError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise UsageError(
            f"{error.name} is not installed, which ArchProbe's reports and pictures need:"
            " pip install 'romou[archprobe]'"
        ) from error
