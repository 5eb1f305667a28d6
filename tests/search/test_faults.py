"""Faults while a session runs: hanging candidates, killed workers, a full disk, a second tuner. Finished measurements
are kept, and the rest is added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm

from romou.base.errors import RecordError
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.measure import LocalBuilder, LocalRunner, MeasureOptions, Toolchain
from romou.tuner.records import FILE_NAME, RecordStore
from romou.tuner.search import SessionHooks, TaskResult, TuningOptions, TuningSession
from simulation import SimulatedDevice, SimulatedTask
from support.data.recordings import recorded
from support.devices import faulty_kernels

TARGET = Target("opencl")
TOOLCHAIN = Toolchain(build="support.devices.faulty_kernels:build")
# The seconds that a candidate may hang. The first suffices for a right candidate on a busy machine. The second is far
# longer than a hang that is killed.
SHORT, LONG = 4.0, 60.0


@contextlib.contextmanager
def real_session(folder: Path, task: TunableTask, timeout_s: float) -> Iterator[tuple[TuningSession, LocalRunner]]:
    options = MeasureOptions(build_workers=1, build_timeout_s=60, run_timeout_s=timeout_s, min_repeat_ms=1)
    with (
        RecordStore(folder) as store,
        contextlib.closing(LocalRunner("opencl:0", options, toolchain=TOOLCHAIN)) as runner,
        contextlib.closing(LocalBuilder(TARGET, options, toolchain=TOOLCHAIN)) as builder,
    ):
        yield (
            TuningSession(
                [task], TARGET, store=store, builder=builder, runner=runner, options=TuningOptions(trials=10)
            ),
            runner,
        )


def errors_of(folder: Path) -> dict[str, str]:
    return {
        r["config"]["fault"]: r["error"] or "" for r in map(json.loads, (folder / FILE_NAME).read_text().splitlines())
    }


def test_a_candidate_that_hangs(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    with real_session(tmp_path, faulty_kernels.faulty_task("hang"), SHORT) as (session, _):
        (result,) = session.run().values()
    assert result.outcomes == {"ok": 1, "timeout": 1}
    assert f"run_timeout_s = {SHORT:g} s" in errors_of(tmp_path)["hang"]


def test_a_worker_that_is_killed(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    with real_session(tmp_path, faulty_kernels.faulty_task("hang", "wrong"), LONG) as (session, runner):

        def kill() -> None:
            # The hanging candidate has no record while it hangs; by then the one before it has one.
            stop = time.monotonic() + LONG
            while time.monotonic() < stop and not (tmp_path / FILE_NAME).read_text():
                time.sleep(0.05)
            while time.monotonic() < stop:
                # The look comes right before the kill: once the hang has its record, the process runs another
                # candidate.
                time.sleep(1.0)
                if "hang" in errors_of(tmp_path):
                    return
                process = runner._children[0]._process
                if process is not None:
                    os.kill(process.pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        (result,) = session.run().values()
        thread.join()
    assert result.trials == 3
    assert "killed by SIGKILL" in errors_of(tmp_path)["hang"]
    assert result.config == faulty_kernels.faulty_task().default_config(TARGET)


def replay(folder: Path, trials: int) -> dict[str, TaskResult]:
    task = SimulatedTask.of_recording(recorded())
    device = SimulatedDevice([task])
    with RecordStore(folder) as store:
        session = TuningSession(
            [task],
            TARGET,
            store=store,
            builder=device,
            runner=device,
            options=TuningOptions(trials=trials),
            hooks=SessionHooks(clock=device.clock),
        )
        return session.run()


def test_a_full_disk_ends_the_session_and_the_next_one_adds_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.write, [12]

    def write(descriptor: int, data: bytes) -> int:
        if os.path.samestat(os.fstat(descriptor), (tmp_path / FILE_NAME).stat()):
            left[0] -= 1
            if left[0] < 0:
                real(descriptor, data[:20])
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(RecordError, match="No space left on device; the 12 records before are kept"):
        replay(tmp_path, 30)
    monkeypatch.undo()
    before = (tmp_path / FILE_NAME).read_text()
    assert len(before.splitlines()) == 12
    (result,) = replay(tmp_path, 30).values()
    after = (tmp_path / FILE_NAME).read_text()
    assert after.startswith(before)
    trials = [line for line in after.splitlines() if '"is_again":false' in line]
    assert result.trials == len(trials) == len({line.partition('"outcome"')[0] for line in trials}) == 30


def test_two_tuners_on_one_folder(tmp_path: Path) -> None:
    """The second one finds the records of the first, which reads its with the next append."""
    with RecordStore(tmp_path) as first:
        (result,) = replay(tmp_path, 20).values()
        assert result.trials == 20
        assert len(first) == 0
        first.append(dataclasses.replace(next(iter(RecordStore(tmp_path))), is_again=True))
        assert len({json.dumps(r.config) for r in first if not r.is_again}) == 20


def test_records_of_another_version_do_not_count_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replay(tmp_path, 10)
    path = tmp_path / FILE_NAME
    before = len(path.read_text().splitlines())
    path.write_text(path.read_text().replace('"romou":"', '"romou":"old-'))
    (result,) = replay(tmp_path, 10).values()
    assert result.trials == 10
    assert before >= 10
    assert f"{before} records of these kernels do not count: measured with Romou old-" in caplog.text
    assert path.read_text().count('"is_again":false') == 20
