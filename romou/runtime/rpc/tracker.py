"""A client of TVM's tracker, which assigns servers under a key, each for one session.

TVM's client waits without a limit and does not report the server that it got, so a broken one could not be named.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

from tvm.rpc import base

from romou.base.errors import ConnectionLostError, DeviceError
from romou.runtime.rpc.address import Address

_ANSWER_S = 10.0


class Tracker:
    """A connection to the tracker at `address`, opened at the first call and again after it was lost.

    All methods raise ConnectionLostError if the tracker does not answer.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def servers(self) -> dict[str, list[str]]:
        """Return (key -> host:port of every server that is registered under it, busy ones included)."""
        servers: dict[str, list[str]] = {}
        try:
            _, summary = self._ask([base.TrackerCode.SUMMARY], _ANSWER_S)
        except TimeoutError as error:
            raise ConnectionLostError(
                f"the tracker at {self._address.where} did not answer within {_ANSWER_S:g} s"
            ) from error
        for entry in summary["server_info"]:
            host, port = entry["addr"]
            servers.setdefault(entry["key"].removeprefix("server:"), []).append(f"{host}:{port}")
        return servers

    def check_key(self) -> None:
        """Raise DeviceError if no server has the address's key."""
        servers = self.servers()
        if self._address.key not in servers:
            keys = ", ".join(sorted(servers)) or "no servers at all"
            raise DeviceError(
                f"the tracker at {self._address.where} has no server with the key {self._address.key!r}; it has {keys}",
                hint=f"Start one: romou serve --key-file FILE --tracker {self._address.where}",
                address=str(self._address),
            )

    def request(self, timeout_s: float) -> Address | None:
        """Return a server reserved for one session, with a secret as its key, or None if none was free in time."""
        try:
            _, (host, port, key) = self._ask([base.TrackerCode.REQUEST, self._address.key, "", 1], timeout_s)
        except TimeoutError:
            return None
        return Address(host=host, port=port, key=key)

    def _ask(self, question: list[Any], timeout_s: float) -> Any:
        """Return the tracker's answer. Raise TimeoutError if it takes longer."""
        try:
            if self._socket is None:
                self._socket = greeted(self._address.host, self._address.port, _ANSWER_S)
            self._socket.settimeout(timeout_s)
            base.sendjson(self._socket, question)
            answer = base.recvjson(self._socket)
        except TimeoutError:
            # Closing the connection withdraws a request.
            self.close()
            raise
        except (OSError, ValueError, struct.error) as error:
            self.close()
            # Without an end, TVM's tracker refuses ports above 9198 and takes any free one up to there.
            port = self._address.port
            raise ConnectionLostError(
                f"no TVM RPC tracker answers at {self._address.where} ({error})",
                hint=(
                    f"Start one there: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port {port} --port-end"
                    f" {port + 1}"
                ),
                address=str(self._address),
            ) from error
        if isinstance(answer, list) and answer and answer[0] != base.TrackerCode.SUCCESS:
            raise ConnectionLostError(f"the tracker at {self._address.where} refused: {answer}")
        return answer

    def close(self) -> None:
        """Close the connection to the tracker."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


def greeted(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connection to a tracker after the handshake. Raise OSError (never TimeoutError) on failure."""
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except TimeoutError as error:
        raise OSError(str(error)) from error
    try:
        connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
        if struct.unpack("<i", base.recvall(connection, 4))[0] != base.RPC_TRACKER_MAGIC:
            raise OSError("what answers is no tracker")
    except (OSError, struct.error) as error:
        connection.close()
        raise OSError(str(error)) from error
    return connection
