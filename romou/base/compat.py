"""Checks of installed packages: TVM's versions, and what only some uses need."""

from __future__ import annotations

import importlib
from typing import Any

from romou.base.errors import CompatError, UsageError
from tvm_patches import compat
from tvm_patches.errors import VersionError


def check_versions() -> None:
    """Raise CompatError unless the TVM packages are the pinned pair and the runtimes were built for them."""
    try:
        compat.check_versions()
    except VersionError as error:
        raise CompatError(error.message, hint=error.hint, **error.fields) from error


def optional_module(name: str, text: str, hint: str) -> Any:
    """Import a module of a package that only some uses need. UsageError with the text and the hint if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(text, hint=hint) from error
