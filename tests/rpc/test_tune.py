"""Whole tunings over RPC, and models that run there."""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import BuildError, ConnectionLostError, DeviceError, NumericError, UsageError
from romou.cli import main
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.devices.targets import Target
from romou.driver.site import for_server
from romou.runtime.module import RunTimeSizesModel, remote
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.rpc import Address
from romou.runtime.rpc.tracker import Tracker
from romou.tuner.measure import LocalBuilder, MeasureOptions, RpcRunner, Toolchain
from romou.tuner.records import FILE_NAME, RecordStore
from romou.tuner.search import TuningOptions, TuningSession
from support.devices import faulty_kernels, standin
from support.models.nodes import assert_equals_onnxruntime
from support.models.open_networks import recurrent
from support.models.quantized import QuantizedCase
from support.models.small_networks import NetworkBuilder, random_inputs, shared_outputs_net, short_net
from support.servers.rpc_servers import (
    KEY,
    OTHER_VERSION,
    Server,
    answers,
    end,
    free_port,
    plain_server,
    serving,
    started,
    tracking,
    wait_for,
)

LIMIT = 1e-4


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found, pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "_PATIENCE_S", 60.0)  # a busy machine answers late
        yield found


def records(folder: Path) -> list[dict]:  # type: ignore[type-arg]
    """Return the records of trials, without the final repeated measurements."""
    found = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    return [record for record in found if not record["is_again"]]


def test_two_servers_of_a_tracker_one_of_which_dies(tmp_path: Path) -> None:
    """Tuning with one server left gives the table as on this machine and the right outputs, and the model runs there
    afterwards.
    """
    model = short_net()
    with contextlib.ExitStack() as stack:
        tracker = stack.enter_context(tracking(free_port()))
        servers = [stack.enter_context(serving("--tracker", tracker)) for _ in range(2)]
        address = f"tracker://{tracker}/{KEY}"
        wait_for(lambda: len(Tracker(Address.parse(address)).servers().get(KEY, ())) == 2)

        def kill() -> None:
            wait_for(lambda: (tmp_path / FILE_NAME).exists() and len(records(tmp_path)) >= 3)
            end(servers[1].process)

        thread = threading.Thread(target=kill)
        thread.start()
        tuned = romou.tune(model, rpc=address, trials=7, work_dir=tmp_path)
        thread.join()
        summary = tuned.summary()
        assert (summary.target, summary.is_right) == ("opencl -device=host", True)
        assert summary.relative_l2_error is not None
        assert summary.relative_l2_error < LIMIT
        assert sum(summary.outcomes.values()) == 7
        assert set(summary.outcomes) <= {"ok", "timeout"}
        assert sum(row.trials for row in summary.rows) == 7
        assert all(row.tuned_ms is not None for row in summary.rows if row.trials)
        assert summary.default_ms
        kept = records(tmp_path)
        assert len({(r["task_key"], json.dumps(r["config"])) for r in kept}) == len(kept) == 7
        assert all(r["clock_ratio"] >= 1 for r in kept)
        # Nobody holds the device once the tuning is over.
        wait_for(lambda: servers[0].running_session() is None)
        inputs = random_inputs(model, seed=3)
        reference = run_onnxruntime(model, inputs)
        assert reference is not None
        assert relative_l2_error(tuned.run(inputs)[0], reference[0]) < LIMIT


def test_sizes_at_run_time_are_checked_and_run_there(server: Server, tmp_path: Path) -> None:
    """Both outputs come back over the connection, from even and odd sizes."""
    network = recurrent()
    options: dict[str, Any] = {"target": "opencl -device=host", "trials": 0, "work_dir": False, "rpc": server.address}
    tuned = romou.tune(network, dims={"steps": range(1, 9)}, **options)
    assert re.search(r", with steps=1; .*steps=8; steps=7", tuned.summary().checked_on)
    arrays = {size: np.random.default_rng(size).standard_normal((size, 2, 4)).astype("float32") for size in (3, 8)}
    loaded = romou.load(tuned.save(tmp_path / "m.romou"))
    assert loaded.summary().checked_on == tuned.summary().checked_on
    for x in arrays.values():
        expected = run_onnxruntime(network, {"x": x})
        assert expected is not None
        for model in (tuned, loaded):
            for output, right in zip(model.run({"x": x}), expected, strict=True):
                assert relative_l2_error(output, right) < LIMIT
    assert min(tuned.times(repeat=2, sizes={"steps": 3})) > 0
    tuned.release()
    wait_for(lambda: server.running_session() is None)


