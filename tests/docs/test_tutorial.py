"""The code of docs/contributing/inside.md prints the output that the page shows."""

from __future__ import annotations

import contextlib
import io
import itertools
from typing import Any

from support.docs.documents import ROOT, blocks


def test_the_code_prints_the_text_below_it() -> None:
    page = ROOT / "docs/contributing/inside.md"
    text = page.read_text()
    both = [block for language in ("python", "text") for block in blocks(language) if block.path == page]
    both.sort(key=lambda block: text.index(f"```{block.language}\n{block.text}"))
    space: dict[str, Any] = {}
    shown = 0
    for block, following in itertools.pairwise([*both, None]):
        if block is None or block.language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block.text, space)
        expected = following.text if following is not None and following.language == "text" else ""
        assert printed.getvalue() == expected
        shown += bool(expected)
    assert shown == sum(block.language == "text" for block in both) > 5
