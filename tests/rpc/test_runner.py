"""Candidates on devices behind RPC servers: the same outcomes as on this machine, and nothing lost or mixed up when servers fail."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator

import faulty_kernels
import pytest
from rpc_servers import KEY, OTHER_VERSION, Server, end, free_port, plain_server, serving, tracking, wait_for

from romou.errors import CompatError, ConnectionLostError, DeviceError
from romou.measure import BuildResult, Candidate, ChildBugError, LocalBuilder, LocalRunner, MeasureOptions, MeasureResult, RpcRunner, Toolchain
from romou.rpc import Address
from romou.target import Target

TARGET = Target("opencl")
TOOLCHAIN = Toolchain(build="faulty_kernels:build")
OPTIONS = MeasureOptions(build_workers=1, build_timeout_s=60, run_timeout_s=30, min_repeat_ms=1, connect_timeout_s=30)
SHORT = dataclasses.replace(OPTIONS, run_timeout_s=3)


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    with contextlib.closing(LocalBuilder(TARGET, OPTIONS, toolchain=TOOLCHAIN)) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@contextlib.contextmanager
def running(address: str, options: MeasureOptions = OPTIONS) -> Iterator[RpcRunner]:
    with contextlib.closing(RpcRunner(Address.parse(address), options, toolchain=TOOLCHAIN)) as made:
        yield made


def built(builder: LocalBuilder, *faults: str) -> list[BuildResult]:
    candidates = [Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(fault), trial=i) for i, fault in enumerate(faults)]
    results = builder.build(candidates)
    assert [r.outcome for r in results] == ["ok"] * len(faults)
    return results


def measure(runner: RpcRunner, candidate: BuildResult) -> MeasureResult:
    (result,) = runner.run([candidate])
    return result


@contextlib.contextmanager
def meanwhile(action) -> Iterator[None]:  # type: ignore[no-untyped-def]
    """Run `action` in a thread of its own while the block runs."""
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


def test_outcomes_are_those_of_this_machine(builder: LocalBuilder, server: Server) -> None:
    faults = ("none", "bad_source", "wrong", "unwritten", "adds_up")
    with running(server.address) as runner, contextlib.closing(LocalRunner("opencl:0", OPTIONS, toolchain=TOOLCHAIN)) as local:
        assert runner.fingerprint() == local.fingerprint()
        candidates = built(builder, *faults)
        there, here = list(runner.run(candidates)), list(local.run(candidates))
    assert [r.outcome for r in there] == [r.outcome for r in here] == ["ok", "run_error", "wrong_result", "wrong_result", "wrong_result"]
    assert [r.relative_l2_error for r in there] == pytest.approx([r.relative_l2_error for r in here], nan_ok=True)
    assert "no_such_function" in (there[1].error or "")
    assert len(there[0].times_s) == OPTIONS.repeat
    assert all(0 < t < 1 for t in there[0].times_s)
    assert all(r.clock_ratio is not None and r.clock_ratio >= 1 for r in there)
    assert all(r.clock_ratio is None for r in here)


def test_a_candidate_that_takes_the_server_down_is_tried_twice(builder: LocalBuilder, server: Server) -> None:
    with running(server.address) as runner:
        crash, fine = built(builder, "crash", "none")
        result = measure(runner, crash)
        assert (result.outcome, (result.error or "").count(f"on 127.0.0.1:{server.port}: the connection")) == ("run_error", 2)
        assert "took the server down twice" in (result.error or "")
        assert measure(runner, fine).outcome == "ok"


def test_a_candidate_that_hangs_is_ended_on_both_sides(builder: LocalBuilder, server: Server) -> None:
    with running(server.address, SHORT) as runner:
        hang, fine = built(builder, "hang", "none")
        result = measure(runner, hang)
        assert (result.outcome, "run_timeout_s = 3 s, twice" in (result.error or "")) == ("timeout", True)
        assert measure(runner, fine).outcome == "ok"
    wait_for(lambda: server.running_session() is None)
    assert "went on without its client and is killed" in server.log.read_text()


def test_a_server_killed_during_a_candidate(builder: LocalBuilder, server: Server) -> None:
    """The watchdog starts it again, and the candidate is none the worse."""
    slow, fine = built(builder, "slow", "none")
    with running(server.address) as runner:
        before = server.serving()

        def kill() -> None:
            server.candidate()
            time.sleep(0.5)
            before.kill()

        with meanwhile(kill):
            result = measure(runner, slow)
        assert result.outcome == "ok", result.error
        assert server.serving().pid != before.pid
        assert measure(runner, fine).outcome == "ok"
    assert "the serving process was killed by signal 9; starting it again" in server.log.read_text()
