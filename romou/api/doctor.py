"""romou.doctor: a machine examined: packages, compilers, drivers and devices, with a hint for each problem."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from romou.base import environment
from romou.base.errors import RomouError
from romou.base.finding import Finding
from romou.base.headline import Headline
from romou.base.linking import linker
from romou.driver.check.server import avoided_faults, check_server, has_usable_device
from romou.runtime.rpc import Address


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(Headline):
    """The findings on a machine, `findings`.

    devices: facts and abilities of each attached device. Empty for a server.
    has_usable_device: whether a device computed right results.
    """

    findings: tuple[Finding, ...]
    devices: tuple[dict[str, Any], ...]
    has_usable_device: bool

    @property
    def problems(self) -> list[Finding]:
        """The findings that something is broken."""
        return [finding for finding in self.findings if finding.is_ok is False]

    @property
    def headline(self) -> str:
        """All findings in a sentence."""
        bad, limited = len(self.problems), sum(bool(finding.limits) for finding in self.findings)
        if not self.has_usable_device:
            return "No usable device."
        if bad:
            return f"{bad} thing{'s' if bad > 1 else ''} to fix."
        if limited:
            return f"{limited} device{'s are' if limited > 1 else ' is'} limited. The rest is well."
        return "All is well."


def doctor(rpc: str | None = None) -> Diagnosis:
    """Examine Python packages, compilers and drivers, and run a tiny kernel on every device in a process of its own.

    Parameters
    ----------
    rpc
        Address of a server, whose devices are examined instead: the driver's library, versions, extensions, known
        faults, free memory, the clock, and a kernel of every operator family, compiled here and run there.

    Raises
    ------
    UsageError
        `rpc` is no address.
    """
    if rpc is not None:
        findings = list(check_server(Address.parse(rpc)))
        return Diagnosis(findings=tuple(findings), devices=(), has_usable_device=has_usable_device(findings))
    devices, reports = _devices()
    findings = [
        Finding(name="python", is_ok=True, detail=f"{sys.version.split()[0]} at {sys.executable}"),
        _found("packages", _packages),
        _found("linker", lambda: " ".join(linker())),
        *_environment(),
        _vendors(),
        *_driver_of_pypi(),
        *devices,
    ]
    has_device = any(report["is_usable"] for report in reports)
    return Diagnosis(findings=tuple(findings), devices=tuple(reports), has_usable_device=has_device)


def _packages() -> str:
    from romou.base.compat import check_versions

    check_versions()
    import tvm
    import tvm_ffi

    return f"apache-tvm {tvm.__version__}, apache-tvm-ffi {tvm_ffi.__version__}"


def _found(name: str, describe: Callable[[], str]) -> Finding:
    """Return what a check says: the text that it returns, or its error."""
    try:
        return Finding(name=name, is_ok=True, detail=describe())
    except RomouError as error:
        return Finding(name=name, is_ok=False, detail=error.message, hint=error.hint)


def _vendors() -> Finding:
    chosen = environment.variable("OCL_ICD_VENDORS")
    folder, origin = (
        (Path(chosen), "OCL_ICD_VENDORS")
        if chosen
        else (Path(environment.VARIABLES["OCL_ICD_VENDORS"].default), "the usual place")
    )
    # ocl-icd also takes the path of one .icd file or of a platform's library here.
    entries = [folder.name] if folder.is_file() else sorted(p.name for p in folder.glob("*.icd"))
    if entries:
        return Finding(name="vendors", is_ok=True, detail=f"{folder} ({origin}): {', '.join(entries)}")
    # Some loaders (Android, macOS) need no such folder, so this is no failure.
    return Finding(name="vendors", is_ok=None, detail=f"{folder} ({origin}) lists no OpenCL platform", hint=None)


def _driver_of_pypi() -> list[Finding]:
    """Yield a finding if Intel's driver from PyPI is installed and is no device."""
    import tvm

    from tvm_patches import pypi_driver

    refused = tvm.get_global_func("romou.opencl.failure", allow_missing=True)
    lines = str(refused()).splitlines() if refused is not None else []
    problems = [
        pypi_driver.problem(),
        *(line.strip() for line in lines if any(library in line for library in pypi_driver.libraries())),
    ]
    hint = f"Install all of it: pip install --force-reinstall {' '.join(pypi_driver.WHEELS)}"
    return [Finding(name="cpu driver", is_ok=False, detail=problem, hint=hint) for problem in problems if problem]


def _environment() -> list[Finding]:
    settings = environment.from_environment()
    findings = [Finding(name="environment", is_ok=None, detail=text) for text in settings.unknown]
    if settings.opencl_device:
        findings.append(
            Finding(
                name="environment",
                is_ok=True,
                detail=f"ROMOU_OPENCL_DEVICE={settings.opencl_device}: devices that match it come first",
            )
        )
    return findings


def _devices() -> tuple[list[Finding], list[dict[str, Any]]]:
    """Return the findings on all devices, and a report of each device."""
    from romou.devices.backends import device_backends

    findings, reports = [], []
    for backend in device_backends():
        try:
            count = len(backend.list_devices())
        except RomouError as error:
            findings.append(Finding(name=backend.name, is_ok=False, detail=error.message, hint=error.hint))
            continue
        if count == 0:
            reason = backend.diagnose()
            findings.append(
                Finding(
                    name=backend.name,
                    is_ok=None if backend.is_optional else False,
                    detail=reason.message,
                    hint=reason.hint,
                )
            )
        elif (toolchain := backend.toolchain()) is not None:
            findings.append(_found(*toolchain))
        for index in range(count):
            report = backend.check_device(index)
            reports.append({"backend": backend.name, **report.to_dict()})
            findings.append(_device_finding(backend.name, report))
            findings += avoided_faults(f"{backend.name}:{index}", backend.facts(index))
    return findings, reports


def _device_finding(kind: str, report: Any) -> Finding:
    name = f"{kind}:{report.index}"
    who = (
        f"{report.device} ({report.platform}, driver"
        f" {report.driver}{f', from {report.origin}' if report.origin else ''})"
    )
    if not report.is_usable:
        return Finding(name=name, is_ok=False, detail=f"{who}: {report.problem}", hint=report.hint)
    aspects = (("images", report.has_images), ("fp16", report.has_fp16), ("captured runs", report.has_recorded_runs))
    extras = ", ".join(f"{label} {'yes' if has else 'no'}" for label, has in aspects)
    return Finding(
        name=name,
        is_ok=True,
        detail=f"{who}: a tiny kernel ran and its result is right; {extras}"
        + "".join(f"\n{note}" for note in report.notes),
        limits=report.limits,
    )
