"""The phone's RPC server on this machine: TVM's protocol, sessions that crash and hang, a tracker that goes and comes
back.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import rpc
from tvm.rpc.tracker import Tracker

from romou.base.compat import check_versions
from support.servers.phone_servers import Server, running
from support.servers.rpc_servers import free_port

# Functions as TVM finds them in a library: they take (handle, arguments, count, result) and return 0 for "fine".
MISDEEDS = """
#include <unistd.h>
int __tvm_ffi_crash(void* h, void* a, int n, void* r) { __builtin_trap(); }
int __tvm_ffi_hang(void* h, void* a, int n, void* r) { for (;;) pause(); }
int __tvm_ffi_fine(void* h, void* a, int n, void* r) { return 0; }
"""


@pytest.fixture(scope="module")
def misdeeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("misdeeds")
    (folder / "m.c").write_text(MISDEEDS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "misdeeds.so"), str(folder / "m.c")], check=True)
    return folder / "misdeeds.so"


@pytest.fixture(autouse=True)
def _sessions_end() -> Any:
    """Collect garbage: a server serves the next session when the last is gone, and frames of caught exceptions keep one
    alive.
    """
    yield
    gc.collect()


def load(session: Any, library: Path) -> Any:
    session.upload(str(library))
    return session.load_module(library.name)


def is_serving(port: int) -> None:
    device = rpc.connect("127.0.0.1", port, "phone").device("opencl", 0)
    np.testing.assert_array_equal(tvm.runtime.tensor(np.arange(7), device).numpy(), np.arange(7))


def test_a_session_has_what_tvm_expects(serve: Callable[..., Server], misdeeds: Path, tmp_path: Path) -> None:
    server = serve()
    session = rpc.connect("127.0.0.1", server.port, "phone")
    load(session, misdeeds)["fine"]()
    (tmp_path / "data").write_bytes(bytes(range(256)) * 9000)
    session.upload(str(tmp_path / "data"))
    assert bytes(session.download("data")) == (tmp_path / "data").read_bytes()
    assert sorted(str(session.listdir(".")).split(",")) == ["data", "misdeeds.so"]
    assert bytes(session.download_linked_module("misdeeds.so")) == misdeeds.read_bytes()
    with pytest.raises(tvm.error.RPCError, match="there is no linker here"):
        session.download_linked_module("x.o")
    session.remove("data")
    with pytest.raises(tvm.error.RPCError):
        session.download("data")
    # Large enough for several pieces of the socket.
    device, array = session.device("opencl", 0), np.random.default_rng(0).standard_normal((3 << 20,)).astype("float32")
    np.testing.assert_array_equal(tvm.runtime.tensor(array, device).numpy(), array)
    versions = json.loads(str(session.get_function("romou.rpc.versions")()))
    check_versions()
    assert versions["tvm"] == tvm.__version__
    assert versions["host"] == "x86_64-linux-gnu"
    assert {"tvm_ffi", "romou"} < set(versions)


def test_files_stay_in_the_folder_of_the_session(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    session = rpc.connect("127.0.0.1", server.port, "phone")
    folder = Path(str(session.get_function("tvm.rpc.server.workpath")("../../escaped")))
    assert folder.name == "escaped"
    assert folder.parent.parent == tmp_path
    (tmp_path / "x").write_text("x")
    session.upload(str(tmp_path / "x"), "../x2")
    assert not (tmp_path / "x2").exists()
    with pytest.raises(tvm.error.RPCError, match="is no name of a file"):
        session.upload(str(tmp_path / "x"), "..")
    del session
    gc.collect()
    server.wait_for("is over")
    assert not folder.parent.exists()


def test_a_crash_ends_only_its_session(serve: Callable[..., Server], misdeeds: Path, tmp_path: Path) -> None:
    server = serve()
    session = rpc.connect("127.0.0.1", server.port, "phone")
    with pytest.raises(Exception, match=r"."):
        load(session, misdeeds)["crash"]()
    server.wait_for(r"died of signal \d+")
    is_serving(server.port)
    assert not list(tmp_path.glob("romou-rpc-*/misdeeds.so"))


def test_a_hang_ends_after_the_timeout_and_says_so(serve: Callable[..., Server], misdeeds: Path) -> None:
    server = serve("--timeout", "1.5")
    session = rpc.connect("127.0.0.1", server.port, "phone")
    module = load(session, misdeeds)
    started = time.monotonic()
    with pytest.raises(Exception, match=r"nothing was sent or received for 1.5 s \(--timeout of the server\)"):
        module["hang"]()
    assert time.monotonic() - started > 1.4
    is_serving(server.port)


def test_a_silent_client_does_not_keep_the_server(serve: Callable[..., Server]) -> None:
    server = serve("--timeout", "1")
    silent = rpc.connect("127.0.0.1", server.port, "phone")
    server.wait_for("was ended: nothing was sent or received")
    is_serving(server.port)
    del silent


def test_a_session_may_ask_for_a_limit(serve: Callable[..., Server], misdeeds: Path) -> None:
    server = serve()
    session = rpc.connect("127.0.0.1", server.port, "phone", session_timeout=1)
    with pytest.raises(Exception, match="your session of 1 s has expired"):
        load(session, misdeeds)["hang"]()


def test_a_wrong_key_is_refused(serve: Callable[..., Server]) -> None:
    server = serve()
    for key in ("phon", "phone2", ""):
        with pytest.raises(RuntimeError, match="matches key"):
            rpc.connect("127.0.0.1", server.port, key)
    server.wait_for("wrong key")
    is_serving(server.port)


def test_what_is_no_client_is_refused(serve: Callable[..., Server]) -> None:
    server = serve()
    for greeting in (
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<ii", 0xFF271, -5),
        struct.pack("<ii", 0xFF271, 1 << 30),
        b"\x71",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(greeting)
            # The server may have hung up already: no longer connected, or reset.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(100) == b""
    is_serving(server.port)
    assert len([line for line in server.lines if line.startswith("refused ")]) == 4


def test_silent_and_slow_clients_keep_nobody_waiting(serve: Callable[..., Server]) -> None:
    server = serve()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(70)]
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        slow.sendall(struct.pack("<ii", 0xFF271, 900))
        start = time.monotonic()
        for _ in range(2):
            is_serving(server.port)
            gc.collect()
        assert time.monotonic() - start < 4.5, "a client waited for the others' limit"
        # One byte now and then is no reason to wait longer.
        with contextlib.suppress(OSError):
            for _ in range(40):
                slow.send(b"c")
                time.sleep(0.5)
            pytest.fail("a client of a byte at a time was never sent away")
        for one in silent:
            one.settimeout(10)
            assert one.recv(1) == b""


def test_a_key_from_a_file_or_the_environment(
    host_runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("phone\n")
    command = [str(host_runtime / "romou_rpc_server"), "--port", "0", "--work-dir", str(tmp_path)]
    with running([*command, "--key-file", str(tmp_path / "key")]) as server:
        is_serving(server.port)
    monkeypatch.setenv("ROMOU_RPC_KEY", "phone")
    with running(command) as server:
        is_serving(server.port)


def test_a_tracker_hands_the_server_out_and_may_be_restarted(serve: Callable[..., Server], misdeeds: Path) -> None:
    port = free_port()
    tracker = Tracker("127.0.0.1", port=port, port_end=port + 1, silent=True)
    server = serve("--tracker", f"127.0.0.1:{port}")
    server.wait_for("reported to the tracker")

    def through_tracker() -> None:
        session = rpc.connect_tracker("127.0.0.1", port).request("phone", session_timeout=60)
        load(session, misdeeds)["fine"]()

    for _ in range(2):
        through_tracker()
        gc.collect()
    with pytest.raises(RuntimeError, match="matches key"):
        rpc.connect("127.0.0.1", server.port, "phone")  # only who was given its match key by the tracker
    tracker.terminate()
    server.wait_for("lost the tracker")
    tracker = Tracker("127.0.0.1", port=port, port_end=port + 1, silent=True)
    try:
        deadline = time.monotonic() + 60
        while "phone" not in rpc.connect_tracker("127.0.0.1", port).summary()["queue_info"]:
            assert time.monotonic() < deadline, "the server did not come back to the tracker"
            time.sleep(0.2)
        through_tracker()
    finally:
        tracker.terminate()


def test_the_default_is_loopback_and_more_is_warned_of(serve: Callable[..., Server]) -> None:
    server = serve()
    is_serving(server.port)
    assert server.lines[0] == f"serving on 127.0.0.1:{server.port}"
    assert not [line for line in server.lines if "warning" in line]
    server = serve("--host", "0.0.0.0")
    server.wait_for(r"warning: 0\.0\.0\.0 is open to the network; whoever knows the key can run any program here")


def test_a_driver_that_hands_its_functions_out(host_runtime: Path, tmp_path: Path) -> None:
    """libOpenCL-pixel.so does not export OpenCL: it has to be enabled, and queried for each function."""
    source = """
        #include <dlfcn.h>
        static int is_enabled;
        void enableOpenCL(void) { is_enabled = 1; }
        void* loadOpenCLPointer(const char* name) { return is_enabled ? dlsym(dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL), name) : 0; }
    """  # noqa: E501
    (tmp_path / "pixel.c").write_text(source)
    library = tmp_path / "libOpenCL-pixel.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "pixel.c"), "-ldl"], check=True)
    environment = {**os.environ, "ROMOU_OPENCL_LIBRARY": str(library)}
    done = subprocess.run(
        [str(host_runtime / "romou_rpc_server"), "--devices"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    found = json.loads(done.stdout)["opencl"]
    assert (found["library"], len(found["devices"]) > 0) == (str(library), True)


def test_devices_are_printed(host_runtime: Path) -> None:
    done = subprocess.run(
        [str(host_runtime / "romou_rpc_server"), "--devices"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert set(found) == {"opencl", "vulkan"}
    for kind in found.values():
        assert kind["library"]
        assert [d["name"] for d in kind["devices"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the key is missing: choose a secret word"),
        (["--key", "a b"], "the key: no spaces, slashes and colons"),
        (["--key"], "--key needs a value"),
        (["--key-file", "/nonexistent"], "--key-file /nonexistent: holds no key"),
        (["--key", "k", "--port", "70000"], "--port 70000: must be a whole number from 0 to 65535"),
        (["--key", "k", "--timeout", "soon"], "--timeout soon: must be seconds, 0 or more"),
        (["--key", "k", "--tracker", "here"], "--tracker here: write HOST:PORT"),
        (["--key", "k", "--bind", "x"], "unknown option --bind"),
        (["--key", "k", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:9090"),
    ],
)
def test_bad_options_give_one_message(host_runtime: Path, options: list[str], message: str) -> None:
    done = subprocess.run(
        [str(host_runtime / "romou_rpc_server"), *options], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"romou_rpc_server: {message}")
