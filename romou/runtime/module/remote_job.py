"""Functions of the child process that holds a session for whole models: connect, load, run, time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from romou.base.errors import DeviceError
from romou.devices.backends import backend
from romou.runtime.module.machine import MAIN, Machine
from romou.runtime.rpc import Address, Connection
from romou.runtime.rpc import connect as open_connection

_connection: Connection | None = None
_device, _kind = 0, ""
_Calls = list[tuple[str, list[float]]]
_machines: dict[str, Machine] = {}
# Library and entry -> machine beside the library's first one
_beside: dict[tuple[str, str], Machine] = {}


def connect(address: Address, kind: str, device_name: str | None, wanted: str | None, patience_s: float) -> None:
    """Open the session of this process. `wanted`: the device's name in its driver, or None for any.

    Raise DeviceError if another device answers. Other errors as in `romou.runtime.rpc.connect`.
    """
    global _connection, _device, _kind
    _kind = kind
    _connection = open_connection(address, kind=kind, patience_s=patience_s)
    _device = backend(kind).device_index(device_name, list(_connection.devices))
    name = str(_connection.devices[_device]["name"])
    if wanted is not None and name != wanted:
        raise DeviceError(
            f"the device at {_connection.server} is {name}; the model was tuned on {wanted}",
            address=_connection.server,
        )


def load(library: str, name: str) -> None:
    """Send a model's library, start its virtual machine on the server, and copy its weights to the device."""
    assert _connection is not None
    with _connection.calling("loading a model"):
        _connection.session.upload(library, name)
        module_of = _connection.session.get_function("romou.rpc.module_of")
        module = _connection.session.load_module(name)
        programs = backend(_kind).programs(module, _device, _connection)
        _machines[name] = Machine(module, _connection.device(_device), module_of, programs=programs)
        _machines[name].prepare()


def _machine(name: str, entry: str) -> Machine:
    """Return the machine of a loaded library's entry."""
    if entry == MAIN:
        return _machines[name]
    if (name, entry) not in _beside:
        _beside[name, entry] = _machines[name].beside(entry)
    return _beside[name, entry]


def run(name: str, entry: str, inputs: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
    """See `Machine.run`."""
    assert _connection is not None
    with _connection.calling("running a model"):
        return _machine(name, entry).run(inputs, sizes)


def times(
    name: str, entry: str, inputs: Sequence[np.ndarray], repeat: int, is_wall: bool, sizes: Sequence[int]
) -> list[float]:
    """See `Machine.times`."""
    assert _connection is not None
    with _connection.calling("timing a model"):
        return _machine(name, entry).times(inputs, repeat, is_wall=is_wall, sizes=sizes)


def profile(name: str, entry: str, inputs: Sequence[np.ndarray], repeat: int) -> tuple[str, _Calls]:
    """See `RemoteDevice.profile`."""
    assert _connection is not None
    with _connection.calling("profiling a model"):
        function = _connection.session.get_function("romou.rpc.profile")
        calls = _machine(name, entry).profile_there(function, inputs, repeat)
    return str(_connection.devices[_device]["name"]), calls


def operator_times(
    name: str, function: str, scopes: Sequence[str], arrays: Sequence[np.ndarray], number: int, repeat: int
) -> list[float]:
    """See `RemoteDevice.operator_times`."""
    assert _connection is not None
    with _connection.calling("timing an operator"):
        return _machines[name].timer(function, scopes, arrays)(number, repeat)
