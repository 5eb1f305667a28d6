"""Runs JavaScript in a page, and draws a page, by the command line of headless Chromium, without network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Milliseconds of the page's clock, which skips to the next timer when nothing else is left to do.
_BUDGET_MS = 60_000
# Seconds until a page is drawn, on a machine that other work keeps busy.
_PATIENCE_S = 120.0
_RECORD_ERRORS = """<script>
window.errors = [];
console.error = (...words) => errors.push(words.join(" "));
addEventListener("error", event => errors.push(event.message ?? `${event.target.tagName} does not load`), true);
addEventListener("unhandledrejection", event => errors.push(String(event.reason)));
</script>"""
# The page is in a frame, because a window of Chromium is at least 500 pixels wide.
_AROUND = """<!doctype html><meta charset="utf-8">
<iframe src="page.html" style="width: %dpx; height: 900px; border: 0"></iframe>
<script>
addEventListener("load", async () => {
  const page = document.querySelector("iframe").contentWindow, values = [];
  let failure = "";
  while (!page.eval(%s)) await new Promise(resolve => setTimeout(resolve, 50));
  try {
    for (const expression of %s) values.push(await page.eval(expression));
  } catch (error) { failure = String(error) }
  const result = JSON.stringify([values, page.errors, failure]);
  document.body.appendChild(document.createElement("pre")).textContent = result;
});
</script>"""


def evaluate(path: Path, width: int, until: str, expressions: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Open a page `width` pixels wide, wait until the expression `until` is true, and evaluate others in order.

    Return (values, errors): of promises what they resolve to, and the messages of the console and uncaught exceptions.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        text = path.read_text(encoding="utf-8").replace("<head>", f"<head>{_RECORD_ERRORS}", 1)
        Path(folder, "page.html").write_text(text, encoding="utf-8")
        around = Path(folder, "around.html")
        around.write_text(_AROUND % (width, json.dumps(until), json.dumps(list(expressions))), encoding="utf-8")
        printed = _chromium(around, "--allow-file-access-from-files", "--dump-dom")
    result = re.search(r"<pre>(.*)</pre>", printed, re.DOTALL)
    assert result is not None, f"{path} was not drawn: {printed[-500:]}"
    values, errors, failure = json.loads(html.unescape(result[1]))
    assert not failure, f"{path}, expression {len(values) + 1}: {failure}"
    return values, errors


def draw(path: Path, picture: Path, width: int, height: int) -> None:
    """Save the upper left part of a page as PNG."""
    _chromium(path, f"--screenshot={picture.absolute()}", f"--window-size={width},{height}", "--hide-scrollbars")


def chromium_command(profile: str) -> list[str]:
    """Return the command of a headless Chromium that keeps its state in the folder `profile` and reaches no network."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    # A skipped test would hide that.
    assert found is not None, "there is no chromium; scripts/setup_env.sh installs it (apt-get install chromium)"
    switches = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    return [found, *switches, "--proxy-server=127.0.0.1:9", f"--user-data-dir={profile}"]


def _chromium(page: Path, *switches: str) -> str:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            *chromium_command(folder),
            f"--virtual-time-budget={_BUDGET_MS}",
            *switches,
            page.absolute().as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_PATIENCE_S, check=True)
        return done.stdout
