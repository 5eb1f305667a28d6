"""Hooks of mkdocs.yml: pages that are written from the code, links that leave docs/, and the words of each room."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from make_docs import PAGES, ROOT

# Files beside docs/ that are pages too.
_FROM_ROOT = {name: f"contributing/{name.lower()}" for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
# How much more a hit counts in a user's page than in a table of measurements.
_BOOST = {"guide": 3.0, "evidence": 0.5, "contributing": 0.5}
# A node's name grows by a letter and the number of the node that it leads to, in minified JavaScript: e=e+s+o.id
_NODE_NAME = re.compile(r"\b(\w)=\1\+\w\+\w\.id\b")
_words: Counter[str] = Counter()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave edit links out if no address of the repository is given."""
    config.edit_uri = config.edit_uri if config.repo_url else None
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not stored in docs/."""
    for path, write in PAGES.items():
        files.append(File.generated(config, path.removeprefix("docs/"), content=write()))
    for name, path in _FROM_ROOT.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link to a page of the site, or to the repository's file.

    [a](../../CONTRIBUTING.md)     ->  [a](../contributing/contributing.md)
    [a](../../benchmarks/data)     ->  [a](https://host/owner/romou/blob/main/benchmarks/data), without an address: a
    """
    own = page.file.src_uri
    room = PurePosixPath(own).parts[0] if "/" in own else "."
    page.meta.setdefault("search", {"boost": _BOOST.get(room, 1.0)})
    _words[room] += len(markdown.split())
    stored = next((name for name, path in _FROM_ROOT.items() if path == own), f"docs/{own}")

    def led(match: re.Match[str]) -> str:
        mark, words, link, anchor = match.groups(default="")
        goal = os.path.normpath(os.path.join(os.path.dirname(stored), link))
        path = _FROM_ROOT.get(goal, goal.removeprefix("docs/"))
        if goal in _FROM_ROOT or goal.startswith("docs/"):
            return f"{mark}[{words}]({os.path.relpath(path, os.path.dirname(own))}{anchor})"
        return f"[{words}]({config.repo_url.rstrip('/')}/blob/main/{goal}{anchor})" if config.repo_url else words

    return _LINK.sub(led, markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Correct the search of numbers, and print how much there is to read.

    lunr 2.3 names a node of its index by letters and by the numbers of the nodes that they lead to, with no separator.
    So "1" to node 23 and "12" to node 3 are one, and a search for a digit may fail (olivernn/lunr.js#279).
    """
    for worker in Path(config.site_dir).glob("assets/javascripts/workers/search.*.min.js"):
        script, count = _NODE_NAME.subn(r'\g<0>+","', worker.read_text(encoding="utf-8"))
        assert count == 1, f"{worker.name}: look whether lunr's fault is gone"
        worker.write_text(script, encoding="utf-8")
    print("words:", ", ".join(f"{room} {count:,}" for room, count in sorted(_words.items())))
