"""The serving process: TVM's RPC protocol, one session at a time, each in a process that can be killed.

Started as `python -m romou.runtime.rpc.serving LISTENER HEARTBEAT FOLDER`, with its options as JSON on stdin, because a
command line must not contain the key. serve.py watches the process. TVM's server does not survive a session that
crashes, does not end one that hangs, and waits forever for a silent client.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hmac
import json
import logging
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from typing import Any, NoReturn

from tvm.rpc import base
from tvm.rpc import server as tvm_server
from tvm.support.utils import TempDirectory

from romou.base.interpreter import forget_import_path
from romou.runtime.rpc.handshakes import HANDSHAKE_S, Guest, Guests
from romou.runtime.rpc.serve import ServeOptions
from romou.runtime.rpc.tracker import greeted

logger = logging.getLogger("romou.serve")

_TICK_S = 1.0
# Time for a session to end after its client is gone, before it is killed.
_GRACE_S = 2.0
# A secret that was taken from the tracker and not used for this long is replaced.
_UNUSED_S = 8.0
_POLLRDHUP = getattr(select, "POLLRDHUP", 0x2000)
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(kw_only=True)
class _Session:
    """A running session. Its process uses `connection`, this process only polls whether the client is there."""

    pid: int
    connection: socket.socket
    client: str
    folder: str
    ends_at: float
    abandoned_at: float | None = None

    def is_abandoned(self, now: float) -> bool:
        """Return whether the client left and the session had time to notice."""
        poll = select.poll()
        poll.register(self.connection, _POLLRDHUP)
        if self.abandoned_at is None and poll.poll(0):
            self.abandoned_at = now
        return self.abandoned_at is not None and now - self.abandoned_at > _GRACE_S


class _Files(TempDirectory):
    """The files of a session. Names come from the client and stay in the folder, as on a phone: "../../x" is x."""

    def relpath(self, name: str) -> str:
        """Return the path of a file, see TVM's method."""
        last = os.path.basename(name)
        if last in ("", ".", ".."):
            raise ValueError(f"{name!r} is no name of a file")
        return str(super().relpath(last))


class Registration:
    """The registration of this server at a tracker, which offers it while it is free, with a new secret per session.

    If the tracker is gone, every tick tries again.
    """

    def __init__(self, options: ServeOptions, port: int) -> None:
        self._options = options
        self._port = port
        self._socket: socket.socket | None = None
        self._unused_since: float | None = None
        self._is_silent = False
        # None while the server is busy, or while it is not registered.
        self.secret: str | None = None

    def offer(self) -> None:
        """Offer this server at the tracker, with a new secret if the old one was taken but not used."""
        assert self._options.tracker is not None
        try:
            if self._socket is None:
                self._connect(self._options.tracker)
            if self.secret is None or self._is_unused(time.monotonic()):
                secret = base.random_key(self._options.key)
                self._ask([base.TrackerCode.PUT, self._options.key, (self._port, secret), None])
                self.secret, self._unused_since = secret, None
        except (OSError, ValueError, struct.error) as error:
            if not self._is_silent:
                logger.warning("no tracker answers at %s (%s); trying on", self._options.tracker, error)
            self._is_silent = True
            if self._socket is not None:
                self._socket.close()
            self._socket = self.secret = None

    def take(self) -> None:
        """Invalidate the secret when a session begins."""
        self.secret = None

    def _connect(self, tracker: str) -> None:
        host, _, port = tracker.rpartition(":")
        self._socket = greeted(host, int(port), HANDSHAKE_S)
        self._ask([base.TrackerCode.UPDATE_INFO, {"key": f"server:{self._options.key}", "addr": (None, self._port)}])
        self.secret, self._is_silent = None, False
        logger.info("registered at tracker://%s/KEY, through which clients reach this server", tracker)

    def _is_unused(self, now: float) -> bool:
        if self.secret in self._ask([base.TrackerCode.GET_PENDING_MATCHKEYS]):
            self._unused_since = None
        elif self._unused_since is None:
            self._unused_since = now
        return self._unused_since is not None and now - self._unused_since > _UNUSED_S

    def _ask(self, question: list[Any]) -> Any:
        assert self._socket is not None
        self._socket.settimeout(HANDSHAKE_S)
        base.sendjson(self._socket, question)
        return base.recvjson(self._socket)


