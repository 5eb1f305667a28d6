"""Checks a report in headless Chromium and draws its first figures as PNG.

python scripts/report_picture.py docs/report.png report.html
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from browser import draw, evaluate

DRAWN = "document.body?.dataset.drawn !== undefined"
# Figures without a mark: neither a reason nor anything drawn.
EMPTY = (
    "[...document.querySelectorAll('main section')]"
    ".filter(s => !s.querySelector('.unknown, svg .role-mark path')).map(s => s.id)"
)
REQUESTS = "performance.getEntriesByType('resource').map(entry => entry.name)"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Select each layer in turn. The page draws its figures again, and errors are recorded.
EVERY_LAYER = """(async () => {
  const menu = document.getElementById("layers");
  for (const option of [...menu.options].reverse()) {
    menu.value = option.value;
    menu.dispatchEvent(new Event("change"));
    await new Promise(resolve => setTimeout(resolve, 60));
  }
})()"""
WIDTH, HEIGHT = 1280, 1060


def check(path: Path, width: int, expressions: Sequence[str] = ()) -> tuple[list[str], list[Any]]:
    """Open a report in a window of this width. Return its problems, and the values of expressions in the page.

    Problems are errors, empty figures, figures wider than the window, and requests.
    """
    values, errors = evaluate(path, width, DRAWN, [EVERY_LAYER, EMPTY, OVERFLOW, REQUESTS, *expressions])
    _, empty, too_wide, requests, *found = values
    problems = [*errors, *(f"{name} is empty" for name in empty), *(f"asks for {name}" for name in requests)]
    problems += [f"{too_wide} pixels wider than a window of {width}"] if too_wide > 0 else []
    return problems, found


def main(arguments: list[str]) -> int:
    """Return 1 if the report has problems, else 0."""
    if len(arguments) != 2:
        print("usage: report_picture.py FILE.png REPORT.html", file=sys.stderr)
        return 2
    picture, report = map(Path, arguments)
    wrong = check(report, 400)[0] + check(report, WIDTH)[0]
    draw(report, picture, WIDTH, HEIGHT)
    print("\n".join(wrong) or f"wrote {arguments[0]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
