"""The tables in docs/ that are read off the code say what the code says now."""

from __future__ import annotations

import click
import make_docs
import pytest


@pytest.mark.parametrize("page", make_docs.PAGES)
def test_page_is_fresh(page: str) -> None:
    assert (make_docs.ROOT / page).read_text() == make_docs.PAGES[page](), f"{page} is stale: python scripts/make_docs.py"


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
