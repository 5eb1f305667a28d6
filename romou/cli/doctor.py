"""romou doctor: a check of packages, compilers, drivers and devices, with a hint for each problem."""

from __future__ import annotations

import dataclasses
from itertools import groupby
from typing import TYPE_CHECKING

import click

from romou.base.errors import EXIT_FAILED, EXIT_NO_DEVICE
from romou.cli.click_options import rpc_option
from romou.cli.common import console, debug_option, is_verbose, json_option, print_json

if TYPE_CHECKING:
    from romou.api.doctor import Diagnosis


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
    import romou

    found = romou.doctor(rpc)
    code = EXIT_NO_DEVICE if not found.has_usable_device else EXIT_FAILED if found.problems else 0
    if is_json:
        print_json({**dataclasses.asdict(found), "exit_code": code})
    else:
        _print(found)
    raise click.exceptions.Exit(code)


def _print(found: Diagnosis) -> None:
    from rich.markup import escape

    out = console(is_json=False)
    marks = {True: "[green]ok  [/]", False: "[red]BAD [/]", None: "[yellow]note[/]"}
    faults = [finding for finding in found.findings if finding.is_avoided_fault and not is_verbose()]
    for finding in found.findings:
        if finding in faults:
            continue
        mark = "[yellow]limited[/]" if finding.limits else marks[finding.is_ok]
        out.print(f"{mark} {finding.name}: {escape(finding.detail)}")
        for limit in finding.limits:
            out.print(f"     left out: {escape(limit)}")
        if finding.hint and finding.is_ok is not True:
            out.print(f"     hint: {escape(finding.hint)}")
    for device, of_device in groupby(faults, lambda finding: finding.name.split()[0]):
        count = len(list(of_device))
        out.print(f"{marks[None]} {device}: known faults of its driver that kernels avoid: {count}; -v lists them")
    out.print(found.headline)