class Serving:
    """The main loop: accept a client, hand it to a new process, and end that process in time."""

    def __init__(self, options: ServeOptions, listener: socket.socket, heartbeat: int, folder: str) -> None:
        self._options = options
        self._guests = Guests(listener)
        self._heartbeat = heartbeat
        self._folder = folder
        self._session: _Session | None = None
        self._registration = Registration(options, listener.getsockname()[1]) if options.tracker else None

    def run(self) -> NoReturn:
        """Serve until the watchdog is gone."""
        while True:
            os.write(self._heartbeat, b".")
            if self._session is not None:
                self._attend(self._session)
                continue
            if self._registration is not None:
                self._registration.offer()
            guest = self._guests.next(_TICK_S)
            if guest is None:
                continue
            try:
                limit_s = self._greet(guest)
            except (OSError, ValueError) as error:
                logger.info("%s is no client: %s", guest.client, error)
                guest.connection.close()
            else:
                self._begin(guest.connection, guest.client, limit_s)

    def _greet(self, guest: Guest) -> float:
        """Answer a greeting, and return the session's time limit. Raise ValueError or OSError to refuse the client."""
        # The answer is short and fits into an empty socket. If it does not, the client does not read.
        guest.connection.settimeout(HANDSHAKE_S)
        key, *rest = guest.greeting()
        wanted = self._options.key if self._registration is None else self._registration.secret
        if wanted is None or not hmac.compare_digest(key.encode(), f"client:{wanted}".encode()):
            # A tracker gives each session a key of its own.
            is_ours = hmac.compare_digest(key.encode(), f"client:{self._options.key}".encode())
            code = base.RPC_CODE_DUPLICATE if is_ours else base.RPC_CODE_MISMATCH
            guest.connection.sendall(struct.pack("<i", code))
            raise ValueError("it has to ask the tracker" if is_ours else "its key is another one")
        asked = [float(option.removeprefix("-timeout=")) for option in rest if option.startswith("-timeout=")]
        name = f"server:{self._options.key}".encode()
        guest.connection.sendall(struct.pack("<ii", base.RPC_CODE_SUCCESS, len(name)) + name)
        return min([self._options.limit_s, *asked])

    def _begin(self, connection: socket.socket, client: str, limit_s: float) -> None:
        connection.settimeout(None)
        folder = tempfile.mkdtemp(prefix="session-", dir=self._folder)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_a_session(connection, folder, parent)
        if self._registration is not None:
            self._registration.take()
        self._session = _Session(
            pid=pid, connection=connection, client=client, folder=folder, ends_at=time.monotonic() + limit_s
        )

    def _be_a_session(self, connection: socket.socket, folder: str, parent: int) -> NoReturn:
        """Serve in the new process, and exit without cleaning up, because drivers crash in destructors."""
        code = 1
        try:
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            self._guests.close()
            os.close(self._heartbeat)
            os.chdir(folder)
            if os.getppid() == parent:
                tvm_server._serve_loop(connection, None, _Files(os.path.join(folder, "files")))
                code = 0
        except Exception:
            logger.exception("the session failed")
        finally:
            os._exit(code)

    def _attend(self, session: _Session) -> None:
        """Wait a moment for the session's end, or kill it."""
        now = time.monotonic()
        if now > session.ends_at:
            self._kill(session, "took too long")
        elif session.is_abandoned(now):
            self._kill(session, "went on without its client")
        left_s = session.ends_at - now
        pid, status = _wait(session.pid, min(_TICK_S, left_s) if left_s > 0 else _TICK_S)
        if pid == 0:
            return
        if os.WIFSIGNALED(status):
            logger.info("the session of %s ended by signal %d", session.client, os.WTERMSIG(status))
        session.connection.close()
        shutil.rmtree(session.folder, ignore_errors=True)
        self._session = None

    @staticmethod
    def _kill(session: _Session, why: str) -> None:
        logger.info("the session of %s %s and is killed", session.client, why)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session.pid, signal.SIGKILL)


def _wait(pid: int, seconds: float) -> tuple[int, int]:
    """Wait for a process as `os.waitpid` does, or return (0, 0) if it still runs after `seconds`."""
    ended = os.pidfd_open(pid)
    try:
        if not select.select([ended], [], [], seconds)[0]:
            return 0, 0
    finally:
        os.close(ended)
    return os.waitpid(pid, 0)


def main(listener: str, heartbeat: str, folder: str) -> None:
    """Run the serving process. The arguments come from the command line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    tvm_server.logger.setLevel(logging.WARNING)
    forget_import_path()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        Serving(ServeOptions(**json.load(sys.stdin)), socket.socket(fileno=int(listener)), int(heartbeat), folder).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
