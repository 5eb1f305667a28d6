"""Benches and comparisons on a device behind a connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import DeviceError, UsageError
from romou.cli import main
from romou.runtime.module.remote import RemoteDevice
from romou.tools.regression import Bench
from romou.tools.regression.timing import MODEL, REPEATS
from romou.tuner.measure import MeasureOptions
from romou.tuner.measure.fingerprint import device_fingerprint
from support.models.small_networks import NetworkBuilder
from support.servers.rpc_servers import Server, free_port, serving, wait_for

# With images, as on a phone.
TARGET = "opencl -device=adreno640"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = NetworkBuilder({"image": (1, 8, 12, 12)})
    x = g.add("Relu", g.conv("image", 8, 12, pads=[1, 1, 1, 1]))
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(g.model(g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])), path)
    return path


@pytest.fixture(scope="module")
def baseline(model: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "baseline.json"
    result = CliRunner().invoke(
        main, ["bench", str(model), "--save", str(path), "--target", TARGET, "--repeats", "8", "--rpc", server.address]
    )
    assert result.exit_code == 0, result.output
    assert f"--rpc {server.address}" in "".join(result.stdout.split("\n"))
    return path


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[RemoteDevice]:
    """Return a list that receives a `RemoteDevice` for each session that is opened for models."""
    found: list[RemoteDevice] = []
    connect = RemoteDevice._connect

    def counted(self: RemoteDevice, patience_s: float) -> None:
        found.append(self)
        connect(self, patience_s)

    monkeypatch.setattr(RemoteDevice, "_connect", counted)
    return found


def test_a_bench_holds_times_of_the_server(baseline: Path, server: Server) -> None:
    made = Bench.load(baseline)
    # The server is this machine, so its device is the one here.
    assert made.device == device_fingerprint("opencl:0").to_dict()
    assert {a.scope for o in made.operators for a in o.arguments} > {"global"}
    for rounds in (made.model_times_ms, made.reference_times_ms, *(o.times_ms for o in made.operators)):
        assert [len(r) for r in rounds] == [REPEATS] * 8
    wait_for(lambda: server.running_session() is None)


def test_equal_models_are_measured_in_turns_in_one_session(
    model: Path, baseline: Path, server: Server, connections: list[RemoteDevice]
) -> None:
    # Of 22 comparisons on busy cores none raised a false alarm at the usual 5%, but equal kernels of microseconds came
    # out up to 8% apart.
    options = ["--fail-over", "20%", "--repeats", "8", "--rpc", server.address, "--json"]
    result = CliRunner().invoke(main, ["compare", str(baseline), str(model), *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["timing"], found["reason"], found["is_regression"]) == ("in turns", None, False)
    assert {row["name"] for row in found["rows"]} == {MODEL, *(o.name for o in Bench.load(baseline).operators)}
    assert all(row["times"] is not None for row in found["rows"])
    assert len(connections) == 1
    wait_for(lambda: server.running_session() is None)


def test_a_bench_at_hand_moves_into_the_session(
    model: Path, baseline: Path, server: Server, connections: list[RemoteDevice]
) -> None:
    made = romou.bench(model, target=TARGET, repeats=8, rpc=server.address)
    found = romou.compare(baseline, made, fail_over=0.5, repeats=8, measures=False, rpc=server.address)
    assert found.timing == "in turns"
    assert len(connections) == 2, "one for the bench, one for both sides of the comparison"


def test_an_operator_is_timed_in_another_session_too(baseline: Path, server: Server) -> None:
    there = romou.load(baseline.with_suffix(".romou"), rpc=server.address)
    one = next(o for o in Bench.load(baseline).operators if any(a.scope != "global" for a in o.arguments))
    arrays = [np.ones(a.shape, a.dtype) for a in one.arguments]
    timer = there.operator_timer(one.function, one.arguments, arrays)
    assert [t > 0 for t in timer(2, 3)] == [True] * 3
    server.session().kill()
    assert [t > 0 for t in timer(2, 3)] == [True] * 3
    with pytest.raises(UsageError, match="the model has no function 'none'"):
        there.operator_timer("none", (), ())(1, 1)
    there.release()


def test_no_server(model: Path, baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = MeasureOptions.__init__
    monkeypatch.setattr(
        MeasureOptions,
        "__init__",
        lambda self, **values: real(self, **{"unreachable_s": 1.0, "connect_timeout_s": 10.0, **values}),
    )
    address = f"127.0.0.1:{free_port()}/phone"
    result = CliRunner().invoke(main, ["compare", str(baseline), str(model), "--rpc", address])
    assert (result.exit_code, address.partition("/")[0] in result.output, "Traceback" in result.output) == (
        3,
        True,
        False,
    ), result.output
    with pytest.raises(DeviceError, match="no TVM RPC server answers at 127.0.0.1"):
        romou.bench(model, target=TARGET, rpc=address)
    with pytest.raises(UsageError, match="names no RPC server; write host:port/key"):
        romou.compare(baseline, model, rpc="nowhere")
