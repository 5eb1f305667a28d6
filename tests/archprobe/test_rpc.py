"""The probes through a TVM RPC server in a separate process, on this machine's loopback."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from archprobe import session
from archprobe.cli import app, select
from archprobe.curve import Findings
from archprobe.devices import open_device
from archprobe.devices.rpc import RpcDevice
from archprobe.errors import BuildError, ConnectionLostError, DeviceError, KernelError, UsageError
from archprobe.meter import Meter
from archprobe.probes.caches import ImageChase
from archprobe.probes.probe import Probe
from archprobe.report.document import load_report
from romou.runtime.rpc import Address
from romou.runtime.rpc.tracker import Tracker
from support.servers.rpc_servers import KEY, OTHER_VERSION, Server, free_port, plain_server, serving, tracking, wait_for

# Removes the entry point of Romou's runtime, in the server and in the processes that it starts.
NO_ROMOU = """
import importlib.metadata as metadata
keep = metadata.entry_points
metadata.entry_points = lambda **how: () if how.get("group") == "tvm.backends" else keep(**how)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def address(server: Server) -> str:
    return server.address


@pytest.fixture(autouse=True)
def _one_session_at_a_time() -> Iterator[None]:
    """Collect garbage: a server serves the next session when the last is gone, and frames of caught exceptions keep one
    alive.
    """
    yield
    gc.collect()


def test_what_an_opencl_device_does(address: str) -> None:
    device = RpcDevice(address, 0)
    here = open_device("opencl:0").facts
    facts = device.facts
    assert (facts.name, facts.driver, facts.global_cache_line_bytes, facts.is_remote) == (
        here.name,
        here.driver,
        here.global_cache_line_bytes,
        True,
    )
    source = (
        "__kernel void add(__global float *out, float a, int b, uint c) { out[get_global_id(0)] += a * b + c * TIMES; }"
    )
    kernel = device.kernel(source, "add", TIMES=2)
    buffer = device.buffer(4 * 130)
    zeros = np.zeros(130, np.float32)
    np.testing.assert_array_equal(device.read(buffer, zeros), zeros)
    assert device.launch(kernel, 128, 64, buffer, np.float32(0.5), np.int32(-3), np.uint32(7)) > 0
    device.enqueue(kernel, 128, 64, buffer, np.float32(0.5), np.int32(-3), np.uint32(7))
    device.finish()
    np.testing.assert_array_equal(device.read(buffer, zeros), [25.0] * 128 + [0.0] * 2)
    device.write(buffer, np.arange(3, dtype=np.float32))
    np.testing.assert_array_equal(device.read(buffer, zeros)[:4], [0, 1, 2, 25])
    other = device.buffer(np.full(130, 9, np.float32))
    assert device.copy(other, buffer, 8) > 0
    np.testing.assert_array_equal(device.read(other, zeros)[:3], [0, 1, 9])
    assert device.spill_bytes(kernel) >= 0
    with pytest.raises(BuildError, match="refused a kernel: clBuildProgram failed") as caught:
        device.kernel("__kernel void f( {", "f")
    assert "expected" in caught.value.log
    with pytest.raises(
        KernelError, match="did not run a kernel with 130 work-items in groups of 64: clEnqueueNDRangeKernel failed"
    ):
        device.launch(kernel, 130, 64, buffer, np.float32(0), np.int32(0), np.uint32(0))
    with pytest.raises(DeviceError, match="did not give an image"):
        device.image(np.zeros((1, 10**6, 4), np.float32))


def test_what_a_vulkan_device_does(address: str, tmp_path: Path) -> None:
    device = RpcDevice(address, 0, kind="vulkan")
    assert (device.facts.name, device.facts.has_images, device.widest) == (open_device("vulkan:0").facts.name, False, 4)
    source = (
        "__kernel void add(__global float *out, float a, int b, uint c) { out[get_global_id(0)] += a * b + c * TIMES; }"
    )
    kernel, buffer = device.kernel(source, "add", TIMES=2), device.buffer(4 * 130)
    zeros = np.zeros(130, np.float32)
    np.testing.assert_array_equal(device.read(buffer, zeros), zeros)
    for local in (64, 32):
        assert device.launch(kernel, 128, local, buffer, np.float32(0.5), np.int32(-3), np.uint32(7)) > 0
    np.testing.assert_array_equal(device.read(buffer, zeros), [25.0] * 128 + [0.0] * 2)
    assert device.copy(device.buffer(np.full(130, 9, np.float32)), buffer, 8) > 0
    with pytest.raises(BuildError, match="glslangValidator refused a kernel"):
        device.kernel("__kernel void f(int n) { nothing(n); }", "f")
    with pytest.raises(
        KernelError,
        match=(
            "did not run a kernel with 130 work-items in groups of 64: .*is launched with 130 work-items in groups"
            " of 64"
        ),
    ):
        device.launch(kernel, 130, 64, buffer, np.float32(0), np.int32(0), np.uint32(0))
    device.connection.close()
    result = CliRunner().invoke(
        app,
        [
            "run",
            "--device",
            "vulkan:0",
            "--rpc",
            address,
            "--quick",
            "--only",
            "limits",
            "-o",
            str(tmp_path / "r.json"),
        ],
    )
    assert result.exit_code == 0, result.output
    assert (
        load_report(tmp_path / "r.json").answers()["Device.LogicThreadCount"].value == device.facts.max_work_group_size
    )


