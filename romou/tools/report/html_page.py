"""Writes reports as HTML pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archprobe.pages import render
from romou.base.errors import UsageError
from romou.base.version import __version__


def write_html(template: str, path: Path, **parts: Any) -> Path:
    """Write the page of a template of this folder, and return its path. UsageError if it cannot be written."""
    text = render(template, package=__package__, version=__version__, **parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}", path=str(path)) from error
    return path
