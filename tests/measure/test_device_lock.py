"""Processes of any kind that time on one device alternate, however they end."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from romou.base import device_lock
from romou.base.device_lock import DeviceLock, alone_on, lock_path
from romou.devices.backends import backend
from romou.devices.targets import Target
from romou.tuner.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions, Toolchain
from support.devices import faulty_kernels
from support.servers import timing_processes
from support.suite.exhaustive import exhaustive

TESTS = Path(__file__).parents[1]
HOLD = (
    "from romou.base.device_lock import DeviceLock; import os, sys, time, pathlib; lock ="
    " DeviceLock(pathlib.Path(sys.argv[1])); "
)


@contextlib.contextmanager
def process(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that executes `code` with `lock` on the file `path`, after it has printed a line."""
    with subprocess.Popen([sys.executable, "-c", HOLD + code, str(path)], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            assert started.stdout.readline()
            yield started
        finally:
            started.kill()


def waits(path: Path, seconds: float) -> bool:
    """Return whether the lock at `path` cannot be acquired within `seconds`."""
    got = threading.Event()

    def take() -> None:
        lock = DeviceLock(path)
        lock.acquire()
        got.set()
        lock.release()

    threading.Thread(target=take, daemon=True).start()
    return not got.wait(seconds)


@exhaustive
def test_timed_intervals_of_processes_never_overlap(tmp_path: Path) -> None:
    """Two tuners and a bench run at the same time, first with the lock, then without it."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
        "LOG": str(tmp_path),
    }
    kinds = ("tune", "tune", "bench")
    command = [sys.executable, "-m", "support.servers.timing_processes"]
    started = [
        subprocess.Popen([*command, kind, str(len(kinds))], env={**variables, "WHO": str(i)})
        for i, kind in enumerate(kinds)
    ]
    try:
        assert [one.wait(120) for one in started] == [0] * len(kinds)
    finally:
        for one in started:
            one.kill()
    in_turns, beside = (
        sorted(json.loads(line) for line in (tmp_path / name).read_text().splitlines())
        for name in ("in_turns", "beside")
    )
    assert len(in_turns) == len(beside) == timing_processes.ROUNDS * 4
    assert all(end <= start for (_, end, _), (start, _, _) in itertools.pairwise(in_turns))
    # None has the device to itself until it is done.
    assert sum(one[2] != other[2] for one, other in itertools.pairwise(in_turns)) >= timing_processes.ROUNDS
    assert any(end > start for (_, end, _), (start, _, _) in itertools.pairwise(beside))


@pytest.mark.parametrize("fork", ["", "os.fork() or time.sleep(60); "])
def test_a_killed_holder_frees_the_device(tmp_path: Path, fork: str) -> None:
    """The device is free even if a process that the holder forked lives on."""
    path = tmp_path / "device.lock"
    with process(f"lock.acquire(); {fork}print('held', flush=True); time.sleep(60)", path) as holder:
        assert waits(path, 0.3)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert not waits(path, 10)


def test_who_waits_comes_before_the_holder_again(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    with process("print('greedy', flush=True)\nwhile True: lock.acquire(); time.sleep(0.05); lock.release()", path):
        lock = DeviceLock(path)
        for _ in range(5):
            start = time.monotonic()
            lock.acquire()
            assert time.monotonic() - start < 2
            lock.release()


def test_the_holding_thread_may_take_it_again_and_a_forked_process_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    lock = device_lock.device_lock(path)
    for _ in range(2):
        lock.acquire()
    lock.release()
    child = os.fork()
    if child == 0:
        # Nothing of pytest's in here.
        os._exit(int(bool(device_lock._descriptors)))
    assert os.waitpid(child, 0)[1] == 0
    assert waits(path, 0.3)
    lock.release()
    assert not waits(path, 10)


def test_waiting_is_said_and_is_no_part_of_a_candidates_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_lock, "_PATIENCE_S", 0.2)
    options = MeasureOptions(build_workers=1, min_repeat_ms=1, run_timeout_s=3)
    toolchain = Toolchain(build="support.devices.faulty_kernels:build")
    with (
        contextlib.closing(LocalBuilder(Target("opencl"), options, toolchain=toolchain)) as builder,
        contextlib.closing(LocalRunner("opencl:0", options)) as runner,
    ):
        (built,) = builder.build([Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(), trial=0)])
        name = runner.fingerprint().name
        path = lock_path(backend("opencl").identity(backend("opencl").facts(0)))
        assert path is not None
        with (
            process("lock.acquire(); print('held', flush=True); time.sleep(4)", path),
            caplog.at_level(logging.WARNING, "romou"),
        ):
            assert list(runner.run([built], stop_at=time.monotonic() + 0.5)) == []
            (result,) = runner.run([built])
        assert (result.outcome, result.error) == ("ok", None)
        assert result.run_s < 3
        lines = [record.getMessage() for record in caplog.records]
        assert lines
        assert (
            f"waiting for another process that times on {name} (the one that holds {path}); ROMOU_DEVICE_LOCK=0 times"
            " beside it" in lines
        )
        # It gave the device back.
        assert not waits(path, 5)


def test_without_a_folder_to_write_times_are_taken_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "romou"):
        for _ in range(2):
            with alone_on("a device", "cpu"):
                pass
    assert [record.getMessage().partition(" cannot be written")[2] for record in caplog.records] == [
        " (Not a directory): times may be those of a device that other processes use meanwhile"
    ]
    monkeypatch.setenv("ROMOU_DEVICE_LOCK", "0")
    assert lock_path("cpu") is None


def test_a_device_is_the_same_whatever_reaches_it() -> None:
    gpu = {"type": "gpu", "name": "A GPU", "platform": "Its Maker"}
    kinds = ("opencl", "vulkan", "cuda")
    assert {backend(kind).identity({**gpu, "uuid": "0a" * 16}) for kind in kinds} == {"0a" * 16}
    for uuid in ({}, {"uuid": ""}, {"uuid": "00" * 16}):
        assert [backend(kind).identity({**gpu, **uuid}) for kind in kinds] == [
            f"{kind}-Its-Maker-A-GPU" for kind in kinds
        ]
    assert {backend(kind).identity({**gpu, "type": "cpu"}) for kind in (*kinds, "null")} == {"cpu"}
