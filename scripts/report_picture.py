"""Checks a report in headless Chromium and draws its first figures as PNG.

python scripts/report_picture.py docs/report.png report.html
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from browser import Page, browser

DRAWN = "document.body?.dataset.drawn !== undefined"
# Figures without a mark: neither a reason nor anything drawn.
EMPTY = (
    "[...document.querySelectorAll('main section')]"
    ".filter(s => !s.querySelector('.unknown, svg .role-mark path')).map(s => s.id)"
)
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
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


async def check(page: Page, path: Path, width: int) -> list[str]:
    """Open a report in a window of this width and return its problems.

    Problems are errors, empty figures, figures wider than the window, and requests.
    """
    await page.open(path, width=width, until=DRAWN)
    await page.value(EVERY_LAYER)
    wrong = list(page.errors)
    wrong += [f"{name} is empty" for name in await page.value(EMPTY)]
    too_wide = await page.value(OVERFLOW)
    wrong += [f"{too_wide} pixels wider than a window of {width}"] if too_wide > 0 else []
    requests = await page.value("performance.getEntriesByType('resource').map(r => r.name)")
    return wrong + [f"asks for {name}" for name in requests]


async def draw(report: Path, picture: Path) -> list[str]:
    """Write the picture and return the report's problems."""
    async with browser() as page:
        wrong = await check(page, report, 400) + await check(page, report, WIDTH)
        await page.picture(picture, width=WIDTH, height=HEIGHT)
    return wrong


def main(arguments: list[str]) -> int:
    """Return 1 if the report has problems, else 0."""
    if len(arguments) != 2:
        print("usage: report_picture.py FILE.png REPORT.html", file=sys.stderr)
        return 2
    wrong = asyncio.run(draw(Path(arguments[1]), Path(arguments[0])))
    print("\n".join(wrong) or f"wrote {arguments[0]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
