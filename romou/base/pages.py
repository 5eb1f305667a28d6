"""Pages of the documentation, which messages name by topic: `romou docs TOPIC` prints one, in a wheel too."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# Folders of pages that a person wrote. setup.py copies them into the wheel.
ROOMS = ("guide", "evidence")


def stored_pages() -> dict[str, Path]:
    """Return the file of each topic: those beside the package in a wheel, else those of the checkout."""
    folders = [docs / room for docs in (_PACKAGE / "docs", _PACKAGE.parent / "docs") for room in ROOMS]
    return {path.stem: path for folder in reversed(folders) for path in sorted(folder.glob("*.md"))}


def page_of(topic: str) -> str:
    """Return the words by which a message names a page. tests/docs looks up every topic."""
    return f"`romou docs {topic}`"