def test_a_wrong_kernel_for_a_size_is_found_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second size has the outputs of another input."""
    run = RunTimeSizesModel.run

    def wrong(model: RunTimeSizesModel, inputs: Mapping[str, np.ndarray]) -> Any:
        return run(model, {"x": inputs["x"] + (inputs["x"].shape[0] == 6)})

    monkeypatch.setattr(RunTimeSizesModel, "run", wrong)
    options: dict[str, Any] = {"target": "opencl -device=host", "trials": 0, "work_dir": False, "rpc": server.address}
    with pytest.raises(NumericError, match="with steps=6 the outputs differ from onnxruntime's"):
        romou.tune(recurrent(), dims={"steps": range(1, 9)}, **options)


def test_resumed_here_with_the_records_of_a_server(tmp_path: Path, server: Server) -> None:
    """The device is the same with and without a connection."""
    g = NetworkBuilder({"image": (1, 5, 7, 7)})
    model = g.model(g.add("Relu", g.conv("image", 5, 6, pads=[1, 1, 1, 1])))
    romou.tune(model, target="opencl -device=host", rpc=server.address, trials=4, work_dir=tmp_path)
    again = romou.tune(model, target="opencl -device=host", trials=4, work_dir=tmp_path)
    assert len(records(tmp_path)) == 4
    assert again.summary().is_right


def test_vulkan_at_a_server(tmp_path: Path, server: Server) -> None:
    """The target without a device's name takes the server's. The clock is read, and the tuned model
    runs on the server.
    """
    g = NetworkBuilder({"image": (1, 5, 7, 7)})
    model = g.model(g.add("Relu", g.conv("image", 5, 6, pads=[1, 1, 1, 1])))
    tuned = romou.tune(model, target="vulkan", rpc=server.address, trials=2, work_dir=tmp_path)
    assert (tuned.summary().target, tuned.summary().is_right) == ("vulkan -device=host", True)
    assert [r["clock_ratio"] >= 1 for r in records(tmp_path)] == [True, True]
    inputs = random_inputs(model, seed=3)
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    assert relative_l2_error(tuned.run(inputs)[0], reference[0]) < LIMIT
    tuned.release()


def test_a_model_that_runs_at_a_server(tmp_path: Path, server: Server) -> None:
    g = NetworkBuilder({"a": (1, 6, 5, 5), "b": (1, 6, 5, 5)})
    x = g.add("Relu", g.add("Add", g.conv("a", 6, 6, pads=[1, 1, 1, 1]), "b"))
    model = g.model(x, g.add("GlobalAveragePool", x))
    # In images, as on a phone.
    path = romou.compile(model, target="opencl -device=adreno640", device=0).save(tmp_path / "m.romou")
    there, here = romou.load(path, rpc=server.address), romou.load(path)
    inputs = random_inputs(model)
    for seed in range(3):
        inputs = random_inputs(model, seed=seed)
        for mine, theirs in zip(here.run(inputs), there.run(inputs), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert there.launching == "kernel by kernel: runs behind a connection are not captured"
    assert all(t > 0 for clock in ("device", "wall") for t in there.times(repeat=2, clock=clock))
    # The server's side dies between two calls: the model is sent again.
    server.session().kill()
    np.testing.assert_allclose(there.run(inputs)[0], here.run(inputs)[0], rtol=1e-6)
    with pytest.raises(UsageError, match="arrays are bound to devices of this machine"):
        there.bind()
    with pytest.raises(UsageError, match="which is no device of this machine"):
        there.device  # noqa: B018
    there.release()
    wait_for(lambda: server.running_session() is None)


def test_a_packed_weight_in_an_image_at_a_server(tmp_path: Path, server: Server) -> None:
    """Tuned, saved, and loaded by the server, which copies the words into the image."""
    model, data, expected = QuantizedCase(m=3, k=203, n=37, zero="uint8", has_bias=True).model()
    options = {"target": "opencl -device=adreno640", "device": 0, "trials": 3, "work_dir": tmp_path}
    path = romou.tune(model, **options).save(tmp_path / "m.romou")
    here, there = romou.load(path), romou.load(path, rpc=server.address)
    assert any("read_imageui" in source for source in here.sources().values())
    for each in (here, there):
        assert relative_l2_error(each.run({"x": data})[0], expected) < 1e-5
    there.release()


def test_a_run_at_a_server_is_profiled(tmp_path: Path, server: Server) -> None:
    """The server times the calls that a run has here. Runs after the profile are right."""
    path = romou.compile(short_net(), target="opencl -device=adreno640", device=0).save(tmp_path / "m.romou")
    there, here = romou.load(path, rpc=server.address), romou.load(path)
    inputs = random_inputs(short_net(), seed=1)
    mine, theirs = here.profile(inputs, repeat=2), there.profile(inputs, repeat=2)
    calls = [(call.function, call.layer, call.nodes) for call in mine.calls]
    assert len(calls) >= 3
    assert [(call.function, call.layer, call.nodes) for call in theirs.calls] == calls
    assert theirs.device == mine.device
    assert {len(call.times_ms) for call in theirs.calls} == {2}
    assert all(0 < time < 1e4 for call in theirs.calls for time in (*call.times_ms, theirs.whole_ms))
    np.testing.assert_allclose(there.run(inputs)[0], here.run(inputs)[0], rtol=1e-6)
    there.release()
    options = ["--rpc", server.address, "--trace", str(tmp_path / "trace.json"), "--repeat", "1", "--json"]
    done = CliRunner().invoke(main, ["run", str(path), *options])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)["profile"]["calls"]
    assert [(call["function"], call["layer"], tuple(call["nodes"])) for call in printed] == calls
    assert (tmp_path / "trace.json").exists()


def test_a_model_of_several_shapes_runs_at_a_server(tmp_path: Path, server: Server) -> None:
    """One library is sent, and each shape runs on it."""
    g = NetworkBuilder({"x": ("rows", 8)})
    model = g.model(g.add("Relu", g.add("MatMul", "x", g.weight(8, 12))))
    made = romou.compile(model, target="opencl -device=host", dims={"rows": (3, 5)}, pad={"x": 0}, verify=False)
    there = romou.load(made.save(tmp_path / "m.romou"), rpc=server.address)
    for rows in (3, 5, 4):
        inputs = {"x": np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")}
        reference = run_onnxruntime(model, inputs)
        assert reference is not None
        np.testing.assert_allclose(there.run(inputs)[0], reference[0], rtol=1e-5, atol=1e-6)
    assert there.time(repeat=1) > 0
    there.release()


def test_outputs_that_are_constants_or_inputs_stay_right_at_a_server(tmp_path: Path, server: Server) -> None:
    model = shared_outputs_net()
    there = romou.load(
        romou.compile(model, target="opencl -device=host", device=0).save(tmp_path / "m.romou"), rpc=server.address
    )
    for seed in range(3):
        inputs = random_inputs(model, seed=seed)
        assert_equals_onnxruntime(model, inputs, there.run(inputs))
    there.release()


def test_a_compiler_that_crashes_at_a_server_is_one_error(tmp_path: Path) -> None:
    """Sessions end over the kernel, until the server's cache refuses it."""
    path = romou.compile(short_net(), target="opencl -device=host", verify=False).save(tmp_path / "m.romou")
    kernel = sorted(romou.load(path).sources())[0]
    flaws = {
        "ROMOU_OPENCL_LIBRARY": str(standin.library()),
        "STANDIN": "crashes on source",
        "STANDIN_SOURCE": f"{kernel}(",
    }
    with serving(**flaws, ROMOU_CACHE_DIR=str(tmp_path / "cache"), ROMOU_PROGRAM_CACHE_MB="64") as crashing:
        there = romou.load(path, rpc=crashing.address)
        with pytest.raises(
            DeviceError,
            match=rf"kernel {kernel};(.|\n)*the driver's compiler ended the processes that compiled this kernel",
        ):
            there.run(random_inputs(short_net()))
        there.release()