def test_images_travel_or_are_zeroed_there(address: str) -> None:
    device = RpcDevice(address, 0)
    assert [device.image(np.zeros((5, 7, 4), kind)).numpy().any() for kind in (np.int32, np.float32)] == [False, False]
    texels = np.arange(140, dtype=np.int32).reshape(5, 7, 4)
    np.testing.assert_array_equal(device.image(texels).numpy(), texels)
    run, lap = ImageChase(Meter(device=device)).run(64)
    assert lap == 8
    assert run(16) > 0


def test_a_run_over_rpc(address: str, tmp_path: Path) -> None:
    server, target = ["--rpc", address], tmp_path / "r.json"
    result = CliRunner().invoke(
        app, ["run", *server, "--quick", "--only", "limits,launch,buffer_cache,gflops,write_speed", "-o", str(target)]
    )
    assert result.exit_code == 0, result.output
    report = load_report(target)
    assert {findings.state for findings in report.aspects.values()} == {"done"}
    assert report.answers()["Device.LogicThreadCount"].value == open_device("opencl:0").facts.max_work_group_size
    assert "time of the network" in report.answers()["LaunchOverhead.LaunchTime"].reason
    assert "apache-tvm" in report.header["Software"]
    assert open_device("opencl:0").facts.name in CliRunner().invoke(app, ["devices", *server]).output


def test_wrong_addresses_say_what_to_do(address: str) -> None:
    with pytest.raises(
        DeviceError, match="does not serve the key that was given\nWrite the one that it was started with"
    ):
        open_device("opencl:0", rpc=address.replace(KEY, "tablet"))
    with pytest.raises(
        DeviceError,
        match="no TVM RPC server answers at 127.0.0.1:9 .*\nStart one there: romou serve --port 9 --key-file FILE",
    ):
        open_device("opencl:0", rpc="127.0.0.1:9/phone")
    with pytest.raises(DeviceError, match="has no OpenCL device 77; it sees opencl:0 is"):
        open_device("opencl:77", rpc=address)
    with pytest.raises(UsageError, match="names no RPC server; write host:port/key"):
        open_device("opencl:0", rpc="phone")
    with pytest.raises(UsageError, match="behind RPC only OpenCL and Vulkan are probed, not 'cuda'"):
        open_device("cuda:0", rpc=address)


def test_a_server_that_is_busy_is_not_waited_for(address: str) -> None:
    device = RpcDevice(address, 0)
    with pytest.raises(
        DeviceError, match=r"did not answer within 1 s; it serves one session at a time and may have another"
    ):
        RpcDevice(address, 0, patience_s=1.0)
    assert device.facts.is_remote


def test_a_server_without_romou(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_ROMOU)
    wanted = "lacks Romou's OpenCL runtime .*\nInstall this version of romou there"
    with plain_server(PYTHONPATH=str(tmp_path)) as where, pytest.raises(DeviceError, match=wanted):
        open_device("opencl:0", rpc=where)


def test_a_server_of_another_version() -> None:
    with (
        plain_server(OTHER_VERSION) as where,
        pytest.raises(DeviceError, match=r"has tvm 0.26.0 \(here 0.27.0.post1\)"),
    ):
        open_device("opencl:0", rpc=where)


def test_a_device_of_a_tracker() -> None:
    with tracking(free_port()) as tracker, serving("--tracker", tracker):
        where = f"tracker://{tracker}/{KEY}"
        wait_for(lambda: Tracker(Address.parse(where)).servers())
        for _ in range(2):
            device = RpcDevice(where, 0)
            assert device.facts.name == open_device("opencl:0").facts.name
            device.connection.close()


def test_a_cut_connection_is_no_finding_and_the_run_goes_on(address: str, tmp_path: Path) -> None:
    target, (limits,) = tmp_path / "r.json", select("limits")
    with serving() as dying:

        def cut(meter: Meter) -> Findings:
            dying.session().kill()
            return limits.measure(meter)

        broken = Probe(name="x", aspect="X", title="X", method="m", measure=cut)
        with pytest.raises(
            ConnectionLostError,
            match=f"the connection to 127.0.0.1:{dying.port} was cut .*; the same command goes on where it stopped",
        ):
            session.run(RpcDevice(dying.address, 0), [limits, broken], target)
    assert list(load_report(target).aspects) == ["Device"]
    report = session.run(
        RpcDevice(address, 0),
        [limits, Probe(name="x", aspect="X", title="X", method="m", measure=limits.measure)],
        target,
    )
    assert (list(report.aspects), report.aspects["X"].state, report.header["IsComplete"]) == (
        ["Device", "X", "Conclusions"],
        "done",
        True,
    )
