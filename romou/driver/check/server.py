"""The check of `romou doctor --rpc`: a server's drivers with their known bugs, memory, clock, and kernels."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from romou.base.errors import DeviceError, RomouError, UsageError
from romou.base.finding import Finding
from romou.base.outcome import Outcome
from romou.compiler.typical import typical_tasks
from romou.devices.backends import device_backends
from romou.devices.backends.base import Backend
from romou.devices.hardware import known_devices
from romou.devices.hardware.quirks import compiler_version, quirks_of
from romou.devices.targets import Target
from romou.driver.site import for_server
from romou.runtime.rpc import Address, Connection, connect
from romou.tuner.measure import Candidate, LocalBuilder, MeasureOptions, RpcRunner

# Kernels are checked, not timed.
_MEASURE = MeasureOptions(repeat=1, min_repeat_ms=0.0)
# Longer than any of the checks takes. The server then ends the session.
_SESSION_S = 120.0
_CLOCK_ROUNDS = 20
_MIB = 1 << 20


def check_server(address: Address) -> Iterator[Finding]:
    """Yield findings on the server at an address and on its devices.

    Every failure is a finding. Kernels run in a process on the server, so a kernel that hangs ends with a finding too.
    """
    name = "server"
    for backend in device_backends():
        if not backend.is_served:
            continue
        try:
            connection = connect(address, kind=backend.name, limit_s=_SESSION_S)
        except RomouError as error:
            yield Finding(name=name, is_ok=False, detail=error.message, hint=error.hint)
            return
        name = backend.name
        try:
            with contextlib.closing(connection):
                yield from _answers(backend, connection)
            if connection.devices:
                yield _kernels(address, backend)
        except RomouError as error:
            yield Finding(name=name, is_ok=False, detail=error.message, hint=error.hint)


def has_usable_device(findings: list[Finding]) -> bool:
    """Return whether kernels are right on a device of the server."""
    return any(finding.is_ok and finding.name.endswith(":0 kernels") for finding in findings)


def _answers(backend: Backend, connection: Connection) -> Iterator[Finding]:
    """Yield the findings of one session."""
    with connection.calling("asking for the driver's library"):
        library, failure = (
            str(connection.session.get_function(backend.function(name))()) for name in ("library", "failure")
        )
    if not connection.devices:
        detail = f"{connection.server}: {failure or f'no {backend.title} device'}"
        yield Finding(name=backend.name, is_ok=None if backend.is_optional else False, detail=detail)
        return
    yield Finding(
        name=backend.name, is_ok=True, detail=f"{connection.server} ({connection.host}): drivers through {library}"
    )
    yield _manifest(backend, library, connection.host)
    for index, facts in enumerate(connection.devices):
        yield from _told(f"{backend.name}:{index}", facts)
    yield _memory(backend, connection)
    yield _clock(backend, connection)


def _manifest(backend: Backend, library: str, host: str) -> Finding:
    line = backend.manifest_line(library)
    detail = (
        f"apps find {library} without a line in their manifest"
        if line is None
        else f"an app's manifest needs, inside <application>: {line}"
    )
    return Finding(
        name=f"{backend.name} manifest",
        is_ok=None,
        detail=detail if host.endswith("android") else f"on Android, {detail}",
    )


def _told(device: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    compiler = compiler_version(facts)
    driver = f"driver {facts['driver']}{f', compiler {compiler}' if compiler else ''}"
    yield Finding(
        name=device, is_ok=True, detail=f"{facts['name']} ({facts['platform']}, {facts.get('version', '')}, {driver})"
    )
    yield Finding(name=f"{device} extensions", is_ok=None, detail=" ".join(str(facts["extensions"]).split()) or "none")
    yield from avoided_faults(device, facts)


def avoided_faults(device: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each known fault of a device's driver."""
    for quirk in quirks_of(facts):
        yield Finding(name=f"{device} {quirk.name}", is_ok=None, detail=quirk.describe(), is_avoided_fault=True)


def _memory(backend: Backend, connection: Connection) -> Finding:
    with connection.calling("asking for free memory"):
        memory = json.loads(str(connection.session.get_function("romou.rpc.memory")()))
    facts = connection.devices[0]
    detail = (
        f"{memory['available_bytes'] // _MIB} of {memory['total_bytes'] // _MIB} MiB are free on the machine;"
        f" {backend.name}:0 has {facts['global_mem_bytes'] // _MIB} MiB, {facts['max_alloc_bytes'] // _MIB} MiB at most"
        " in a buffer"
    )
    return Finding(name=f"{backend.name} memory", is_ok=None, detail=detail)


def _clock(backend: Backend, connection: Connection) -> Finding:
    name = f"{backend.name}:0 clock"
    with connection.calling("running the reference kernel"):
        try:
            kernel = backend.reference_kernel(connection.session, 0, connection.devices[0])
            times = [kernel.time_s() for _ in range(_CLOCK_ROUNDS)]
        except DeviceError as error:
            return Finding(name=name, is_ok=False, detail=f"the device {error.message}")
    ratio = statistics.median(times[-_CLOCK_ROUNDS // 4 :]) / min(times)
    is_steady = ratio <= _MEASURE.clock_limit
    detail = (
        f"the reference kernel takes {min(times) * 1e3:.3g} ms; after {_CLOCK_ROUNDS} rounds {ratio:.2f} times that"
    )
    hint = (
        None if is_steady else "It throttles, or others use it: let it cool down, keep it on its charger, close apps."
    )
    return Finding(name=name, is_ok=True if is_steady else None, detail=detail, hint=hint)


def _kernels(address: Address, backend: Backend) -> Finding:
    """Compile a kernel of every operator family here, run it there, and compare it with the CPU's."""
    name = f"{backend.name}:0 kernels"
    with contextlib.closing(RpcRunner(address, _MEASURE, kind=backend.name)) as runner:
        unnamed = Target(backend.name)
        try:
            named = for_server(unnamed, runner.facts, runner.host, str(address))
        except UsageError:
            # There is no device file. The server's limits hold in any case, and right numbers need no facts.
            named = for_server(unnamed.with_options(device=known_devices()[0]), runner.facts, runner.host, str(address))
        target = named.limited_to(runner.facts)
        tasks = {task.family: task for task in reversed(typical_tasks(target))}
        with contextlib.closing(LocalBuilder(target, _MEASURE)) as builder:
            built = builder.build(
                [
                    Candidate(task=task, config=task.default_config(target), trial=i)
                    for i, task in enumerate(tasks.values())
                ]
            )
            results = {
                family: next(iter(runner.run([candidate])), None) if candidate.library else candidate
                for family, candidate in zip(tasks, built, strict=True)
            }
    wrong = {family: result for family, result in results.items() if result is None or result.outcome is not Outcome.OK}
    if not wrong:
        return Finding(name=name, is_ok=True, detail=f"right for every operator family: {', '.join(sorted(results))}")
    texts = "; ".join(
        f"{family}: {'no answer' if result is None else f'{result.outcome.value}: {result.error}'}"
        for family, result in sorted(wrong.items())
    )
    hint = (
        "`-without=KNOB:CHOICE` in a target leaves out what a driver gets wrong; quirks.json is where such a driver is"
        " noted."
    )
    return Finding(
        name=name,
        is_ok=False,
        detail=f"{len(results) - len(wrong)} of {len(results)} families are right; {texts}",
        hint=hint,
    )
