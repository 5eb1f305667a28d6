"""`romou serve`: access, its duration, and the warning about an open server."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from romou.base.errors import ConnectionLostError, DeviceError, UsageError
from romou.cli import main
from romou.runtime.module import remote
from romou.runtime.rpc import Address, connect, connection
from romou.runtime.rpc.serve import ServeOptions, serve, warning
from support.servers.rpc_servers import KEY, Server, free_port, serving, tracking, wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--limit", "60") as found:
        yield found


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9090/phone", Address(host="127.0.0.1", port=9090, key="phone")),
        ("phones.local:1/k-1", Address(host="phones.local", port=1, key="k-1")),
        ("[::1]:9090/phone", Address(host="::1", port=9090, key="phone")),
        ("tracker://10.0.0.7:9190/phone", Address(host="10.0.0.7", port=9190, key="phone", is_tracker=True)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    # Texts about an address do not contain the key.
    assert str(address) == text.rpartition("/")[0]
    assert address.key not in repr(address).replace(address.host, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "phone",
        "host:90",
        "host:90/",
        "host:90/@",
        "host/key",
        "host:0/key",
        "host:99999/key",
        "h:1/a:b",
        "h:1/a b",
        "udp://h:1/k",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(
        UsageError,
        match=(
            r"names no RPC server; write host:port/key, for example 192.168.1.20:9090/phone\nFor a tracker write"
            r" tracker://"
        ),
    ):
        Address.parse(text)


def test_the_key_is_required_and_the_default_is_this_machine() -> None:
    result = CliRunner().invoke(main, ["serve"])
    assert (result.exit_code, "no key is given" in result.output, "--key-file" in result.output) == (2, True, True)
    assert ServeOptions(key="k").host == "127.0.0.1"
    for key in ("", "a b", "a/b", "a:b", "@a"):
        with pytest.raises(UsageError, match="must be a word"):
            ServeOptions(key=key)
    with pytest.raises(UsageError, match="expected host:port"):
        ServeOptions(key="k", tracker="nowhere")


def test_a_key_that_no_list_of_processes_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is in a file or in the environment, on both sides. The log does not contain it either."""
    secret = tmp_path / "key"
    secret.write_text("hush-4711\n")
    with pytest.raises(
        UsageError, match=f"other users of this machine have access to the key in {secret}\nchmod 600 {secret}"
    ):
        Address.parse(f"h:1/@{secret}")
    secret.chmod(0o600)
    with (
        serving(key_from=("--key-file", str(secret))) as server,
        contextlib.closing(connect(Address.parse(f"127.0.0.1:{server.port}/@{secret}"))),
    ):
        family = [server.process, *server.process.children(recursive=True)]
        assert len(family) == 3
        assert not any("hush" in word for process in family for word in process.cmdline())
        log = server.log.read_text()
        assert "hush" not in log
        assert "in the list of processes" not in log
    monkeypatch.setenv("ROMOU_RPC_KEY", "hush-4712")
    with serving(key_from=()) as server:
        connect(Address.parse(f"127.0.0.1:{server.port}")).close()
    both = CliRunner().invoke(main, ["serve", "--key", "k", "--key-file", str(secret)])
    assert (both.exit_code, "--key and --key-file are both given" in both.output) == (2, True)


def test_a_server_of_a_tracker_says_when_it_is_registered_and_how_it_is_reached() -> None:
    port = free_port()
    with serving("--tracker", f"127.0.0.1:{port}") as server:
        wait_for(lambda: "no tracker answers" in server.log.read_text())
        assert "registered" not in server.log.read_text()
        with tracking(port):
            wait_for(lambda: f"registered at tracker://127.0.0.1:{port}/KEY" in server.log.read_text())
            with pytest.raises(DeviceError, match="is registered at a tracker.*\nWrite tracker://HOST:PORT/KEY"):
                connect(Address.parse(server.address))
            with pytest.raises(DeviceError, match="does not serve the key that was given"):
                connect(Address.parse(f"127.0.0.1:{server.port}/tablet"))
            connect(Address.parse(f"tracker://127.0.0.1:{port}/{KEY}")).close()


def test_an_open_door_is_warned_of() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert warning(ServeOptions(key="k", host=host)) is None
    for host in ("0.0.0.0", "192.168.1.20", "::"):
        assert "runs what it is sent" in str(warning(ServeOptions(key="k", host=host)))


def test_an_address_that_is_taken(server: Server) -> None:
    with pytest.raises(
        DeviceError, match=f"cannot listen on 127.0.0.1:{server.port}: .*\nGive another --host or --port"
    ):
        serve(ServeOptions(key="k", port=server.port), print)


def test_a_session_that_takes_too_long(server: Server) -> None:
    """The device side enforces the limit, independently of the host."""
    connection = connect(Address.parse(server.address), limit_s=1.0)
    session = server.session()
    session.wait(timeout=30)
    assert "took too long and is killed" in server.log.read_text()
    with pytest.raises(RuntimeError):
        connection.session.get_function("romou.rpc.versions")()
    connect(Address.parse(server.address)).close()


