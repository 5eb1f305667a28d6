"""The watchdog of `romou serve`: holds the port, and restarts the serving process (serving.py) if it dies or hangs.

The watchdog uses neither TVM nor a driver, so no candidate can crash it. Connections made during a restart wait instead
of being refused, because the watchdog keeps the port open.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import NoReturn

from romou.base.errors import DeviceError, UsageError
from romou.base.folders import HeldFolder
from romou.base.interpreter import child_environment, python_command
from romou.runtime.rpc.connection import is_loopback
from romou.runtime.rpc.keys import checked

# Time limit for the serving process to load TVM.
_START_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STABLE_S = 0.2, 10.0, 30.0


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `romou serve`.

    host, port: address to listen on. Port 0: any free port.
    key: key that clients have to send.
    tracker: host:port of a tracker to register with, or None.
    limit_s: limit of a session. Clients may request less for a candidate.
    hang_s: the serving process reports every second, and is killed after this time without a report.
    """

    host: str = "127.0.0.1"
    port: int = 9090
    key: str = field(repr=False)
    tracker: str | None = None
    limit_s: float = 3600.0
    hang_s: float = 30.0

    def __post_init__(self) -> None:
        checked(self.key)
        if self.tracker is not None and not self.tracker.rpartition(":")[2].isdecimal():
            raise UsageError(f"tracker {self.tracker!r}: expected host:port, for example 192.168.1.10:9190")


def warning(options: ServeOptions) -> str | None:
    """Return the warning for an address that other machines can reach, or None."""
    if is_loopback(options.host):
        return None
    return (
        f"WARNING: {options.host} is open to other machines. An RPC server runs what it is sent, and the key travels"
        " unencrypted: everyone who reaches the port controls this account. Use a closed network, or the default"
        " 127.0.0.1 with `ssh -L` or `adb forward`."
    )


def serve(
    options: ServeOptions,
    say: Callable[[str], None],
    on_listening: Callable[[str, int], None] = lambda host, port: None,
) -> NoReturn:
    """Serve until a signal ends the process.

    say: called with each line of status.
    on_listening: called once with host and port.

    Raise DeviceError if the address cannot be listened on.
    """
    listener = _listener(options)
    address = listener.getsockname()
    if (complaint := warning(options)) is not None:
        say(complaint)
    on_listening(address[0], address[1])
    say(f"serving on {address[0]}:{address[1]}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    pause_s = _FIRST_PAUSE_S
    while True:
        started = time.monotonic()
        say(f"{_one_life(listener, options)}; starting it again")
        pause_s = _FIRST_PAUSE_S if time.monotonic() - started > _STABLE_S else min(2 * pause_s, _LONGEST_PAUSE_S)
        time.sleep(pause_s)


def _stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _listener(options: ServeOptions) -> socket.socket:
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these options. A client that lost its network must not hold the device forever.
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        ):
            listener.setsockopt(level, option, value)
        listener.bind((options.host, options.port))
        listener.listen(128)
    except OSError as error:
        raise DeviceError(
            f"cannot listen on {options.host}:{options.port}: {error}", hint="Give another --host or --port."
        ) from error
    return listener


def _one_life(listener: socket.socket, options: ServeOptions) -> str:
    """Start the serving process, watch it, and return how it ended. Files of its sessions are removed."""
    ours, theirs = os.pipe()
    with HeldFolder("serve") as folder:
        process = subprocess.Popen(
            python_command("romou.runtime.rpc.serving", str(listener.fileno()), str(theirs), folder),
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            pass_fds=[listener.fileno(), theirs],
            env=child_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
            start_new_session=True,
        )
        os.close(theirs)
        assert process.stdin is not None
        # Not in the command line, which every user can read.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(asdict(options)).encode())
        try:
            return _watch(process, ours, options.hang_s)
        finally:
            os.close(ours)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _watch(process: subprocess.Popen[bytes], heartbeat: int, hang_s: float) -> str:
    """Return how the process ended, once it has exited or has been silent for too long."""
    patience_s = _START_S
    while select.select([heartbeat], [], [], patience_s)[0]:
        if not os.read(heartbeat, 4096):
            code = process.wait()
            return f"the serving process {f'was killed by signal {-code}' if code < 0 else f'exited with code {code}'}"
        patience_s = hang_s
    return f"the serving process hung for {patience_s:g} s and was killed"
