"""Handshakes of TVM's RPC protocol with many clients at once, so that a slow client does not delay the others."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from tvm.rpc import base

logger = logging.getLogger("romou.serve")

# Time limit for the client's part of a handshake.
HANDSHAKE_S = 5.0
# Limit of waiting connections. A new one displaces the oldest with an incomplete greeting.
_MOST_GUESTS = 64
_HEAD_BYTES = 8
_LONGEST_KEY_BYTES = 1023


@dataclass(kw_only=True, eq=False)
class Guest:
    """A client that has connected, and the bytes of its greeting so far: magic, length, text."""

    connection: socket.socket
    client: str
    until: float
    received: bytearray = field(default_factory=bytearray)

    def missing_bytes(self) -> int:
        """Return the number of missing bytes of the greeting. Raise ValueError for another protocol."""
        if len(self.received) < _HEAD_BYTES:
            return _HEAD_BYTES - len(self.received)
        magic, length = struct.unpack("<ii", self.received[:_HEAD_BYTES])
        if magic != base.RPC_MAGIC:
            raise ValueError("it speaks another protocol")
        if not 0 < length <= _LONGEST_KEY_BYTES:
            raise ValueError(f"its key has {length} bytes")
        return _HEAD_BYTES + int(length) - len(self.received)

    def read(self) -> None:
        """Read available bytes. Raise OSError or ValueError if the client is gone or speaks another protocol."""
        while missing := self.missing_bytes():
            try:
                data = self.connection.recv(missing)
            except BlockingIOError:
                return
            if not data:
                raise OSError("it hung up")
            self.received += data

    def greeting(self) -> list[str]:
        """Return the words of the greeting, the key first."""
        return self.received[_HEAD_BYTES:].decode().split() or [""]


class Guests:
    """Clients that have connected to `listener` and are not served yet."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._waiting: list[Guest] = []

    def next(self, seconds: float) -> Guest | None:
        """Remove and return the first client with a complete greeting, or None after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            self._accept()
            for guest in list(self._waiting):
                try:
                    guest.read()
                    is_whole = guest.missing_bytes() == 0
                    if not is_whole and time.monotonic() > guest.until:
                        raise TimeoutError(f"it said too little in {HANDSHAKE_S:g} s")
                except (OSError, ValueError) as error:
                    self._dismiss(guest, str(error))
                    continue
                if is_whole:
                    self._waiting.remove(guest)
                    return guest
            now = time.monotonic()
            if now >= end:
                return None
            until = min([end, *(guest.until for guest in self._waiting)])
            select.select(
                [self._listener, *(guest.connection for guest in self._waiting)], [], [], max(0.0, until - now)
            )

    def close(self) -> None:
        """Close this process's copies of the connections after a fork. The clients do not notice."""
        self._listener.close()
        for guest in self._waiting:
            guest.connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                connection, client = self._listener.accept()
                connection.setblocking(False)
                if len(self._waiting) == _MOST_GUESTS:
                    slowest = next((guest for guest in self._waiting if guest.missing_bytes()), self._waiting[0])
                    self._dismiss(slowest, "too many others came")
                self._waiting.append(
                    Guest(connection=connection, client=client[0], until=time.monotonic() + HANDSHAKE_S)
                )

    def _dismiss(self, guest: Guest, why: str) -> None:
        logger.info("%s is no client: %s", guest.client, why)
        guest.connection.close()
        self._waiting.remove(guest)