def test_a_busy_server_says_nothing_and_serves_the_next_one_later(server: Server) -> None:
    address = Address.parse(server.address)
    with (
        contextlib.closing(connect(address)),
        pytest.raises(ConnectionLostError, match="did not answer within 0.5 s; it serves one session at a time"),
    ):
        connect(address, patience_s=0.5)
    connect(address, patience_s=60).close()


def test_nobody_waits_for_a_model_longer_than_this() -> None:
    assert remote._PATIENCE_S <= 15


def test_a_server_that_says_nothing_is_given_up_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server never greets, or greets and stays silent: the user reads a line about the wait, then one error."""
    monkeypatch.setattr(remote, "_PATIENCE_S", 3.0)
    monkeypatch.setattr(connection, "TELL_S", 0.2)
    for answer in (b"", struct.pack("<ii", 0xFF271, 1) + b"s"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = Address(host="127.0.0.1", port=listener.getsockname()[1], key="k")

            def greet(listener: socket.socket = listener, answer: bytes = answer) -> None:
                with listener.accept()[0] as connection:
                    connection.sendall(answer)
                    time.sleep(6)

            thread = threading.Thread(target=greet)
            thread.start()
            device = remote.RemoteDevice(address)
            message = (
                rf"no model runs at {address} after an attempt: the RPC server at {address} did not answer within 3 s;"
                r" it serves one session at a time"
            )
            with pytest.raises(DeviceError, match=message):
                device.run(tmp_path / "m.so", [])
            thread.join()
            device.release()
        assert f"connecting to {address}: no answer yet; waiting for up to 3 s" in caplog.text


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<ii", 0xFF271, 2**31 - 1),
        struct.pack("<ii", 0xFF271, 10) + b"\xff" * 10,
    ],
)
def test_strangers_do_no_harm(server: Server, greeting: bytes) -> None:
    """Silent connections and other protocols disturb nothing."""
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(greeting)
        connect(Address.parse(server.address), patience_s=60).close()


def test_silent_and_slow_clients_keep_nobody_waiting(server: Server) -> None:
    """Clients that say nothing, and one that says a byte at a time: neither kind holds up a client, and each is sent
    away in time.
    """
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(80)]
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        start, greeting = time.monotonic(), struct.pack("<ii", 0xFF271, 900)

        def drip() -> None:
            with contextlib.suppress(OSError):
                for byte in greeting + bytes(900):
                    slow.send(bytes([byte]))
                    time.sleep(0.5)

        thread = threading.Thread(target=drip)
        thread.start()
        for _ in range(3):
            connect(Address.parse(server.address), patience_s=60).close()
        assert time.monotonic() - start < 4.5, "a client waited for the others' limit"
        thread.join(timeout=20)
        assert not thread.is_alive()
        for one in silent:
            one.settimeout(10)
            assert one.recv(1) == b""
    assert server.serving().is_running()


def test_a_key_in_the_command_line_is_warned_of(server: Server) -> None:
    assert "every user of this machine can read --key in the list of processes" in server.log.read_text()


def test_files_stay_in_the_folder_of_the_session(server: Server, tmp_path: Path) -> None:
    with contextlib.closing(connect(Address.parse(server.address))) as connection:
        (tmp_path / "x").write_text("x")
        for name in ("../../../escaped.txt", str(tmp_path / "absolute.txt")):
            connection.session.upload(str(tmp_path / "x"), name)
        for name in ("..", "a/.."):
            with pytest.raises(RuntimeError, match="is no name of a file"):
                connection.session.upload(str(tmp_path / "x"), name)
        folder = Path(server.session().cwd())
        assert sorted(p.name for p in folder.rglob("*.txt")) == ["absolute.txt", "escaped.txt"]
        assert {p.parent.name for p in folder.rglob("*.txt")} == {"files"}
        assert bytes(connection.session.download("escaped.txt")) == b"x"
    assert not (tmp_path / "absolute.txt").exists()
    assert not (folder.parents[1] / "escaped.txt").exists()


def test_nothing_is_left_when_it_is_stopped() -> None:
    with serving("--json") as server:
        assert f'"port": {server.port}' in server.log.read_text()
        connection = connect(Address.parse(server.address))
        running, folder = [server.process, server.serving(), server.session()], Path(server.session().cwd())
        server.process.send_signal(signal.SIGTERM)
        for process in running:
            wait_for(lambda p=process: not p.is_running() or p.status() == "zombie")
        wait_for(lambda: not folder.exists())
        connection.close()


def test_nothing_is_left_when_the_watchdog_is_killed() -> None:
    with serving() as server:
        connection = connect(Address.parse(server.address))
        running = [server.serving(), server.session()]
        server.process.kill()
        for process in running:
            wait_for(lambda p=process: not p.is_running() or p.status() == "zombie")
        connection.close()


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ("[" * 100_000, "nested deeper"),
        ("{", "not JSON"),
        ('["romou"]', "expected an object"),
        ('{"tvm": 5}', "tvm is 5"),
    ],
)
def test_a_wrong_answer_of_a_server_is_one_error(versions: str, reason: str) -> None:
    class Session:
        def get_function(self, name: str) -> Any:
            return lambda: versions

    text = f"the RPC server at there:9 has a wrong answer to romou.rpc.versions: .*{reason}"
    with pytest.raises(DeviceError, match=text):
        connection._checked(Session(), "there:9", "opencl", time.monotonic() + 20)
