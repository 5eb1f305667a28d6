"""A forked command behaves like a started one: its arguments, its output, its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.servers import forked

_TELL = """
import atexit, os, sys, tempfile
atexit.register(print, "ended")
print(sys.argv, os.getcwd(), os.environ.get("FORKED"), __name__, sys.stdin.read(), tempfile.gettempdir())
print("wrong", file=sys.stderr)
"""


def test_a_command_has_its_own_arguments_environment_and_streams(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_TELL)
    environment = {**os.environ, "FORKED": "1", "TMPDIR": str(tmp_path)}
    for words, argv in ((("-c", _TELL), ["-c", "a"]), ((tmp_path / "script.py",), [str(tmp_path / "script.py"), "a"])):
        done = forked.run(*words, "a", env=environment, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            f"{argv} {tmp_path} 1 __main__  {tmp_path}\nended\n",
            "wrong\n",
        )
    assert "FORKED" not in os.environ
    assert forked.run("-c", "import os; print(os.getenv('FORKED'))").stdout == "None\n"


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [("raise SystemExit(3)", 3, ""), ("raise SystemExit('no')", 1, "no\n"), ("1 / 0", 1, "ZeroDivisionError: ")],
)
def test_how_it_ends(code: str, ends: int, says: str) -> None:
    done = forked.run("-c", code)
    assert done.returncode == ends
    assert says in done.stderr


def test_modules_and_time_limits() -> None:
    done = forked.run("-m", "romou.cli", "run", "none.romou")
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[1].startswith("romou: model 'none.romou' does not exist")
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run("-c", "import time; time.sleep(60)", timeout=0.1)


def test_what_is_read_at_the_start_takes_a_process_of_its_own() -> None:
    with pytest.raises(AssertionError, match="LD_PRELOAD"):
        forked.run("-c", "", env={**os.environ, "LD_PRELOAD": "x.so"})
