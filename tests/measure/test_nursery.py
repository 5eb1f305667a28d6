"""Workers are forked from one process that has imported their modules. Each behaves like a newly started process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from romou.runtime.workers.child import ChildProcess


@pytest.fixture
def worker() -> Iterator[Callable[..., ChildProcess]]:
    with contextlib.ExitStack() as stack:

        def start(**environment: str) -> ChildProcess:
            child = ChildProcess("test", environment=environment)
            stack.callback(child.kill)
            return child

        yield start


def test_workers_are_as_if_started_afresh(
    worker: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = worker(TVM_NUM_THREADS="1")
    nursery = first.call("os:getppid")
    assert first.call("os:getenv", "TVM_NUM_THREADS") == "1"
    monkeypatch.setenv("ROMOU_DEBUG", "1")
    # As scikit-learn does, which XGBoost imports.
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    monkeypatch.chdir(tmp_path)
    second = worker()
    assert (second.call("os:getppid"), second.call("os:getenv", "ROMOU_DEBUG"), second.call("os:getcwd")) == (
        nursery,
        "1",
        str(tmp_path),
    )
    assert second.call("os:getenv", "PYTHONPATH") is None
    assert second.call("os:getpgrp") == second.call("os:getpid") != first.call("os:getpid")
    # A library may read it while it is loaded.
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert worker().call("os:getppid") != nursery


def test_one_that_nobody_needed_ends_at_once() -> None:
    """A model may turn out to be broken: then a process that had begun with its imports does not keep the tuner from
    ending.
    """
    code = (
        "import atexit; from romou.runtime.workers import nursery; atexit.register(lambda:"
        " print(nursery._current[1]._process.returncode)); nursery.begin()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(-signal.SIGKILL.value)]


def test_a_nursery_that_is_killed_takes_nothing_along(worker: Callable[..., ChildProcess]) -> None:
    first = worker()
    nursery = first.call("os:getppid")
    os.kill(nursery, signal.SIGKILL)
    assert first.call("os:getenv", "ROMOU_NONE") is None
    while worker().call("os:getppid") == nursery:
        pass
