"""`romou serve`: who may come in, for how long, and what is said of an open door."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rpc_servers import Server, serving, wait_for

from romou.cli import main
from romou.core.errors import ConnectionLostError, DeviceError, UsageError
from romou.rpc import Address, connect
from romou.rpc.serve import ServeOptions, serve, warning


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
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "phone", "host:90", "host:90/", "host/key", "host:0/key", "host:99999/key", "h:1/a:b", "h:1/a b", "udp://h:1/k"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"names no RPC server; write host:port/key, for example 192.168.1.20:9090/phone\nFor a tracker write tracker://"):
        Address.parse(text)


def test_the_key_is_required_and_the_default_is_this_machine() -> None:
    result = CliRunner().invoke(main, ["serve"])
    assert (result.exit_code, "Missing option '--key'" in result.output) == (2, True)
    assert ServeOptions(key="k").host == "127.0.0.1"
    for key in ("", "a b", "a/b", "a:b"):
        with pytest.raises(UsageError, match="must be a word"):
            ServeOptions(key=key)
    with pytest.raises(UsageError, match="expected host:port"):
        ServeOptions(key="k", tracker="nowhere")


def test_an_open_door_is_warned_of() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert warning(ServeOptions(key="k", host=host)) is None
    for host in ("0.0.0.0", "192.168.1.20", "::"):
        assert "runs what it is sent" in str(warning(ServeOptions(key="k", host=host)))


def test_an_address_that_is_taken(server: Server) -> None:
    with pytest.raises(DeviceError, match=f"cannot listen on 127.0.0.1:{server.port}: .*\nGive another --host or --port"):
        serve(ServeOptions(key="k", port=server.port), print)


def test_a_session_that_takes_too_long(server: Server) -> None:
    """The device side keeps to the limit, whatever the host does."""
    connection = connect(Address.parse(server.address), limit_s=1.0)
    session = server.session()
    session.wait(timeout=30)
    assert "took too long and is killed" in server.log.read_text()
    with pytest.raises(RuntimeError):
        connection.session.get_function("romou.rpc.versions")()
    connect(Address.parse(server.address)).close()


def test_a_busy_server_says_nothing_and_serves_the_next_one_later(server: Server) -> None:
    address = Address.parse(server.address)
    with contextlib.closing(connect(address)), pytest.raises(ConnectionLostError, match="did not answer within 0.5 s; it serves one session at a time"):
        connect(address, patience_s=0.5)
    connect(address, patience_s=60).close()


@pytest.mark.parametrize("greeting", [b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack("<ii", 0xFF271, 2**31 - 1), struct.pack("<ii", 0xFF271, 10) + b"\xff" * 10])
def test_strangers_do_no_harm(server: Server, greeting: bytes) -> None:
    """Neither those that say nothing and stay, nor those that speak another protocol."""
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(greeting)
        connect(Address.parse(server.address), patience_s=60).close()


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
