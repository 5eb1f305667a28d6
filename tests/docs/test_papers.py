"""The page of papers: every figure and table has a command, and every command exists and runs in its smallest form."""

from __future__ import annotations

import re
import shlex

import click
import pytest

import make_docs
from support.docs.documents import ROOT
from support.docs.smallest_runs import MESA_RUNS, RUNS

PAGE = ROOT / "docs/evidence/papers.md"
ROW = re.compile(r"^\| ([^|]+) \| `([^`|]+)` \| ([^|]+) \|$", re.MULTILINE)
# Section -> numbers of figures and tables that show a measurement, or a list that is measured.
SHOWN = {
    "Romou (MobiCom 2022)": "table 1 2 figure 2 3a 3b 5 6 7 8 9 11 13 14 15 16 17 18",
    "Boda-RTC (2016)": "figure 2 3 6 7 8 table I II",
    "A metaprogramming and autotuning framework (2016)": "figure 9 10 11 12 13",
    "BEAST": "table 2 3 figure 7 8 9 10 11",
    "MetaGPU": "table 3 5 figure 5 6 7",
}
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def numbers(text: str) -> set[tuple[str, str]]:
    """Return ("figure", "13") for each figure or table that a text names."""
    kind, named = "", set()
    for word in re.findall(r"figures?|tables?|\b(?:\d+[ab]?|I{1,2})\b", text):
        if word.startswith(("figure", "table")):
            kind = word.rstrip("s")
        elif kind:
            named.add((kind, word))
    return named


@pytest.mark.parametrize("section", SHOWN)
def test_every_figure_has_a_row(section: str) -> None:
    rows = ROW.findall(SECTIONS[section])
    assert len(rows) == sum(line.startswith("| ") for line in SECTIONS[section].splitlines()) - 1, (
        "a row has no command"
    )
    found = set().union(*(numbers(name.partition(":")[0]) for name, _, _ in rows))
    assert found == numbers(SHOWN[section])


@pytest.mark.parametrize("command", sorted({command for _, command, _ in ROW.findall(PAGE.read_text("utf-8"))}))
def test_every_command_runs(command: str) -> None:
    program, *words = shlex.split(command)
    if program in make_docs.programs():
        group = make_docs.programs()[program]
        subcommand = group.get_command(click.Context(group), words[0])
        assert subcommand is not None
        # Refuses unknown options and superfluous arguments, without a look at files.
        with click.Context(subcommand, resilient_parsing=True) as context:
            subcommand.parse_args(context, words[1:])
            assert not context.args
        return
    assert program == "python"
    script = ROOT / words[0]
    assert script.stem in {*RUNS, *MESA_RUNS}
    shared = script.with_name("mobile_options.py")
    text = "".join(file.read_text(encoding="utf-8") for file in (script, shared))
    assert all(f'"{word}"' in text for word in words[1:] if word.startswith("--"))


def test_the_sections_are_the_papers() -> None:
    assert list(SECTIONS) == list(SHOWN)


def test_numbers_are_read() -> None:
    assert numbers("figure 2, tables I and II") == {("figure", "2"), ("table", "I"), ("table", "II")}
