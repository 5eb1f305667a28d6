"""Shared helpers of the documentation tests: the documents, their code blocks and the commands in them."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import make_docs

ROOT = Path(__file__).resolve().parents[3]
NAMES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "archprobe/README.md",
    "tvm_patches/README.md",
    "benchmarks/README.md",
    "benchmarks/data/README.md",
)
DOCUMENTS = (*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md")))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a document."""

    path: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


@functools.cache
def _generated() -> dict[Path, str]:
    return {ROOT / path: write() for path, write in make_docs.PAGES.items()}


def blocks(language: str, *, is_generated: bool = False) -> list[CodeBlock]:
    """Return the fenced blocks in a language: of all documents, or of the pages that the site's build writes."""
    texts = _generated() if is_generated else {path: path.read_text() for path in DOCUMENTS}
    return [
        CodeBlock(path, found[1], found[2])
        for path, text in texts.items()
        for found in _FENCE.finditer(text)
        if found[1] == language
    ]


def prose(path: Path) -> str:
    """Return a document without its fenced blocks."""
    return _FENCE.sub("", path.read_text())


def code_spans(path: Path) -> list[str]:
    """Return the text between single backticks in the prose of a document."""
    return _SPAN.findall(prose(path))


def commands(text: str) -> Iterator[list[str]]:
    """Yield the command lines of a shell block as words, without comments, variables and the commands after a pipe."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;>"):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"[A-Z_]+=", word):
                words.append(word)
