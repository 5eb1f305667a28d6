"""Files of a folder that others write to: anything but a regular file is an error immediately, without waiting."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from romou.base.errors import RecordError, UsageError
from romou.base.files import read_file, regular
from romou.devices.hardware.files import load_spec
from romou.tuner.measure.verify import load_reference
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.records.store import FILE_NAME, RecordStore
from romou.tuner.records.task_files import FOLDER_NAME, other_tasks


@pytest.fixture(params=["pipe", "link to a pipe", "socket", "folder", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Return a function that creates something other than a regular file at a path, and returns the path."""

    def put(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "link to a pipe":
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to(tmp_path / "pipe")
        elif request.param == "socket":
            with socket.socket(socket.AF_UNIX) as server:
                # A whole path would be too long.
                monkeypatch.chdir(path.parent)
                server.bind(path.name)
        elif request.param == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero")
        return path

    return put


@pytest.fixture(autouse=True)
def _nothing_is_waited_for() -> Iterator[None]:
    """Kill the process of a test that waits for 20 s, which names the test."""
    alarm = threading.Timer(20, os.abort)
    alarm.start()
    yield
    alarm.cancel()


@pytest.mark.parametrize("mode", ["rb", "ab", "r+b"])
def test_it_is_an_error_at_once(mode: str, odd: Callable[[Path], Path], tmp_path: Path) -> None:
    path = odd(tmp_path / "file")
    with pytest.raises(OSError, match="file"), open(path, mode, opener=regular):
        pass
    with pytest.raises(OSError, match="file"):
        read_file(path)


def test_a_regular_file_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for part in (b"one", b"two"):
        with open(path, "ab", opener=regular) as file:
            file.write(part)
    assert read_file(path) == b"onetwo"
    (tmp_path / "link").symlink_to(path)
    assert read_file(tmp_path / "link") == b"onetwo"
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")


def test_a_work_folder_has_one_error_or_goes_on(odd: Callable[[Path], Path], tmp_path: Path) -> None:
    path = odd(tmp_path / "work" / FOLDER_NAME / "0.json")
    assert other_tasks(tmp_path / "work", Counter({"0": 1})) == []
    path.rename(tmp_path / "work" / FILE_NAME)
    with pytest.raises(RecordError, match=FILE_NAME):
        RecordStore(tmp_path / "work")
    os.rename(tmp_path / "work" / FILE_NAME, tmp_path / "work" / f"{FILE_NAME}.damaged")
    (tmp_path / "work" / FILE_NAME).write_bytes(b"{ cut off")
    with pytest.raises(RecordError, match="damaged"):
        RecordStore(tmp_path / "work")


def test_other_files_are_errors_of_their_own(odd: Callable[[Path], Path], tmp_path: Path) -> None:
    path = odd(tmp_path / "space.json")
    with pytest.raises(RecordError, match="cannot read this as a recorded space"):
        RecordedSpace.load(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_spec(path)
    with pytest.raises((OSError, ValueError)):
        load_reference(path)
