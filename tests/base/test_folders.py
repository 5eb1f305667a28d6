"""Temporary folders: private, gone with their process or at the next start, and never taken from a live one."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from romou.base import folders
from romou.base.folders import HeldFolder

_HOLDER = (
    "import sys, time; from romou.base.folders import HeldFolder; held = HeldFolder('test'); print(held.name,"
    " flush=True); time.sleep(600)"
)


def holder(where: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a folder in `where`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(where)}
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders._remove_left_overs.cache_clear()
    return tmp_path


def test_a_folder_is_private_and_goes_at_the_end(where: Path) -> None:
    with HeldFolder("test") as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        (Path(path) / "file").write_text("")
    assert list(where.iterdir()) == []


def test_what_a_killed_process_left_goes_at_the_next_start(where: Path) -> None:
    dead, left = holder(where)
    alive, kept = holder(where)
    strangers = [where / "romou-held-file", where / "romou-build-old", where / "romou-held-link"]
    strangers[0].write_text("")
    strangers[1].mkdir()
    strangers[2].symlink_to(kept)
    dead.kill()
    dead.wait()
    assert left.is_dir()
    with HeldFolder("test") as own:
        assert sorted(where.iterdir()) == sorted([kept, Path(own), *strangers])
    alive.kill()
    alive.wait()


def test_folders_of_other_users_are_left_alone(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = where / "romou-held-other"
    other.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(other).st_uid + 1)
    folders._remove_left_overs(str(where))
    assert other.is_dir()
    monkeypatch.undo()
    folders._remove_left_overs.cache_clear()
    folders._remove_left_overs(str(where))
    assert not other.exists()


def test_a_folder_that_was_taken_before_it_was_locked_is_made_anew(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = folders._lock, []

    def late(path: str, *, is_ours: bool = False) -> int | None:
        calls.append(path)
        if len(calls) == 1:
            os.rmdir(path)
        return lock(path, is_ours=is_ours)

    monkeypatch.setattr(folders, "_lock", late)
    with HeldFolder("test") as path:
        assert Path(path).is_dir()
        assert len(set(calls)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command_line_leaves_nothing(number: signal.Signals, where: Path) -> None:
    code = "import sys; import romou.cli.devices as d; from romou.base.folders import HeldFolder; import time, click\n"
    code += (
        "@click.command('devices')\ndef command():\n    held = HeldFolder('test'); print(held.name, flush=True);"
        " time.sleep(600)\n"
    )
    code += "d.command = command\nfrom romou.cli import run_main\nsys.argv[1:] = ['devices']\nrun_main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(where)},
    )
    assert process.stdout is not None
    assert Path(process.stdout.readline().strip()).is_dir()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode not in (0, -number)
    assert list(where.iterdir()) == []
    assert "Traceback" not in errors
