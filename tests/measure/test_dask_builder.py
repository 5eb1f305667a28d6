"""Builds on the workers of a dask scheduler equal local builds, even if a worker fails."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest
import tvm
from click.testing import CliRunner

import romou
from romou.base.errors import CompatError, ConnectionLostError, UsageError
from romou.base.outcome import Outcome
from romou.cli import main
from romou.devices.backends import backend
from romou.devices.targets import Target
from romou.tuner.measure import BuildResult, Candidate, LocalBuilder, MeasureOptions, Toolchain, dask_builder, dask_job
from romou.tuner.measure.dask_builder import DaskBuilder
from romou.tuner.records import FILE_NAME
from support.devices import faulty_kernels
from support.kernels.operators import small_tasks
from support.models.small_networks import NetworkBuilder
from support.servers.rpc_servers import free_port
from support.suite.exhaustive import exhaustive

TARGET = Target("opencl -device=host")
FAULTY = Toolchain(
    load_task="support.devices.faulty_kernels:FaultyTask.from_json", build="support.devices.faulty_kernels:build"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    # A lost worker's successor is started by its nanny, as on a farm.
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as made:
        yield made


def address_of(cluster: distributed.LocalCluster) -> str:
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


@contextlib.contextmanager
def builder_at(cluster: distributed.LocalCluster, **options: Any) -> Iterator[DaskBuilder]:
    toolchain = options.pop("toolchain", None)
    with contextlib.closing(
        DaskBuilder(address_of(cluster), TARGET, MeasureOptions(**options), toolchain=toolchain)
    ) as made:
        yield made


def candidates() -> list[Candidate]:
    task = small_tasks()[0]
    configs = [task.default_config(TARGET), next(iter(task.space(TARGET)))]
    return [Candidate(task=task, config=config, trial=trial) for trial, config in enumerate(configs)]


def kernel_source(built: BuildResult) -> str:
    assert built.library is not None, built.error
    return str(tvm.runtime.load_module(built.library).imports[0].inspect_source())


def test_built_as_here(cluster: distributed.LocalCluster) -> None:
    with (
        builder_at(cluster) as there,
        contextlib.closing(LocalBuilder(TARGET, MeasureOptions(build_workers=1))) as here,
    ):
        ours, theirs = here.build(candidates()), there.build(candidates())
        assert there.workers == 2
        assert [(b.candidate.trial, b.outcome, b.scopes, b.stored, b.entry) for b in theirs] == [
            (b.candidate.trial, b.outcome, b.scopes, b.stored, b.entry) for b in ours
        ]
        assert [kernel_source(b) for b in theirs] == [kernel_source(b) for b in ours]


def test_what_a_candidate_does_to_its_process_is_its_own(cluster: distributed.LocalCluster) -> None:
    task = faulty_kernels.faulty_task(*faulty_kernels.FAULTS)
    with builder_at(cluster, toolchain=FAULTY, build_timeout_s=5) as builder:
        faults = ("build_crash", "build_hang", "invalid", "none")
        found = builder.build(
            [Candidate(task=task, config=faulty_kernels.config(fault), trial=i) for i, fault in enumerate(faults)]
        )
    assert [b.outcome for b in found] == [Outcome.BUILD_ERROR, Outcome.BUILD_ERROR, Outcome.INVALID, Outcome.OK]
    assert "SIG" in str(found[0].error)
    assert "build_timeout_s" in str(found[1].error)


def one_conv() -> Any:
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    return graph.model(graph.conv("x", 8, 12, pads=[1, 1, 1, 1]))


def test_tuned_as_here(cluster: distributed.LocalCluster, tmp_path: Path) -> None:
    def trials(folder: Path, builders: str | None) -> list[dict[str, Any]]:
        romou.tune(one_conv(), target="null", trials=5, work_dir=folder, builders=builders, explorer="random", seed=3)
        lines = map(json.loads, (folder / FILE_NAME).read_text().splitlines())
        return [
            {k: v for k, v in line.items() if k not in ("times_s", "build_s", "time", "clock_ratio")}
            for line in lines
            if not line["is_again"]
        ]

    ours, theirs = trials(tmp_path / "here", None), trials(tmp_path / "there", address_of(cluster))
    assert len(ours) == 5
    assert theirs == ours


def test_other_versions_are_one_error(cluster: distributed.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_job, "_source", lambda: "of another checkout")
    said = (
        r"dask worker tcp://.* would build other kernels: romou is .* \(source \w{8}\), here .* \(source of another"
        r" checkout\)"
    )
    with pytest.raises(CompatError, match=said):
        DaskBuilder(address_of(cluster), TARGET)


def test_a_driver_that_answers_another_image_size_is_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL sometimes reports another size. A CPU's kernels use no images."""
    text = TARGET.to_json()
    found = dask_job.identity(text)
    asked = backend("opencl")._asked_spec

    def answer(**facts: int) -> None:
        monkeypatch.setattr(
            type(backend("opencl")), "_asked_spec", lambda _, given: dataclasses.replace(asked(given), **facts)
        )

    answer(max_image_width_texels=4096, max_image_height_texels=4096)
    assert dask_job.identity(text) == found
    answer(local_mem_bytes=4096)
    assert dask_job.identity(text) != found


