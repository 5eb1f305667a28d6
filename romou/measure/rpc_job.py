"""What a host-side process does that holds one session with an RPC server: connect, send a candidate, run it there, and end the session.

A call that hangs is ended by killing this process, which cuts the connection; the server notices and ends its side. A server that fails
raises ConnectionLostError here; what the device or the candidate fails at is the candidate's outcome, as in run_job.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from romou.core.errors import ConnectionLostError
from romou.core.outcome import Outcome
from romou.measure import run_job
from romou.measure.fingerprint import split_device
from romou.measure.run_job import RunReply, RunSpec
from romou.rpc import Address, Connection
from romou.rpc import connect as open_connection

# One fused multiply-add after the other: it takes as long as the clock is slow, whatever the memory does.
_CLOCK_KERNEL = """
__kernel void clock_check(__global float *out, int turns) {
  float a = (float)get_global_id(0), b = a + 1.0f, c = a + 2.0f, d = a + 3.0f;
  for (int i = 0; i < turns; i++) { a = mad(a, 0.5f, 1.0f); b = mad(b, 0.5f, 1.0f); c = mad(c, 0.5f, 1.0f); d = mad(d, 0.5f, 1.0f); }
  out[get_global_id(0)] = a + b + c + d;
}
"""
_CLOCK_TURNS, _CLOCK_LOCAL, _CLOCK_GROUPS_PER_UNIT, _CLOCK_LAUNCHES = 4096, 64, 4, 3

_connection: Connection | None = None


def connect(address: Address, patience_s: float, limit_s: float) -> tuple[tuple[dict[str, Any], ...], str]:
    """Open the session of this process; facts of the server's devices and its LLVM triple. Errors are those of `romou.rpc.connect`."""
    global _connection
    disconnect()
    _connection = open_connection(address, patience_s=patience_s, limit_s=limit_s)
    return _connection.devices, _connection.host


def disconnect() -> None:
    """End the session, if there is one."""
    global _connection
    if _connection is not None:
        _connection.close()
        _connection = None


def clock_check(device: str) -> float:
    """Seconds of a fixed piece of arithmetic on the device, the least of a few launches.

    Raises
    ------
    ConnectionLostError
        The connection was cut, or the device is ill: it cannot run the kernel, or computes something else.
    """
    import tvm

    connection, index = _open(), split_device(device)[1]
    work_items = max(1, connection.devices[index]["compute_units"]) * _CLOCK_GROUPS_PER_UNIT * _CLOCK_LOCAL
    with connection.calling("running the reference kernel", ConnectionLostError):
        module = connection.session.get_function("romou.opencl.source_kernel")(index, _CLOCK_KERNEL, "clock_check")
        output = tvm.runtime.empty((work_items,), "float32", connection.session.device("opencl", index))
        launch = module["launch"]
        times = [int(launch("mi", work_items, _CLOCK_LOCAL, output, _CLOCK_TURNS)) for _ in range(_CLOCK_LAUNCHES)]
        found = output.numpy()
    # Each of the four sums goes to 2.
    if not np.allclose(found, 8.0, rtol=1e-3):
        raise ConnectionLostError(f"the device at {connection.server} computes wrong numbers: {found.min():g} to {found.max():g} where all are 8")
    return max(min(times), 1) * 1e-9


def upload(library: str, name: str) -> None:
    """Send a file, which lies under `name` until the session ends. ConnectionLostError, or DeviceError where the server cannot keep it."""
    connection = _open()
    with connection.calling("uploading"):
        connection.session.upload(library, name)


def run(spec: RunSpec, name: str) -> RunReply:
    """Load, run, compare and time the candidate that was uploaded under `name`; see `run_job.check_and_time`.

    Raises
    ------
    ConnectionLostError
        The server died or the connection was cut: of the candidate nothing is known.
    """
    from tvm.error import RPCError

    connection = _open()
    try:
        return run_job.check_and_time(spec, connection.session.device(*split_device(spec.device)), lambda: connection.session.load_module(name))
    except run_job.KernelError as error:
        if isinstance(error.__cause__, RPCError):
            return RunReply(outcome=Outcome.RUN_ERROR, error=str(error))
        raise connection.lost(error, "it had a candidate") from error


def _open() -> Connection:
    if _connection is None:
        raise ConnectionLostError("there is no connection")
    return _connection
