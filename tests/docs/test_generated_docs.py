"""The generated tables in docs/ are up to date with the code."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import click
import pytest

import make_docs
import terminal_picture


@pytest.mark.parametrize("page", make_docs.PAGES)
def test_page_is_fresh(page: str) -> None:
    assert (make_docs.ROOT / page).read_text() == make_docs.PAGES[page](), (
        f"{page} is stale: python scripts/make_docs.py"
    )


@pytest.mark.parametrize("program", make_docs.programs())
def test_every_command_and_option_is_listed_and_explained(program: str) -> None:
    page = make_docs.cli()
    listed = list(make_docs.walk(make_docs.programs()[program], program))
    assert len(listed) > 4
    for name, command, _ in listed:
        assert f"\n### {name}\n" in page
        assert command.help
        for option in (p for p in command.params if isinstance(p, click.Option)):
            assert option.help, f"{name} {option.opts[0]} has no help"
            assert f"`{option.opts[0]}" in page or f"`{option.opts[-1]}" in page


def _lines(svg: Path) -> list[str]:
    """Return the lines of text of a picture."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg.read_text()):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    return ["".join(text for _, text in sorted(row)) for _, row in sorted(rows.items())]


def test_picture_shows_what_a_command_prints(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    assert terminal_picture.main([str(path), sys.executable, "-c", "print('a <table>'); raise SystemExit(3)"]) == 3
    assert "a <table>" in _lines(path)


def test_readme_names_the_command_of_its_picture() -> None:
    shown = next(line for line in _lines(make_docs.ROOT / "docs/tune.svg") if line.startswith("$ "))
    readme = " ".join((make_docs.ROOT / "README.md").read_text().split())
    assert f"`python scripts/terminal_picture.py docs/tune.svg {shown.removeprefix('$ ').strip()}`" in readme
