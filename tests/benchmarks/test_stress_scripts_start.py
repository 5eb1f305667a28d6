"""Every script of tests/stress starts, and prints its options. Scripts of benchmarks/ run: test_smallest_runs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs.documents import ROOT
from support.servers import forked

SCRIPTS = [
    path for path in sorted((ROOT / "tests/stress").glob("*.py")) if "@click.command()" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.stem))
def test_help(path: Path) -> None:
    done = forked.run(path, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) > 3