def test_a_model_keeps_to_the_servers_of_a_tracker_that_will_do(tmp_path: Path) -> None:
    g = NetworkBuilder({"a": (1, 6, 5, 5)})
    model = g.model(g.add("Relu", g.conv("a", 6, 6, pads=[1, 1, 1, 1])))
    here = romou.compile(model, target="opencl -device=host", device=0)
    library, inputs = (
        here.save(tmp_path / "m") / json.loads((tmp_path / "m" / "romou.json").read_text())["library"],
        list(random_inputs(model).values()),
    )
    with tracking(free_port()) as tracker, plain_server(OTHER_VERSION, tracker=tracker), serving("--tracker", tracker):
        address = Address.parse(f"tracker://{tracker}/{KEY}")
        wait_for(lambda: len(Tracker(address).servers().get(KEY, ())) == 2)
        for _ in range(2):
            device = RemoteDevice(address, "host")
            np.testing.assert_allclose(device.run(library, inputs)[0], here.run({"a": inputs[0]})[0], rtol=1e-6)
            device.release()
        other = RemoteDevice(address, "host", wanted="another GPU")
        with pytest.raises(DeviceError, match="no model runs at tracker://.* after 5 attempts, the last: "):
            other.run(library, inputs)


def test_the_command_line(tmp_path: Path, server: Server) -> None:
    import onnx

    onnx.save(short_net(), tmp_path / "net.onnx")
    options = ["--target", "opencl -device=host", "--rpc", server.address]
    result = CliRunner().invoke(
        main, ["tune", str(tmp_path / "net.onnx"), *options, "--trials", "3", "--output", str(tmp_path / "m"), "--json"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["summary"]["is_right"]
    exported = tmp_path / "app"
    words = ["export", str(tmp_path / "m"), "--android", str(exported), "--host", "x86_64-linux-gnu"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert (exported / "opencl-host/model.so").is_file()
    result = CliRunner().invoke(main, ["run", str(tmp_path / "m"), "--rpc", server.address, "--repeat", "2"])
    assert result.exit_code == 0, result.output
    assert "median of 2 runs" in result.output
    result = CliRunner().invoke(main, ["run", str(tmp_path / "m"), "--rpc", "nowhere"])
    assert (result.exit_code, "names no RPC server; write host:port/key" in result.output) == (2, True)


def test_a_candidate_that_takes_the_server_down_is_never_tried_again(tmp_path: Path, server: Server) -> None:
    options = MeasureOptions(build_workers=1, run_timeout_s=60, min_repeat_ms=1)
    toolchain = Toolchain(build="support.devices.faulty_kernels:build")
    task, target = faulty_kernels.faulty_task("crash", "wrong"), Target("opencl -device=host")
    for _ in range(2):
        with (
            RecordStore(tmp_path) as store,
            contextlib.closing(RpcRunner(Address.parse(server.address), options, toolchain=toolchain)) as runner,
            contextlib.closing(LocalBuilder(target, options, toolchain=toolchain)) as builder,
        ):
            session = TuningSession(
                [task], target, store=store, builder=builder, runner=runner, options=TuningOptions(trials=10)
            )
            (result,) = session.run().values()
        assert result.outcomes == {"ok": 1, "run_error": 1, "wrong_result": 1}
    kept = {r["config"]["fault"]: r for r in records(tmp_path)}
    assert len(kept) == len(records(tmp_path)) == 3
    assert "took the server down twice" in kept["crash"]["error"]


def test_the_only_server_goes_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished measurements are kept, and the next call continues."""
    g = NetworkBuilder({"image": (1, 5, 9, 9)})
    model = g.model(g.add("Relu", g.conv("image", 5, 6, pads=[1, 1, 1, 1])))
    real = MeasureOptions.__init__
    monkeypatch.setattr(
        MeasureOptions,
        "__init__",
        lambda self, **values: real(self, **{"unreachable_s": 2.0, "connect_timeout_s": 10.0, **values}),
    )
    with serving() as short:

        def kill() -> None:
            wait_for(lambda: (tmp_path / FILE_NAME).exists() and len(records(tmp_path)) >= 3)
            end(short.process)

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(
            DeviceError, match=r"no device answered for unreachable_s = 2 s.*\n.*goes on where it stopped"
        ):
            romou.tune(model, target="opencl -device=host", rpc=short.address, trials=200, work_dir=tmp_path)
        thread.join()
    count = len(records(tmp_path))
    assert count >= 3
    tuned = romou.tune(model, target="opencl -device=host", trials=count + 1, work_dir=tmp_path)
    assert len(records(tmp_path)) == count + 1
    assert tuned.summary().is_right


class Relay:
    """A relay in front of a server that can break: it then accepts connections and closes them, or says nothing."""

    def __init__(self, port: int) -> None:
        self.how: str | None = None
        self.broken_at = math.inf
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}/{KEY}"
        self._server = ("127.0.0.1", port)
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._sockets.append(client)
                if self.how == "closes":
                    client.close()
                elif self.how is None:
                    server = socket.create_connection(self._server)
                    self._sockets.append(server)
                    for ends in ((client, server), (server, client)):
                        threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def break_off(self, how: str) -> None:
        """Cut what is open, and break."""
        self.how, self.broken_at = how, time.time()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            one.close()


def test_the_first_line_about_a_broken_server_comes_after_seconds(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a tuning, a server accepts connections and dies, comes back, and then accepts and says nothing.
    At last a tuning begins with a silent server.
    """
    graph = NetworkBuilder({"image": (1, 5, 9, 9)})
    model = graph.model(graph.conv("image", 5, 6))
    real = MeasureOptions.__init__
    limits = {"unreachable_s": 14.0, "connect_timeout_s": 5.0}
    monkeypatch.setattr(MeasureOptions, "__init__", lambda self, **values: real(self, **{**limits, **values}))

    def told(limit_s: float, since: float) -> list[float]:
        """Return the seconds after which a line named this limit."""
        text = f"trying for up to {limit_s:g} s"
        return [r.created - since for r in caplog.records if text in r.getMessage() and r.created >= since]

    waits = []
    with contextlib.closing(Relay(server.port)) as relay:

        def breaking() -> None:
            for how, count in (("closes", 2), ("says nothing", 3)):
                wait_for(lambda count=count: (tmp_path / FILE_NAME).exists() and len(records(tmp_path)) >= count)
                relay.break_off(how)
                waits.append(wait_for(lambda: told(14, relay.broken_at))[0])
                if how == "closes":
                    relay.how = None

        thread = threading.Thread(target=breaking)
        thread.start()
        options = {"target": "opencl -device=host", "rpc": relay.address, "trials": 200, "work_dir": tmp_path}
        with pytest.raises(DeviceError, match=r"no device answered for unreachable_s = 14 s"):
            romou.tune(model, **options)
        thread.join()
        assert [wait_s < 12 for wait_s in waits] == [True, True], waits
        began = time.time()
        with pytest.raises(DeviceError, match="did not answer within 5 s"):
            romou.tune(model, **options)
        assert [wait_s < 12 for wait_s in told(5, began)] == [True]


def test_the_hint_for_a_tracker_starts_one() -> None:
    """Ports above 9198 are beyond the range in which TVM's tracker looks unless an end is given."""
    port = next(port for port in iter(free_port, None) if port > 9199)
    with pytest.raises(ConnectionLostError, match="no TVM RPC tracker answers") as lost:
        Tracker(Address(host="127.0.0.1", port=port, key=KEY)).servers()
    command = str(lost.value.hint).partition(": ")[2].split()
    assert command[:2] == ["python", "-m"]
    with started([sys.executable, *command[1:]]):
        wait_for(lambda: answers(port))
        with contextlib.closing(Tracker(Address(host="127.0.0.1", port=port, key=KEY))) as tracker:
            assert tracker.servers() == {}


def test_the_target_gets_the_servers_device_and_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu, gpu = {"type": "cpu", "name": "a CPU"}, {"type": "gpu", "name": "a GPU"}
    assert str(for_server(Target("opencl"), cpu, "x86_64-linux-gnu", "h:1/k")) == "opencl -device=host"
    wanted = (
        r"has to name the device at h:1/k, which is a GPU: opencl -device=NAME; known: .*adreno640.*\n`archprobe run"
        r" --rpc h:1/k"
    )
    with pytest.raises(UsageError, match=wanted):
        for_server(Target("opencl"), gpu, "x86_64-linux-gnu", "h:1/k")
    phone = Target("opencl -device=adreno640")
    with pytest.raises(
        UsageError,
        match=(
            "the target's host is aarch64-linux-android, but the machine at h:1/k is x86_64-linux-gnu\nLeave -host= out"
        ),
    ):
        for_server(Target(phone, host="aarch64-linux-android"), gpu, "x86_64-linux-gnu", "h:1/k")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no compiler for aarch64-linux-gnu"):
        for_server(phone, gpu, "aarch64-linux-gnu", "h:1/k")
    compiler = tmp_path / "aarch64-linux-gnu-g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    assert (
        str(for_server(phone, gpu, "aarch64-linux-gnu", "h:1/k")) == "opencl -device=adreno640 -host=aarch64-linux-gnu"
    )
