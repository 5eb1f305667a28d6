"""Prose keeps to the field's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import make_docs
from support.docs.documents import DOCUMENTS, ROOT, prose

FOLDERS = ("romou", "archprobe", "scripts", "benchmarks", "tests")
# Pattern -> the word to write instead. The glossary defines each term.
_WORDS = {
    r"halfs": "fp16",
    r"half-precision numbers": "fp16",
    r"lessons?": "pretrained cost model, or transfer data",
    r"mend(s|ed|ing)?": "hint (for a person), fix (for code)",
    r"recorded runs?": "captured CUDA graph, recorded command buffer",
    r"replay(s|ed|ing)?": "simulation (of recorded spaces); launch of a graph or command buffer",
    r"turns? of (a|the|its) [\w ]*loop": "iteration",
    r"(one|a|each|every|this|next|per) turn": "iteration",
    r"(lives|held|holds) at once": "live registers",
}
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b", re.IGNORECASE)


def _wrong_words(text: str) -> list[str]:
    """Return the forbidden words of `text`, each with its replacement. Code between backticks is ignored."""
    spoken = " ".join(re.sub(r"`[^`]*`", "CODE", text).split())
    return [
        f"{found[0]!r}: {next(w for pattern, w in _WORDS.items() if re.fullmatch(pattern, found[0], re.IGNORECASE))}"
        for found in _WORD.finditer(spoken)
    ]


def _docstrings(folder: str) -> Iterator[tuple[Path, int, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                text := ast.get_docstring(node)
            ):
                yield path.relative_to(ROOT), getattr(node, "lineno", 1), text


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_use_the_fields_words(folder: str) -> None:
    docstrings = list(_docstrings(folder))
    assert docstrings
    wrong = [f"{path}:{line}: {word}" for path, line, text in docstrings for word in _wrong_words(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_the_fields_words(path: Path) -> None:
    # The glossary and the style rules have to name the words that they replace, in backticks.
    assert not _wrong_words(prose(path))


# Words of a sentence in a user's page, at most. Code between backticks is one word.
MOST_WORDS = 32


def _long_sentences(text: str) -> list[str]:
    text = re.sub(r"^(\||#|<!--).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", text))
    items = (" ".join(item.split()) for item in re.split(r"\n\s*\n|\n(?=- |\d+\. )", text))
    sentences = (sentence for item in items for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z\[(])", item))
    return [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS]


@pytest.mark.parametrize("path", sorted((ROOT / "docs/guide").glob("*.md")), ids=lambda path: path.stem)
def test_a_users_page_has_short_sentences_and_no_measurements(path: Path) -> None:
    assert not _long_sentences(prose(path))
    assert "<!-- measured" not in path.read_text(), "measurements stand in docs/evidence"


@pytest.mark.parametrize("program", make_docs.programs())
def test_help_uses_the_fields_words(program: str) -> None:
    for name, command, _ in make_docs.walk(make_docs.programs()[program], program):
        texts = [command.help or "", *(p.help or "" for p in command.params if isinstance(p, click.Option))]
        assert not [f"{name}: {word}" for text in texts for word in _wrong_words(text)]


def test_the_check_finds_what_it_looks_for() -> None:
    assert _wrong_words("What the halfs of one turn of the inner loop hold")
    assert not _wrong_words("Times both `halfs` in turns")
    assert _long_sentences("It prints " + "a word, " * MOST_WORDS + "and `code that is one word`.")
    assert not _long_sentences("It prints " + "a word. It prints " * MOST_WORDS + "more.")