def test_a_worker_of_other_versions_that_comes_later(cluster: distributed.LocalCluster) -> None:
    with builder_at(cluster) as builder:
        builder._expected = {**builder._expected, "apache-tvm": "0.1"}
        with pytest.raises(CompatError, match=r"apache-tvm is .*, here 0\.1"):
            builder.build(candidates()[:1])


def test_a_scheduler_that_goes_away() -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
        ) as alone,
        builder_at(alone, connect_timeout_s=1) as builder,
    ):
        threading.Thread(target=alone.close).start()
        while builder._client.status == "running":
            time.sleep(0.05)
        with pytest.raises(ConnectionLostError, match="the same call goes on"):
            builder.build(candidates()[:1])


def test_no_scheduler(tmp_path: Path) -> None:
    address = f"dask://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionLostError, match=f"no dask scheduler answers at {address}"):
        DaskBuilder(address, TARGET, MeasureOptions(connect_timeout_s=1))
    path = tmp_path / "model.onnx"
    path.write_bytes(one_conv().SerializeToString())
    for wrong in ("127.0.0.1:8786", "dask://"):
        found = CliRunner().invoke(
            main, ["tune", str(path), "--target", "null", "--trials", "1", "--no-records", "--builders", wrong]
        )
        assert found.exit_code == UsageError.exit_code
        assert "expected dask://HOST:PORT" in found.output


