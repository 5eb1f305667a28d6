"""Figures in documents are what their commands print, and the generated pages name every option."""

from __future__ import annotations

import html
import os
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import figures
import make_docs
import terminal_picture
from support.docs.documents import ROOT
from support.servers.forked import run


def _texts() -> dict[str, str]:
    return {page: (make_docs.ROOT / page).read_text() for page in make_docs.pages()}


def _printed() -> dict[str, list[tuple[str, figures.Printed]]]:
    """Return the figures that are printed soon, with their pages, by command."""
    by_command: dict[str, list[tuple[str, figures.Printed]]] = {}
    for page, text in _texts().items():
        for figure in figures.printed_figures(text):
            if not figure.is_slow:
                by_command.setdefault(figure.command, []).append((page, figure))
    return by_command


@pytest.mark.parametrize("command", _printed())
def test_figures_are_what_their_command_prints(command: str) -> None:
    program, *words = shlex.split(command)
    done = run(
        *([] if program == "python" else ["-m", program]), *words, env={**os.environ, "COLUMNS": "300"}, cwd=ROOT
    )
    for page, figure in _printed()[command]:
        assert figure.written(done.stdout) == figure.text, f"{page}: python scripts/make_docs.py\n{done.stderr}"


def test_a_figure_is_written_by_its_command() -> None:
    box = "┏━━━━━━┳━━━━━━┓\n┃ name ┃ kept ┃\n┡━━━━━━╇━━━━━━┩\n│ x*   │ {} │\n└──────┴──────┘\n"
    output = f"a table of others\n{box.format(7)}Kept of\n    all\n{box.format(-1.5)}"
    page = "`python benchmarks/a.py` {} `romou space` <!-- printed by romou: 2 -->1<!-- end -->"
    table = page.format("<!-- printed by a.py: Kept of all -->\nold\n<!-- end -->")
    figure, _ = figures.printed_figures(table)
    assert (figure.command, figure.written(output)) == (
        "python benchmarks/a.py",
        "\n\n| name | kept |\n| --- | ---: |\n| x\\* | -1.5 |\n",
    )
    figure, _ = figures.printed_figures(page.format("<!-- printed by a: all…x* # -->1x1 of H100: 9,000%<!-- end -->"))
    assert figure.written(output) == "1x1 of H100: -1.5%"
    for wrong in ("name…x* # #", "kept of none #"):
        (figure, _) = figures.printed_figures(page.format(f"<!-- printed by a: {wrong} -->9<!-- end -->"))
        with pytest.raises(figures.FigureError, match="does not print"):
            figure.written(output)
    with pytest.raises(figures.FigureError, match="stands above"):
        list(figures.printed_figures("<!-- printed by b: # -->9<!-- end -->"))


def test_check_fails_on_what_would_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stale measurements and commands that are not run are named, and fail nothing."""
    passed = CliRunner().invoke(make_docs.main, ["--check", "--only", "docs/evidence/decoders"])
    assert passed.exit_code == 0, passed.output
    assert "not run: python benchmarks/bench_quantized.py --norms\n" in passed.output
    monkeypatch.setattr(make_docs, "with_printed", lambda page, **_: page.replace("# Decoders", "# Others"))
    failed = CliRunner().invoke(make_docs.main, ["--check", "--only", "docs/evidence/decoders"])
    assert failed.exit_code == 1
    assert "-# Decoders" in failed.output
    assert "+# Others" in failed.output


def test_measurements_name_a_commit_that_wrote_them() -> None:
    if not (make_docs.ROOT / ".git").exists():
        pytest.skip("there is no history here")
    for page, text in _texts().items():
        fresh = figures.with_measured(text)
        assert fresh.replace(", older than the code", "") == text.replace(", older than the code", ""), page
    changed = figures.with_measured("5 ms <!-- measured: 2080f67f, a GPU; scripts/make_docs.py --><!-- end -->")
    assert "-->*a GPU, 2026-11-28, commit 2080f67f, older than the code.*<!--" in changed
    assert "older" not in figures.with_measured("<!-- measured: 2080f67f, a GPU; LICENSE --><!-- end -->")


# Tables of numbers that are neither printed nor measured: definitions, examples, limits.
_NOT_FIGURES = {
    "docs/guide/apps.md": "| rank | variant |",
    "docs/guide/faq.md": "| exit code |",
    "docs/guide/getting-started.md": "| step | what runs |",
    "docs/contributing/inside.md": "| layer | over phases |",
    "docs/guide/precision.md": "| check | when | limit |",
}
_CELL = re.compile(r"\| *[-~]?\d[\d,]*(\.\d+)?(e-\d+)?( (us|ms|s|MB|GB/s))?[x%]? *(\||\(|$)")


@pytest.mark.parametrize("page", make_docs.pages())
def test_tables_of_figures_say_where_they_come_from(page: str) -> None:
    """A table with two rows of numbers is printed by a command, or carries device, date and commit."""
    text = re.sub(r"<!-- printed [^\n]*-->\n.*?<!-- end -->", "", _texts()[page], flags=re.DOTALL)
    for table in re.finditer(r"(?:^ *\|.*\n)+", text, re.MULTILINE):
        head, *rows = table[0].splitlines()
        if sum(bool(_CELL.search(row)) for row in rows) < 2 or "<!-- " in table[0]:
            continue
        is_marked = re.match(r"\s*<!-- measured: ", text[table.end() :])
        assert is_marked or head.startswith(_NOT_FIGURES.get(page, "?")), f"{page}: {head}"


@pytest.mark.parametrize("program", make_docs.programs())
def test_every_command_and_option_is_listed_and_explained(program: str) -> None:
    page = make_docs.cli()
    listed = list(make_docs.walk(make_docs.programs()[program], program))
    assert len(listed) > 4
    for name, command, _ in listed:
        assert f"\n### {name}\n" in page
        assert command.help
        for option in (p for p in command.params if isinstance(p, click.Option)):
            assert option.help, f"{name} {option.opts[0]} has no help"
            assert f"`{option.opts[0]}" in page or f"`{option.opts[-1]}" in page


def _lines(svg: Path) -> list[str]:
    """Return the lines of text of a picture."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg.read_text()):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    return ["".join(text for _, text in sorted(row)) for _, row in sorted(rows.items())]


def test_picture_shows_what_a_command_prints(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    assert terminal_picture.main([str(path), sys.executable, "-c", "print('a <table>'); raise SystemExit(3)"]) == 3
    assert "a <table>" in _lines(path)


def test_readme_names_the_command_of_its_picture() -> None:
    shown = next(line for line in _lines(make_docs.ROOT / "docs/tune.svg") if line.startswith("$ "))
    readme = " ".join((make_docs.ROOT / "README.md").read_text().split())
    assert f"`python scripts/terminal_picture.py docs/tune.svg {shown.removeprefix('$ ').strip()}`" in readme
