"""Figures of the documents: those that a command prints, and those that were measured on a device.

    <!-- printed by bench_l1: Kept configs -->               on lines of its own: the first table below this title
    <!-- printed by bench_beast: knobs #…criteria # -->      in a line of text, which ends at <!-- end -->: its numbers, one for each #
    <!-- printed slowly by phone_records: All tasks # -->    only `make_docs.py --slow` runs the command
    <!-- measured: 3f77bebd, NVIDIA H200; archprobe -->      the commit that wrote the figures, the device, and the code under them: romou/compiler and
                                                             romou/devices by default. The text says so, and whether this code has changed

The command is the nearest one above the marker that has the word behind "by". "…" stands for anything.
"""  # noqa: E501

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COMMAND = re.compile(
    r"(?:`|^)((?:[A-Z_]+=\S+ )?(?:python (?:benchmarks|tests)/|python -c |romou |archprobe )[^`\n]+)", re.M
)
_PRINTED = re.compile(
    r"(<!-- printed (slowly )?by ([\w. ]+?)(?:: (.+?))? -->)((?:(?!<!-- printed).)*?)(<!-- end -->)", re.DOTALL
)
# A number that is no part of a name or a shape.
_NUMBER = r"(?<![\w.,-])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*x\d)(?!\d)"
_MEASURED = re.compile(r"(<!-- measured: (\w+), ([^;\n]+?)(?:; ([^\n]+?))? -->).*?(<!-- end -->)", re.DOTALL)
_CODE = "romou/compiler romou/devices"


class FigureError(Exception):
    """A marker without a command, or a command that does not print its figure."""


@dataclass(frozen=True)
class Printed:
    """A figure that a command prints."""

    command: str
    is_slow: bool
    pattern: str
    text: str

    def written(self, output: str) -> str:
        """Return the text of the figure by what its command has printed."""
        if self.text.startswith("\n"):
            return f"\n\n{table_below(self.pattern, output)}\n"
        found = re.search(_pattern(self.pattern), re.sub(r"[\s│┃]+", " ", output))
        if found is None or found.re.groups != len(re.findall(_NUMBER, self.text)):
            raise FigureError(f"{self.command} does not print {self.pattern!r} for {self.text!r}:\n{output[-2000:]}")
        numbers = iter(found.groups())
        return re.sub(_NUMBER, lambda _: next(numbers), self.text)


def _pattern(words: str) -> str:
    return re.escape(words).replace("…", ".*?").replace(r"\#", f"({_NUMBER})").replace(r"\ ", r"\s+")


def table_below(title: str, output: str) -> str:
    """Return the first table of box characters below the title in Markdown."""
    rest = output[found.start() :] if (found := re.search(_pattern(title), output)) else ""
    table = re.search(r"┏.*?└", rest, re.DOTALL)
    if table is None:
        raise FigureError(f"there is no table below {title!r}:\n{output[-2000:]}")
    lines = [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in table[0].splitlines()]
    head, rows = [line for line in table[0].splitlines() if "┃" in line], [c for c in lines if c]
    columns = list(zip(*rows[len(head) :], strict=True))
    names = [" ".join(filter(None, name)) for name in zip(*rows[: len(head)], strict=True)]
    starts = [[cell[0] in "-+<0123456789" for cell in column if cell] for column in columns[1:]]
    sides = ["---", *("---:" if sum(each) * 2 > len(each) else "---" for each in starts)]
    return "\n".join(f"| {' | '.join(row).replace('*', chr(92) + '*')} |" for row in (names, sides, *rows[len(head) :]))


def printed_figures(page: str) -> Iterator[Printed]:
    """Yield the figures of a page that commands print."""
    for found in _PRINTED.finditer(page):
        yield _printed(found)


def _printed(found: re.Match[str]) -> Printed:
    above = [each[1].partition("  #")[0].strip() for each in _COMMAND.finditer(found.string[: found.start()])]
    for command in reversed(above):
        if found[3] in command:
            return Printed(command, bool(found[2]), found[4] or "", found[5])
    raise FigureError(f"no command with {found[3]!r} stands above {found[1]}")


@functools.cache
def output_of(command: str, data: Path | None = None) -> str | None:
    """Return what a command prints, or None if it reads a file that is neither here nor in the folder `data`."""
    words = shlex.split(command)
    for index, word in enumerate(words):
        if word in ("python", "romou", "archprobe"):
            words[index] = str(Path(sys.executable).with_name(word))
        elif re.fullmatch(r"[\w./-]+\.(json|jsonl)(\.gz)?", word) and not (ROOT / word).exists():
            if data is None or not (data / word).exists():
                return None
            words[index] = str((data / word).resolve())
    words = ["env", "COLUMNS=300", *words]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise FigureError(f"{command} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def with_printed(page: str, *, slow: bool = False, data: Path | None = None, left_out: set[str] | None = None) -> str:
    """Return the page with the figures that commands print. Those that are not run are added to `left_out`."""

    def written(found: re.Match[str]) -> str:
        figure = _printed(found)
        output = None if figure.is_slow and not slow else output_of(figure.command, data)
        if output is None:
            (set() if left_out is None else left_out).add(figure.command)
            return found[0]
        return found[1] + figure.written(output) + found[6]

    return _PRINTED.sub(written, page)


def with_measured(page: str) -> str:
    """Return the page with the device, date and commit of each measurement, and whether the code has changed."""

    def written(found: re.Match[str]) -> str:
        date, is_stale = _measured_at(found[2], found[4] or _CODE)
        if not date:  # A copy without this history.
            return found[0]
        before = page[page.rfind("\n", 0, found.start()) + 1 : found.start()]
        line = "" if before.strip() else f"\n{before}"
        stale = ", older than the code" * is_stale
        return f"{found[1]}{line}*{found[3]}, {date}, commit {found[2]}{stale}.*{line}{found[5]}"

    return _MEASURED.sub(written, page)


@functools.cache
def _measured_at(commit: str, paths: str) -> tuple[str, bool]:
    date = _git("show", "-s", "--format=%cs", commit)
    return date.stdout.strip(), _git("diff", "--quiet", commit, "--", *paths.split()).returncode != 0


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
