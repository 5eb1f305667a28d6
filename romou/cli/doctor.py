"""romou doctor: a check of packages, compilers, drivers and devices, with a hint for each problem."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from romou.base import environment
from romou.base.errors import EXIT_FAILED, EXIT_NO_DEVICE, RomouError
from romou.base.finding import Finding
from romou.base.linking import linker
from romou.cli.click_options import rpc_option
from romou.cli.common import console, debug_option, json_option, print_json
from romou.devices.hardware.quirks import quirks_of


def _python() -> Finding:
    return Finding(name="python", is_ok=True, detail=f"{sys.version.split()[0]} at {sys.executable}")


def _packages() -> Finding:
    from romou.base.compat import check_versions

    try:
        check_versions()
    except RomouError as error:
        return Finding(name="packages", is_ok=False, detail=error.message, hint=error.hint)
    import tvm
    import tvm_ffi

    return Finding(
        name="packages", is_ok=True, detail=f"apache-tvm {tvm.__version__}, apache-tvm-ffi {tvm_ffi.__version__}"
    )


def _linker() -> Finding:
    try:
        return Finding(name="linker", is_ok=True, detail=" ".join(linker()))
    except RomouError as error:
        return Finding(name="linker", is_ok=False, detail=error.message, hint=error.hint)


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
            findings.append(_toolchain(*toolchain))
        for index in range(count):
            report = backend.check_device(index)
            reports.append({"backend": backend.name, **report.to_dict()})
            findings.append(_device_finding(backend.name, report))
            name = f"{backend.name}:{index}"
            findings += [
                Finding(name=f"{name} {quirk.name}", is_ok=None, detail=quirk.describe(), short=quirk.workaround)
                for quirk in quirks_of(backend.facts(index))
            ]
    return findings, reports


def _toolchain(name: str, describe: Callable[[], str]) -> Finding:
    try:
        return Finding(name=name, is_ok=True, detail=describe())
    except RomouError as error:
        return Finding(name=name, is_ok=False, detail=error.message, hint=error.hint)


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


@click.command("doctor")
@rpc_option
@json_option
@debug_option
def command(rpc: str | None, is_json: bool) -> None:
    """Check Python packages, compilers and drivers, and run a tiny kernel on every device.

    With --rpc it checks the server's devices instead: the driver's library and the line of an app's manifest for it,
    versions, extensions, known quirks, free memory, the clock, and a kernel of every operator family, compiled here and
    run there.

    \b
    Exit codes: 0 all is well, 1 something is broken, 3 no usable device.

    \b
    Examples:
      romou doctor
      romou doctor --rpc 127.0.0.1:9090/phone
    """
    if rpc is None:
        findings = [_python(), _packages(), _linker(), *_environment(), _vendors()]
        devices, reports = _devices()
        findings += [*_driver_of_pypi(), *devices]
        has_device = any(report["is_usable"] for report in reports)
    else:
        from romou.driver.check.server import check_server, has_usable_device
        from romou.runtime.rpc import Address

        findings, reports = list(check_server(Address.parse(rpc))), []
        has_device = has_usable_device(findings)
    failed = [f for f in findings if f.is_ok is False]
    code = EXIT_NO_DEVICE if not has_device else EXIT_FAILED if failed else 0
    if is_json:
        print_json(
            {
                "findings": [dataclasses.asdict(f) for f in findings],
                "devices": reports,
                "has_usable_device": has_device,
                "exit_code": code,
            }
        )
    else:
        _print(findings, has_device)
    raise click.exceptions.Exit(code)


def _print(findings: list[Finding], has_device: bool) -> None:
    from rich.markup import escape

    out = console(is_json=False)
    marks = {True: "[green]ok  [/]", False: "[red]BAD [/]", None: "[yellow]note[/]"}
    for finding in findings:
        mark = "[yellow]limited[/]" if finding.limits else marks[finding.is_ok]
        out.print(f"{mark} {finding.name}: {escape(finding.short or finding.detail)}")
        for limit in finding.limits:
            out.print(f"     left out: {escape(limit)}")
        if finding.hint and finding.is_ok is not True:
            out.print(f"     hint: {escape(finding.hint)}")
    bad = sum(f.is_ok is False for f in findings)
    if not has_device:
        out.print("No usable device.")
    elif bad:
        out.print(f"{bad} thing{'s' if bad > 1 else ''} to fix.")
    elif limited := sum(bool(f.limits) for f in findings):
        out.print(f"{limited} device{'s are' if limited > 1 else ' is'} limited. The rest is well.")
    else:
        out.print("All is well.")
