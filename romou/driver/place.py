"""Where candidates are measured and models run: an attached device, or one behind a connection."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from romou.base.errors import DeviceError, UsageError
from romou.base.linking import compiler_for, is_here
from romou.devices.hardware import known_devices
from romou.devices.targets import Target
from romou.runtime.module.remote import RemoteDevice
from romou.runtime.rpc import Address
from romou.tuner.measure import DeviceFingerprint, LocalRunner, MeasureOptions, RpcRunner, Runner


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where candidates are measured and models run.

    named: the target as it was asked for.
    target: the same within the limits of the device.
    device: None where none was asked.
    index, remote: which device of this machine, or one behind a connection.   compile_for: see `LocalBuilder`.
    """

    named: Target
    target: Target
    device: DeviceFingerprint | None = None
    index: int = 0
    remote: RemoteDevice | None = None
    compile_for: str | None = None

    @property
    def name(self) -> str:
        """The device's own; "" without one."""
        return "" if self.device is None else self.device.name


def as_target(target: Target | str | Mapping[str, object]) -> Target:
    """A Target from anything that describes one."""
    return target if isinstance(target, Target) else Target(target)


def allowing_tf32(target: Target) -> Target:
    """`target` whose kernels may round to TF32; UsageError where its backend knows no such thing."""
    if all(option.name != "tf32" for option in target.backend.options):
        raise UsageError(
            f"TF32 is a format of NVIDIA's tensor cores; the target is {str(target)!r}",
            hint="Leave allow_tf32 out, or use target 'cuda'.",
        )
    return target.with_options(tf32="allow")


@contextlib.contextmanager
def timing(target: Target, rpc: str | None) -> Iterator[Callable[[], Place]]:
    """Gives where models are timed, which is looked for once it is asked; what a connection holds is let go of at the
    end.
    """
    address = None if rpc is None else Address.parse(rpc)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def place() -> Place:
            if address is None:
                found = local_place(target)
                check_usable(found)
                return found
            found, _ = stack.enter_context(remote_runner(target, MeasureOptions(), address))
            assert found.remote is not None
            stack.callback(found.remote.release)
            return found

        yield place


def local_place(target: Target) -> Place:
    """Return the attached device as its driver describes it; `check_usable` tells whether it works."""
    index = target.backend.device_index(target.device_name)
    facts = target.backend.facts(index)
    compile_for = None if facts["type"] == "cpu" else f"{target.kind}:{index}"
    device = DeviceFingerprint.of_facts(target.kind, facts)
    return Place(named=target, target=target.limited_to(facts), device=device, index=index, compile_for=compile_for)


@contextlib.contextmanager
def local_runner(place: Place, options: MeasureOptions) -> Iterator[tuple[Place, Runner]]:
    with contextlib.closing(LocalRunner(f"{place.target.kind}:{place.index}", options)) as runner:
        yield place, runner


@contextlib.contextmanager
def remote_runner(target: Target, options: MeasureOptions, address: Address) -> Iterator[tuple[Place, Runner]]:
    with contextlib.closing(RpcRunner(address, options, kind=target.kind, device_name=target.device_name)) as runner:
        facts = runner.facts
        named = for_server(target, facts, runner.host, str(address))
        remote = RemoteDevice(address, named.device_name, kind=target.kind, wanted=str(facts["name"]))
        yield Place(named=named, target=named.limited_to(facts), device=runner.fingerprint(), remote=remote), runner


def for_server(target: Target, facts: Mapping[str, Any], host: str, where: str) -> Target:
    """`target` with the device and the host that the server at `where` has."""
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


def check_usable(place: Place) -> None:
    """Raise DeviceError where the attached device does not compute a tiny kernel correctly."""
    report = place.target.backend.check_device(place.index)
    if not report.is_usable:
        raise DeviceError(f"{report.device} does not work: {report.problem}", hint=report.hint)
