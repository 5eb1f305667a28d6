"""The connection to a dask scheduler: trust, a check for an answer, and a client with a time limit.

Messages of dask are pickles, so a scheduler or a worker can run any code in the tuner. Libraries that workers build
are loaded here. Both must belong to the user.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import socket
import time
from typing import TYPE_CHECKING

from romou.base.errors import ConnectionLostError, UsageError, first_line
from romou.runtime.rpc.connection import is_loopback, patiently

if TYPE_CHECKING:
    import distributed

_DEFAULT_PORT = 8786
_RETRY_S = 0.2
# A message starts with its length. A server's greeting has some hundred bytes.
_LENGTH_BYTES, _LONGEST_GREETING = 8, 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerAddress:
    """The address of a scheduler: dask://host:port or dask+tls://host:port.

    The certificates for TLS are set in dask's configuration (distributed.comm.tls).
    """

    text: str
    host: str
    port: int
    has_tls: bool

    @classmethod
    def parse(cls, text: str) -> SchedulerAddress:
        """Return the address in a text. UsageError for anything else."""
        parts = (
            re.fullmatch(r"dask(?P<tls>\+tls)?://(?P<host>\[[^\]\s]+\]|[^/\s:]+)(?::(?P<port>\d{1,5}))?", text)
            if isinstance(text, str)
            else None
        )
        if parts is None:
            hint = "For example dask://localhost:8786; with TLS, dask+tls://HOST:PORT."
            raise UsageError(
                f"builders={text!r}: expected dask://HOST:PORT, the address of a dask scheduler", hint=hint
            )
        return cls(
            text=text,
            host=parts["host"].strip("[]"),
            port=int(parts["port"] or _DEFAULT_PORT),
            has_tls=parts["tls"] is not None,
        )

    @property
    def of_dask(self) -> str:
        """The address in dask's form."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.has_tls else 'tcp'}://{host}:{self.port}"


def connect(address: SchedulerAddress, timeout_s: float, *, is_trusted: bool) -> distributed.Client:
    """Connect to a scheduler.

    Raises
    ------
    UsageError
        It is on another machine, reached without TLS, and not trusted. Or dask is not installed.
    ConnectionLostError
        No scheduler answers within `timeout_s`.
    """
    if not (is_trusted or address.has_tls or is_loopback(address.host)):
        hint = (
            "Use dask+tls://HOST:PORT with certificates in dask's configuration, or a tunnel (ssh -L"
            " 8786:localhost:8786 HOST, and dask://localhost:8786). Where nobody else reaches that network:"
            " trust_builders=True, or --trust-builders."
        )
        raise UsageError(
            f"builders={address.text!r}: a dask scheduler can run any code in this process, and {address.host} is"
            " reached without TLS",
            hint=hint,
        )
    try:
        import distributed
    except ImportError:
        raise UsageError(
            f"builders={address.text!r} needs dask, which is not installed", hint="pip install 'romou[dask]'"
        ) from None
    # Romou reports a lost connection with its own error.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    stop_at = time.monotonic() + timeout_s
    if not address.has_tls:
        _hear(address, stop_at)
    try:
        left_s = max(1.0, stop_at - time.monotonic())
        return patiently(
            lambda: distributed.Client(address.of_dask, timeout=left_s, set_as_default=False, name="romou"),
            time.monotonic() + left_s,
        )
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise _no_answer(address, first_line(error)) from None


def _hear(address: SchedulerAddress, stop_at: float) -> None:
    """Wait for a server's greeting. dask's client would wait forever.

    ConnectionLostError if no greeting comes, or if it is not dask's.
    """
    while True:
        greeting, left_s = b"", max(_RETRY_S, stop_at - time.monotonic())
        try:
            with socket.create_connection((address.host, address.port), timeout=left_s) as connection:
                while len(greeting) < _LENGTH_BYTES:
                    connection.settimeout(max(_RETRY_S, stop_at - time.monotonic()))
                    part = connection.recv(_LENGTH_BYTES - len(greeting))
                    if not part:
                        raise _no_answer(address, "the connection is closed at once")
                    greeting += part
            break
        except TimeoutError:
            what = (
                f"it says {greeting!r}"
                if greeting
                else "the port accepts connections and says nothing. With TLS it is dask+tls://"
            )
            raise _no_answer(address, what) from None
        except ConnectionRefusedError as error:
            # The scheduler may just be starting.
            if time.monotonic() + _RETRY_S > stop_at:
                raise _no_answer(address, first_line(error)) from None
            time.sleep(_RETRY_S)
        except OSError as error:
            raise _no_answer(address, first_line(error)) from None
    if int.from_bytes(greeting, "little") > _LONGEST_GREETING:
        raise _no_answer(address, f"another service is there, which says {greeting!r}")


def _no_answer(address: SchedulerAddress, why: str) -> ConnectionLostError:
    return ConnectionLostError(
        f"no dask scheduler answers at {address.text}: {why}",
        hint="`dask scheduler` starts one; a firewall may be in the way.",
    )
