"""The hook that refuses a long subject of a commit, and the count of tokens of each room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("message", "is_allowed"),
    [
        ("x" * 72, True),
        ("x" * 73, False),
        ("# a comment\n\nshort\n\n" + "x" * 100, True),
        ("# a comment\n" + "x" * 73, False),
    ],
)
def test_a_commit_has_a_subject_of_at_most_72_characters(tmp_path: Path, message: str, is_allowed: bool) -> None:
    file = tmp_path / "message"
    file.write_text(message, encoding="utf-8")
    hook = subprocess.run([ROOT / ".githooks" / "commit-msg", file], capture_output=True, text=True, check=False)
    assert (hook.returncode == 0) == is_allowed
    assert ("73 characters, at most 72" in hook.stderr) != is_allowed


def test_the_budget_has_a_line_for_each_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import budget

    source = b'"""Text."""\n\n# a comment\ndef f(x):\n    return x + 1\n'
    assert budget.tokens(source) == 11
    files = [("romou/a.py", b"x\n"), ("romou/cli/b.py", b"x = 1\n"), ("romou/compiler/graph/memory/c.py", source)]
    assert budget.by_room(files) == {"romou": 1, "cli": 3, "compiler/graph": 11}
    assert budget.table("v1", {"cli": 5, "gone": 2}, {"cli": 3}).splitlines()[1:] == [
        f"{'cli':<28} {5:>9} {3:>9} {'-2':>9}",
        f"{'gone':<28} {2:>9} {0:>9} {'-2':>9}",
        f"{'all':<28} {7:>9} {3:>9} {'-4':>9}",
    ]


def test_the_budget_of_this_checkout_is_printed() -> None:
    command = [sys.executable, ROOT / "scripts" / "budget.py"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {"compiler/operators", "tuner/search", "all"} <= {line.split()[0] for line in printed.splitlines()}
