"""The job of a host-side process with one session of an RPC server.

It connects, uploads a candidate, runs it there, and ends the session.

To end a call that hangs, this process is killed. That cuts the connection, and the server ends its side. A server that
fails raises ConnectionLostError here. Failures of the device or the candidate are outcomes, as in run_job.py.
"""

from __future__ import annotations

from typing import Any

from romou.base.errors import ConnectionLostError, DeviceError
from romou.base.foreign import parsed, refused
from romou.base.outcome import Outcome
from romou.base.schema import made_of
from romou.devices.backends import backend
from romou.devices.backends.reference_kernel import ReferenceKernel
from romou.runtime.rpc import Address, Connection
from romou.runtime.rpc import connect as open_connection
from romou.tuner.measure import run_job
from romou.tuner.measure.fingerprint import split_device
from romou.tuner.measure.run_job import RunSpec
from romou.tuner.measure.types import RunReply

_connection: Connection | None = None


def connect(address: Address, kind: str, patience_s: float, limit_s: float) -> tuple[tuple[dict[str, Any], ...], str]:
    """Open the session of this process. Return the facts of the server's devices and its LLVM triple.

    Errors as in `romou.runtime.rpc.connect`.
    """
    global _connection
    disconnect()
    _connection = open_connection(address, kind=kind, patience_s=patience_s, limit_s=limit_s)
    return _connection.devices, _connection.host


def disconnect() -> None:
    """End the session, if there is one."""
    global _connection
    if _connection is not None:
        _connection.close()
        _connection = None


def clock_check(device: str, hold_clock_ms: float) -> float:
    """Return the shortest time of a few launches of the reference kernel on the device, in seconds.

    hold_clock_ms: see `MeasureOptions`

    ConnectionLostError if the connection was cut, or the device cannot run the kernel or computes wrong results.
    """
    connection = _open()
    with connection.calling("running the reference kernel", ConnectionLostError):
        kernel = _reference_kernel(connection, device)
        kernel.hold(hold_clock_ms / 1e3)
        return kernel.time_s()


def _reference_kernel(connection: Connection, device: str) -> ReferenceKernel:
    kind, index = split_device(device)
    try:
        return backend(kind).reference_kernel(connection.session, index, connection.devices[index])
    except DeviceError as error:
        raise ConnectionLostError(f"the device at {connection.server} {error.message}") from error


def sensors(root: str) -> dict[str, dict[str, int]]:
    """Return clocks and temperatures of the server's machine, as its files below `root` have them.

    Both are empty if they cannot be read.
    """
    connection = _open()
    with connection.calling("reading clocks and temperatures"):
        text = str(connection.session.get_function("romou.rpc.sensors")(root))
    with refused(DeviceError, f"the RPC server at {connection.server} has a wrong answer to romou.rpc.sensors"):
        return made_of(dict[str, dict[str, int]], parsed(text))


def upload(library: str, name: str) -> None:
    """Send a file, which is kept under `name` until the session ends.

    ConnectionLostError if the connection was cut. DeviceError if the server cannot keep the file.
    """
    connection = _open()
    with connection.calling("uploading"):
        connection.session.upload(library, name)


def run(spec: RunSpec, name: str) -> RunReply:
    """Load, run, compare and time the candidate that was uploaded under `name` (`run_job.check_and_time`).

    ConnectionLostError if the server died or the connection was cut. The candidate then has no result.
    """
    from tvm.error import RPCError

    connection, (kind, index) = _open(), split_device(spec.device)
    try:
        clock = None
        if spec.hold_clock_s:
            with connection.calling("running the reference kernel", ConnectionLostError):
                clock = _reference_kernel(connection, spec.device)
        makes_windows = connection.devices[index].get("makes_windows", False)
        window = connection.session.get_function(backend(kind).function("window")) if makes_windows else None
        return run_job.check_and_time(
            spec, connection.device(index), lambda: connection.session.load_module(name), window, clock
        )
    except run_job.KernelError as error:
        if isinstance(error.__cause__, RPCError):
            return RunReply(outcome=Outcome.RUN_ERROR, error=str(error))
        raise connection.lost(error, "it had a candidate") from error


def _open() -> Connection:
    if _connection is None:
        raise ConnectionLostError("there is no connection")
    return _connection
