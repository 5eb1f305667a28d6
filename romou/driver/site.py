"""The device that candidates and models run on, attached or behind a connection."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from romou.base.device_lock import alone_on
from romou.base.errors import UsageError
from romou.base.linking import compiler_for, is_here
from romou.devices.hardware import known_devices
from romou.devices.targets import Target
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.rpc import Address
from romou.tuner.measure import DeviceFingerprint, LocalRunner, MeasureOptions, RpcRunner, Runner


@dataclass(frozen=True, kw_only=True)
class TimingSite:
    """A device that measures candidates and runs models, attached or behind a connection.

    named: the target that the user named.
    target: the target within the limits of the device.
    device: None if no device was looked at.
    index: index of the attached device.
    remote: the device behind a connection. None for an attached one.
    compile_for: the device whose driver compiles programs ahead, see `LocalBuilder`.
    stands_in_for: name of the target's device if `device` is another one, else "".
    """

    named: Target
    target: Target
    device: DeviceFingerprint | None = None
    index: int = 0
    remote: RemoteDevice | None = None
    compile_for: str | None = None
    stands_in_for: str = ""

    @property
    def name(self) -> str:
        """The device's name. "" if no device was looked at."""
        return "" if self.device is None else self.device.name

    @property
    def has_own_cores(self) -> bool:
        """True if kernels and the compiler run on different cores."""
        return self.device is not None and not self.device.is_host_cpu

    @property
    def times_on_host(self) -> bool:
        """True if kernels run on the processor of this machine."""
        return self.remote is None and self.device is not None and self.device.is_host_cpu

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that keeps other processes of this user from timing on an attached device.

        A server behind a connection has one session at a time.
        """
        if self.device is None or self.remote is not None:
            return contextlib.nullcontext()
        backend = self.target.backend
        facts = backend.facts(self.index)
        return alone_on(facts["name"], backend.identity(facts))

    def check_usable(self) -> None:
        """Raise DeviceError unless the attached device computes a tiny kernel correctly."""
        self.target.backend.check_usable(self.index)

    def release(self) -> None:
        """Close the connection to the device, if there is one."""
        if self.remote is not None:
            self.remote.release()


@contextlib.contextmanager
def timing(target: Target, rpc: str | None, index: int | None = None) -> Iterator[Callable[[], TimingSite]]:
    """Yield a function that looks for the device on its first call. Connections are closed at the end.

    index: number of the attached device. None: by the target.
    """
    address = None if rpc is None else Address.parse(rpc)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def site() -> TimingSite:
            if address is None:
                attached = local_site(target, index)
                attached.check_usable()
                return attached
            remote, _ = stack.enter_context(remote_runner(target, MeasureOptions(), address))
            stack.callback(remote.release)
            return remote

        yield site


def local_site(target: Target, index: int | None = None) -> TimingSite:
    """Return the attached device as its driver describes it. `TimingSite.check_usable` finds out whether it works.

    index: its number. None: by the target.
    """
    index = target.backend.device_index(target.device_name) if index is None else index
    facts = target.backend.facts(index)
    compile_for = None if facts["type"] == "cpu" else f"{target.kind}:{index}"
    device = DeviceFingerprint.of_facts(target.kind, facts)
    limited = target.limited_to(facts)
    return TimingSite(
        named=target,
        target=limited,
        device=device,
        index=index,
        compile_for=compile_for,
        stands_in_for=target.missing_on(facts),
    )


@contextlib.contextmanager
def local_runner(site: TimingSite, options: MeasureOptions) -> Iterator[tuple[TimingSite, Runner]]:
    """Yield an attached device and a runner of candidates on it."""
    with contextlib.closing(LocalRunner(f"{site.target.kind}:{site.index}", options)) as runner:
        yield site, runner


@contextlib.contextmanager
def remote_runner(target: Target, options: MeasureOptions, address: Address) -> Iterator[tuple[TimingSite, RpcRunner]]:
    """Yield a device behind a connection and a runner of candidates on it."""
    with contextlib.closing(RpcRunner(address, options, kind=target.kind, device_name=target.device_name)) as runner:
        facts = runner.facts
        named = for_server(target, facts, runner.host, str(address))
        remote = RemoteDevice(address, named.device_name, kind=target.kind, wanted=str(facts["name"]))
        limited, device = named.limited_to(facts), runner.fingerprint()
        missing = named.missing_on(facts)
        yield TimingSite(named=named, target=limited, device=device, remote=remote, stands_in_for=missing), runner


def for_server(target: Target, facts: Mapping[str, Any], host: str, where: str) -> Target:
    """Return `target` with the device and the host of the server at `where`."""
    if target.device_name is None:
        called = target.backend.device_of(facts)
        if facts["type"] != "cpu" and called is None:
            raise UsageError(
                f"the target has to name the device at {where}, which is {facts['name']}: {target.kind} -device=NAME;"
                f" known: {', '.join(known_devices())}",
                hint=f"`archprobe run --rpc {where} -o NAME.json` measures one that is not known.",
            )
        target = target.with_options(device=called or "host")
    if target.host is not None and target.host.partition("-")[0] != host.partition("-")[0]:
        raise UsageError(
            f"the target's host is {target.host}, but the machine at {where} is {host}", hint="Leave -host= out."
        )
    if not is_here(host):
        target = Target(target, host=target.host or host)
        # Before anything is built: without it, every candidate would fail alike.
        compiler_for(str(target.host))
    return target
