"""Candidates on devices behind RPC servers: the same outcomes as on this machine, and nothing lost or mixed up when
servers fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from romou.base.errors import CompatError, ConnectionLostError, DeviceError
from romou.devices.targets import Target
from romou.runtime.rpc import Address
from romou.runtime.rpc.tracker import Tracker
from romou.tuner.measure import (
    BuildResult,
    Candidate,
    ChildBugError,
    LocalBuilder,
    LocalRunner,
    MeasureOptions,
    MeasureResult,
    RpcRunner,
    Toolchain,
)
from romou.tuner.measure.servers import ClockWatch
from support.devices import faulty_kernels
from support.servers.rpc_servers import (
    KEY,
    OTHER_VERSION,
    Server,
    end,
    free_port,
    plain_server,
    serving,
    serving_watched,
    tracking,
    wait_for,
)

TARGET = Target("opencl")
TOOLCHAIN = Toolchain(build="support.devices.faulty_kernels:build")
OPTIONS = MeasureOptions(build_workers=1, build_timeout_s=60, run_timeout_s=30, min_repeat_ms=1, connect_timeout_s=30)
# For tests of a candidate's path only: a slow one computes for a second in each timing.
ONCE = dataclasses.replace(OPTIONS, repeat=1)
# Of a session that is stopped, the server takes seconds to be rid, on a busy machine more.
SHORT = dataclasses.replace(OPTIONS, run_timeout_s=15, repeat=1)


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
    candidates = [
        Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(fault), trial=i)
        for i, fault in enumerate(faults)
    ]
    results = builder.build(candidates)
    assert [r.outcome for r in results] == ["ok"] * len(faults)
    return results


def measure(runner: RpcRunner, candidate: BuildResult) -> MeasureResult:
    (result,) = runner.run([candidate])
    return result


@contextlib.contextmanager
def meanwhile(action) -> Iterator[None]:  # type: ignore[no-untyped-def]
    """Run `action` in another thread while the block runs."""
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


def test_outcomes_are_those_of_this_machine(builder: LocalBuilder, server: Server) -> None:
    faults = ("none", "bad_source", "wrong", "unwritten", "adds_up")
    with (
        running(server.address) as runner,
        contextlib.closing(LocalRunner("opencl:0", OPTIONS, toolchain=TOOLCHAIN)) as local,
    ):
        assert runner.fingerprint() == local.fingerprint()
        candidates = built(builder, *faults)
        there, here = list(runner.run(candidates)), list(local.run(candidates))
    assert (
        [r.outcome for r in there]
        == [r.outcome for r in here]
        == ["ok", "run_error", "wrong_result", "wrong_result", "wrong_result"]
    )
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
        assert (result.outcome, (result.error or "").count(f"on 127.0.0.1:{server.port}: the connection")) == (
            "run_error",
            2,
        )
        assert "took the server down twice" in (result.error or "")
        assert measure(runner, fine).outcome == "ok"


def test_a_candidate_that_hangs_is_ended_on_both_sides(builder: LocalBuilder, server: Server) -> None:
    hang, fine = built(builder, "hang", "none")
    # A hanging kernel takes a whole core.
    with running(server.address, dataclasses.replace(OPTIONS, run_timeout_s=2)) as runner:
        result = measure(runner, hang)
        assert (result.outcome, "run_timeout_s = 2 s, twice" in (result.error or "")) == ("timeout", True)
    with running(server.address) as runner:
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


def test_a_session_that_is_stopped(builder: LocalBuilder, server: Server) -> None:
    """The device side no longer responds. The next session gets an answer."""
    (slow,) = built(builder, "slow")
    with running(server.address, SHORT) as runner:

        def stop() -> None:
            server.candidate().suspend()

        with meanwhile(stop):
            result = measure(runner, slow)
    assert result.outcome == "ok", result.error
    assert result.run_s > SHORT.run_timeout_s


def test_a_serving_process_that_hangs_is_replaced(builder: LocalBuilder) -> None:
    (fine,) = built(builder, "none")
    with serving_watched(hang_s=3) as server, running(server.address) as runner:
        assert measure(runner, fine).outcome == "ok"
        before = server.serving()
        before.suspend()
        assert measure(runner, fine).outcome == "ok"
        assert server.serving().pid != before.pid
        assert "the serving process hung for 3 s and was killed; starting it again" in server.log.read_text()


class CuttingProxy:
    """Forwards connections to a server, and cuts the first `cuts` of them after `after` uploaded bytes."""

    def __init__(self, port: int, after: int, cuts: int) -> None:
        self.after, self.cuts, self.done, self.port = after, cuts, 0, free_port()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                left = self.after if self.cuts > 0 else None
                self.cuts -= 1
                threading.Thread(target=self._forward, args=(client, server, left), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, None), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1024):
                target.sendall(data if left is None else data[:left])
                if left is not None and (left := left - len(data)) <= 0:
                    self.done += 1
                    break
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def test_a_connection_cut_in_mid_upload(builder: LocalBuilder, server: Server) -> None:
    (fine,) = built(builder, "none")
    size = Path(str(fine.library)).stat().st_size
    # The first connection only reads the device's facts.
    proxy = CuttingProxy(server.port, after=size // 2, cuts=2)
    with contextlib.closing(proxy), running(f"127.0.0.1:{proxy.port}/{KEY}") as runner:
        result = measure(runner, fine)
    assert result.outcome == "ok", result.error
    assert proxy.done == 1


def test_uploads_that_never_work_end_the_run(builder: LocalBuilder, server: Server) -> None:
    (fine,) = built(builder, "none")
    size = Path(str(fine.library)).stat().st_size
    wanted = r"candidate_\w+.so could not be sent in 5 attempts.*\n.*goes on where it stopped"
    proxy = CuttingProxy(server.port, after=size // 2, cuts=100)
    with (
        contextlib.closing(proxy),
        running(f"127.0.0.1:{proxy.port}/{KEY}") as runner,
        pytest.raises(DeviceError, match=wanted),
    ):
        measure(runner, fine)
    assert proxy.done == 5


def test_a_library_of_another_candidate_is_no_result(builder: LocalBuilder, server: Server) -> None:
    one, other = built(builder, "none", "wrong")
    shutil.copyfile(str(one.library), str(other.library))
    with running(server.address) as runner, pytest.raises(ChildBugError, match="is not the library of candidate_"):
        measure(runner, other)


def test_wrong_keys_and_other_versions_are_refused(server: Server) -> None:
    where = f"127.0.0.1:{server.port}"
    with (
        running(f"{where}/tablet") as runner,
        pytest.raises(DeviceError, match=f"{where} does not serve the key that was given") as caught,
    ):
        runner.fingerprint()
    assert f"{where}/KEY" in str(caught.value)
    wanted = r"has tvm 0.26.0 \(here 0.27.0.post1\); TVM compares no versions, and other pairs crash"
    with plain_server(OTHER_VERSION) as other, running(other) as runner, pytest.raises(CompatError, match=wanted):
        runner.fingerprint()
    with (
        running("127.0.0.1:9/phone") as runner,
        pytest.raises(ConnectionLostError, match=r"no TVM RPC server answers at 127.0.0.1:9 .*\nStart one there: "),
    ):
        runner.fingerprint()


def test_servers_of_a_tracker(builder: LocalBuilder) -> None:
    """Candidates run on all of them at the same time. A server of another version is excluded, and one that disappears
    is not missed.
    """
    port = free_port()
    with contextlib.ExitStack() as stack:
        tracker_stack = stack.enter_context(contextlib.ExitStack())
        tracker = tracker_stack.enter_context(tracking(port))
        with pytest.raises(
            DeviceError, match=f"the tracker at {tracker} has no server with the key 'phone'; it has no servers at all"
        ):
            RpcRunner(Address.parse(f"tracker://{tracker}/phone"))
        servers = [stack.enter_context(serving("--tracker", tracker)) for _ in range(2)]
        other = stack.enter_context(plain_server(OTHER_VERSION, tracker=tracker)).partition("/")[0]
        address = f"tracker://{tracker}/{KEY}"
        wait_for(lambda: len(Tracker(Address.parse(address)).servers().get(KEY, ())) == 3)
        with pytest.raises(DeviceError, match=f"has no server with the key 'tablet'; it has {KEY}"):
            RpcRunner(Address.parse(f"tracker://{tracker}/tablet"))
        runner = stack.enter_context(running(address, ONCE))
        # A busy machine may lose one of them for a moment.
        wait_for(lambda: runner.width == 3)

        def results(candidates: list[BuildResult]) -> list[str]:
            with ThreadPoolExecutor(runner.width) as pool:
                return list(pool.map(lambda one: measure(runner, one).outcome, candidates))

        seen = set()

        def look() -> None:
            for server in servers:
                server.candidate()
                seen.add(server.port)

        slow = built(builder, *["slow"] * 4)
        with meanwhile(look):
            assert results(slow) == ["ok"] * 4
        assert seen == {server.port for server in servers}
        assert list(runner._servers.aside()) == [other]
        wait_for(lambda: runner.width == 2)

        # The tracker starts anew, without any state. The servers register again.
        tracker_stack.close()
        with meanwhile(lambda: (time.sleep(1.0), stack.enter_context(tracking(port)))):
            assert results(slow[:2]) == ["ok"] * 2

        # One server is gone for good in the middle of a candidate.
        with meanwhile(lambda: (servers[0].candidate(), end(servers[0].process))):
            assert results(slow) == ["ok"] * 4


def test_no_device_is_left(builder: LocalBuilder) -> None:
    with tracking(free_port()) as tracker, plain_server(OTHER_VERSION, tracker=tracker) as other:
        address = f"tracker://{tracker}/{KEY}"
        with (
            running(address) as runner,
            pytest.raises(
                DeviceError, match=f"no device is left: {other.partition('/')[0]}: the RPC server at .* has tvm 0.26.0"
            ),
        ):
            runner.fingerprint()


def test_a_tracker_that_is_none(server: Server) -> None:
    with pytest.raises(ConnectionLostError, match="no TVM RPC tracker answers at"):
        RpcRunner(Address.parse(f"tracker://{server.address}"))


def test_a_hot_device_cools_down_between_sessions(
    builder: LocalBuilder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing holds the device meanwhile, and the candidate is measured in the end."""
    (fine,) = built(builder, "none")
    pauses, told = [1.5, 0.0], []

    def tell(watch: ClockWatch, seconds: float, now: float, *, longest_s: float) -> float:
        told.append(seconds)
        watch.ratio = 1.0 + pauses[0]
        return pauses.pop(0)

    monkeypatch.setattr(ClockWatch, "tell", tell)
    with (
        running(server.address) as runner,
        meanwhile(lambda: wait_for(lambda: len(told) == 1 and server.running_session() is None, 30)),
    ):
        result = measure(runner, fine)
    assert (result.outcome, result.clock_ratio, len(told)) == ("ok", 1.0, 2)
    assert all(0 < seconds < 10 for seconds in told)


def test_a_hot_device_is_left_alone() -> None:
    watch = ClockWatch(every_s=10, limit=1.15)
    assert watch.is_due(0)
    assert watch.tell(1.0, 0, longest_s=20) == 0
    assert (watch.ratio, watch.is_due(9), watch.is_due(10)) == (1.0, False, True)
    assert watch.tell(1.1, 10, longest_s=20) == 0
    # Each pause is followed by another measurement, and doubles; together they stay within the limit.
    assert [watch.tell(1.5, 20, longest_s=20) for _ in range(6)] == [1, 2, 4, 8, 5, 0]
    assert (watch.ratio, watch.is_due(21)) == (1.5, False)
    assert [watch.tell(t, 40, longest_s=20) for t in (1.5, 1.3, 1.0)] == [1, 2, 0]
    assert watch.tell(2.0, 60, longest_s=0) == 0
    assert watch.tell(0.5, 80, longest_s=20) == 0
    assert watch.ratio == 1.0
