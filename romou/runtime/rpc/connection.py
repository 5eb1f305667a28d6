"""A session with an RPC server, opened only if both sides have the same versions.

Calls of a session cannot be interrupted. If a server may hang, use a session in a `ChildProcess`, which can be killed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from romou.base.errors import CompatError, ConnectionLostError, DeviceError, UsageError, first_line
from romou.base.foreign import parsed, refused
from romou.base.schema import made_of
from romou.devices.backends import DEFAULT_KIND, backend
from romou.runtime.rpc.address import Address

PATIENCE_S = 20.0
# Seconds without an answer after which a user is told of the wait.
TELL_S = 2.0

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An open session.

    session: TVM's `RPCSession`.
    server: host:port, which names the device in messages.
    kind: kind of the devices in use.
    devices: facts of the devices, as `Backend.list_devices` returns them.
    host: LLVM triple of the server's machine.
    """

    session: Any = field(repr=False)
    server: str
    kind: str
    devices: tuple[dict[str, Any], ...]
    host: str

    def device(self, index: int) -> Any:
        """Return TVM's handle of a device on the server."""
        return self.session.device(backend(self.kind).device_type, index)

    @contextlib.contextmanager
    def calling(self, what: str, kind: type[DeviceError] = DeviceError) -> Iterator[None]:
        """Raise errors of the server in a block as `kind`, all others as ConnectionLostError.

        what: description of the call for the message.
        """
        from tvm.error import RPCError

        try:
            yield
        except RPCError as error:
            raise kind(f"{self.server}: {what} failed: {str(error).strip()[:800]}", address=self.server) from error
        except RuntimeError as error:
            raise self.lost(error, what) from error

    def lost(self, error: Exception, what: str) -> ConnectionLostError:
        """Return an error that a connection was lost during a call.

        what: description of the call for the message.
        """
        return ConnectionLostError(
            f"the connection to {self.server} was cut while {what}: {first_line(error)[:300]}", address=self.server
        )

    def close(self) -> None:
        """End the session, so that the server can begin the next one. Never raises."""
        with contextlib.suppress(Exception):
            self.session._sess["CloseRPCConnection"]()


def connect(
    address: Address, *, kind: str = DEFAULT_KIND, patience_s: float = PATIENCE_S, limit_s: float | None = None
) -> Connection:
    """Open a session.

    address: server, or tracker. A tracker's first free server is used.
    kind: requested device kind.
    patience_s: time to wait for the server until the session is open. A server has one session at a time.
    limit_s: the server ends the session after this time in any case.

    Raise UsageError if devices of this kind are not served. Raise ConnectionLostError if no server answers in time,
    which another attempt may fix. Raise DeviceError if the key is wrong, the server has no Romou, or a tracker has no
    server with the key. Raise CompatError if the server has another version of TVM or Romou.
    """
    if not backend(kind).is_served:
        raise UsageError(
            f"{kind} devices are not served over RPC",
            hint="Leave the address out, or name another kind of target.",
            kind=kind,
        )
    end = time.monotonic() + patience_s
    if address.is_tracker:
        from romou.runtime.rpc.tracker import Tracker

        with contextlib.closing(Tracker(address)) as tracker:
            tracker.check_key()
            free_server = tracker.request(patience_s)
        if free_server is None:
            raise ConnectionLostError(f"no device of {address} was free within {patience_s:g} s", address=str(address))
        address = free_server
    try:
        return _checked(_open(address, end, limit_s), address.where, kind, end)
    except concurrent.futures.TimeoutError as error:
        raise ConnectionLostError(
            f"the RPC server at {address.where} did not answer within {patience_s:g} s; it serves one session at a time"
            " and may have another",
            address=address.where,
            waited_s=patience_s,
        ) from error


def _open(address: Address, end: float, limit_s: float | None) -> Any:
    from tvm import rpc

    # The key from a tracker ends in a secret that is valid for one session.
    secret = address.key.partition(":")[2]
    where = address.where
    try:
        return patiently(
            lambda: rpc.connect(address.host, address.port, address.key, session_timeout=limit_s or 0), end
        )
    except RuntimeError as error:
        if "matches key" in str(error) and secret:
            raise ConnectionLostError(
                f"the RPC server at {where} is no longer free: it withdrew what the tracker offered", address=where
            ) from error
        if "matches key" in str(error):
            raise DeviceError(
                f"the RPC server at {where} does not serve the key that was given",
                hint=f"Write the one that it was started with: {where}/KEY.",
                address=where,
            ) from error
        if "already have key" in str(error):
            raise DeviceError(
                f"the RPC server at {where} is registered at a tracker, and takes only clients that the tracker sends",
                hint="Write tracker://HOST:PORT/KEY, with the address of its --tracker.",
                address=where,
            ) from error
        raise ConnectionLostError(
            f"no TVM RPC server answers at {where} ({first_line(error)})",
            hint=(
                f"Start one there: romou serve --port {address.port} --key-file FILE. If a tracker listens there, write"
                f" tracker://{where}/KEY."
            ),
            address=where,
        ) from error


def _checked(session: Any, where: str, kind: str, end: float) -> Connection:
    """Return the connection after a check that the server can run kernels of this version."""
    from tvm_patches.compat import romou_versions

    def ask(name: str, kind: type[_T]) -> _T:
        text = patiently(lambda: str(session.get_function(name)()), end)
        with refused(DeviceError, f"the RPC server at {where} has a wrong answer to {name}", address=where):
            return made_of(kind, parsed(text))

    served = backend(kind)

    ours = romou_versions()
    try:
        theirs = ask("romou.rpc.versions", dict[str, str])
        # Nothing else is requested from a server of another version.
        is_same = {name: theirs.get(name) for name in ours} == ours
        devices = ask(served.function("devices"), list[dict[str, Any]]) if is_same else []
    except AttributeError as error:
        raise DeviceError(
            f"the RPC server at {where} lacks Romou's {served.title} runtime ({first_line(error)})",
            hint="Install this version of romou there.",
            address=where,
        ) from error
    except RuntimeError as error:
        raise ConnectionLostError(
            f"the connection to {where} was cut before it told its versions ({first_line(error)})", address=where
        ) from error
    connection = Connection(
        session=session, server=where, kind=kind, devices=tuple(devices), host=str(theirs.get("host", ""))
    )
    differing = [
        f"{name} {theirs.get(name, 'of an unknown version')} (here {version})"
        for name, version in ours.items()
        if theirs.get(name) != version
    ]
    if differing:
        connection.close()
        raise CompatError(
            f"the RPC server at {where} has {', '.join(differing)}; TVM compares no versions, and other pairs crash",
            hint="Install the same versions on both sides.",
            address=where,
            versions=theirs,
        )
    return connection


def patiently(call: Callable[[], _T], end: float) -> _T:
    """Return or raise the result of `call`. Raise TimeoutError if it takes until `end` on `time.monotonic`.

    The call runs in a thread that is not joined, because it cannot be ended while a server is busy.
    """
    answer: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(max(0.0, end - time.monotonic()))


@contextlib.contextmanager
def telling(tell: Callable[[], None], after_s: float) -> Iterator[None]:
    """Call `tell` in a thread if the block takes longer than `after_s`."""
    timer = threading.Timer(after_s, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)
