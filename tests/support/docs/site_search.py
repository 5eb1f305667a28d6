"""The site's own search and its list of versions, in a headless Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from browser import chromium_command

# Types each question into the search box, waits until other hits are shown, and sends their links.
_PAGE = """<!doctype html><meta charset="utf-8"><iframe src="index.html?q=kernel" width=1200></iframe>
<script>
const links = () => [...document.querySelector("iframe").contentDocument
  .querySelectorAll(".md-search-result__item a")].map(link => new URL(link.href));
const pause = () => new Promise(resolve => setTimeout(resolve, 50));
addEventListener("load", async () => {
  const box = document.querySelector("iframe").contentDocument.querySelector("[data-md-component=search-query]");
  const answers = {};
  let shown = "";
  // The list of hits is emptied first, and then grows.
  const settled = async before => {
    for (let rounds = 0; rounds < 200; rounds++) {
      shown = links().join();
      await pause();
      if (shown && shown !== before && shown === links().join()) return;
    }
  };
  await settled("");
  for (const question of %s) {
    box.value = question;
    box.dispatchEvent(new Event("keyup"));
    await settled(shown);
    answers[question] = links().map(link => link.pathname + link.hash);
  }
  await fetch("answers", {method: "POST", body: JSON.stringify(answers)});
});
</script>"""
# Waits until the heading has versions, and sends their links.
_VERSIONS = """<!doctype html><meta charset="utf-8"><iframe src="%s/index.html" width=1200></iframe>
<script>
addEventListener("load", async () => {
  let links = [];
  for (let rounds = 0; rounds < 200 && !links.length; rounds++) {
    await new Promise(resolve => setTimeout(resolve, 50));
    links = [...document.querySelector("iframe").contentDocument.querySelectorAll(".md-version__link")];
  }
  const answer = Object.fromEntries(links.map(link => [link.textContent.trim(), new URL(link.href).pathname]));
  await fetch("answers", {method: "POST", body: JSON.stringify(answer)});
});
</script>"""
_PATIENCE_S = 120.0


def hits(site: Path, questions: Sequence[str]) -> dict[str, list[str]]:
    """Return the links that the search shows for each question, in order: "/guide/faq/#what-does-exit-code-3-mean"."""
    answers: dict[str, list[str]] = _answers(site, _PAGE % json.dumps(list(questions)))
    return answers


def versions(site: Path, version: str) -> dict[str, str]:
    """Return the versions in the heading of this version's first page: {"0.2.0": "/0.2.0/"}."""
    answers: dict[str, str] = _answers(site, _VERSIONS % version)
    return answers


def _answers(site: Path, page: str) -> Any:
    """Return what a page beside the site's sends to `answers`."""
    received: queue.Queue[bytes] = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Print nothing."""

    (site / "ask.html").write_text(page, encoding="utf-8")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [*chromium_command(profile), "--remote-debugging-port=0"]
        address = f"http://127.0.0.1:{server.server_port}/ask.html"
        browser = subprocess.Popen([*command, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return json.loads(received.get(timeout=_PATIENCE_S))
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
            server.server_close()