@contextlib.contextmanager
def service(greeting: bytes) -> Iterator[int]:
    """Yield the port of a service that accepts connections, sends `greeting`, and waits."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listening.accept()[0])
                    taken[-1].sendall(greeting)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for connection in taken:
                connection.close()
            thread.join(5)


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"", "the port accepts connections and says nothing"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "another service is there, which says b'SSH-2.0-'"),
        # The length of a message that never comes.
        ((200).to_bytes(8, "little"), ""),
    ],
    ids=["silent", "another", "half"],
)
def test_a_port_that_is_no_scheduler_is_one_error_in_seconds(greeting: bytes, said: str) -> None:
    start = time.monotonic()
    with (
        service(greeting) as port,
        pytest.raises(
            ConnectionLostError, match=re.escape(f"no dask scheduler answers at dask://127.0.0.1:{port}: {said}")
        ),
    ):
        DaskBuilder(f"dask://127.0.0.1:{port}", TARGET, MeasureOptions(connect_timeout_s=2))
    assert time.monotonic() - start < 15


def test_only_an_own_scheduler_is_taken_without_tls(tmp_path: Path) -> None:
    """The scheduler has a documentation address that no machine uses: untrusted schedulers are not
    even connected to.
    """
    with pytest.raises(
        UsageError,
        match=(
            r"can run any code in this process, and 192\.0\.2\.7 is reached without"
            r" TLS\n.*dask\+tls://.*trust_builders=True"
        ),
    ):
        DaskBuilder("dask://192.0.2.7:8786", TARGET)
    with pytest.raises(UsageError, match="reached without TLS"):
        romou.tune(one_conv(), target="null", trials=1, work_dir=False, builders="dask://192.0.2.7:8786")
    with pytest.raises(ConnectionLostError, match=r"no dask scheduler answers at dask://192\.0\.2\.7:8786"):
        romou.tune(
            one_conv(),
            target="null",
            trials=1,
            work_dir=False,
            builders="dask://192.0.2.7:8786",
            trust_builders=True,
            measure={"connect_timeout_s": 1},
        )
    path = tmp_path / "model.onnx"
    path.write_bytes(one_conv().SerializeToString())
    command = [
        "tune",
        str(path),
        "--target",
        "null",
        "--trials",
        "1",
        "--no-records",
        "--builders",
        "dask://192.0.2.7:8786",
    ]
    assert "--trust-builders" in CliRunner().invoke(main, command).output
    trusting = CliRunner().invoke(main, [*command, "--trust-builders", "--measure", "connect_timeout_s=1"])
    assert "no dask scheduler answers" in trusting.output


def test_a_scheduler_with_tls(tmp_path: Path) -> None:
    """Certificates come from dask's configuration, on both sides."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-days", "1", "-nodes", "-newkey", "rsa:2048"]
    subprocess.run(
        ["openssl", "req", "-x509", *subject, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    roles = {
        f"{role}.{what}": str(path)
        for role in ("scheduler", "worker", "client")
        for what, path in (("cert", certificate), ("key", key))
    }
    tls = {f"distributed.comm.tls.{name}": value for name, value in {"ca-file": str(certificate), **roles}.items()}
    with (
        dask.config.set(tls),
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tls",
            security=distributed.Security(),
            dashboard_address=None,
        ) as secure,
    ):
        address = str(secure.scheduler_address).replace("tls://", "dask+tls://")
        with contextlib.closing(DaskBuilder(address, TARGET)) as builder:
            assert [built.outcome for built in builder.build(candidates()[:1])] == [Outcome.OK]
        with pytest.raises(ConnectionLostError, match=r"says nothing\. With TLS it is dask\+tls://"):
            DaskBuilder(address.replace("+tls", ""), TARGET, MeasureOptions(connect_timeout_s=1))


class Stranger:
    """Something that pickles well and is no weight of Romou's."""


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "done",
        ((Outcome.OK, 0.1, None, ("global",), (None,)), b""),
        ((Outcome.OK, 0.1, None, ("global",), (Stranger(),)), b"ELF"),
        ((Outcome.OK, 0.1, None, ("global",), ()), b"ELF"),
        (("ok", 0.1, None, (), ()), b"ELF"),
        ((Outcome.BUILD_ERROR, 0.1, 7, (), ()), b""),
    ],
)
def test_an_answer_that_is_no_build_is_refused(answer: Any) -> None:
    with pytest.raises(CompatError, match="a worker of dask://farm answered .*, which is no build"):
        dask_builder._checked(answer, "dask://farm")
    right = (Outcome.OK, 0.1, None, ("global", "global.texture"), (None, None)), b"ELF"
    assert dask_builder._checked(right, "dask://farm") == right


@exhaustive
def test_a_killed_worker_loses_nothing_and_a_new_one_helps(cluster: distributed.LocalCluster) -> None:
    task, config = faulty_kernels.faulty_task("none"), faulty_kernels.config()
    with builder_at(cluster, toolchain=FAULTY) as builder, distributed.Client(cluster, set_as_default=False) as client:
        futures = builder.start([Candidate(task=task, config=config, trial=trial) for trial in range(12)])
        while not any(future.done() for future in futures):
            time.sleep(0.01)
        victim = next(iter(client.run(os.getpid).values()))
        os.kill(victim, signal.SIGKILL)
        results = [future.result(timeout=120) for future in futures]
        assert [result is not None and result.outcome for result in results] == [Outcome.OK] * len(results)
        stop_at = time.monotonic() + 60
        while builder.workers < 2 and time.monotonic() < stop_at:
            time.sleep(0.2)
        assert builder.workers == 2
        assert victim not in client.run(os.getpid).values()
