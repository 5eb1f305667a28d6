"""Shared helpers of the documentation tests: the documents, their code blocks and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
DOCUMENTS = (*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").glob("*/*.md")))
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


def blocks(language: str) -> list[CodeBlock]:
    """Return the fenced blocks of all documents in a language."""
    return [
        CodeBlock(path, found[1], found[2])
        for path in DOCUMENTS
        for found in _FENCE.finditer(path.read_text())
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
