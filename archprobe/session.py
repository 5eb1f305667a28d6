"""Runs all probes twice, so that the second run confirms the first.

The report is saved after each probe, and the next call continues an interrupted one.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from archprobe.confirm import confirmed, unconfirmed
from archprobe.curve import Findings, not_applicable
from archprobe.devices.base import Device
from archprobe.errors import ArchProbeError, ConnectionLostError, ReportError
from archprobe.meter import Meter
from archprobe.probes.arithmetic import full_grid, multiply_add
from archprobe.probes.probe import Probe
from archprobe.report.document import Report, load_report, new_report

# on_progress(probe, share of it that is done)
Progress = Callable[[Probe, float], None]


def run(
    device: Device,
    probes: Sequence[Probe],
    path: Path,
    *,
    is_quick: bool = False,
    is_fresh: bool = False,
    on_progress: Progress = lambda probe, share: None,
    on_done: Callable[[Probe, Findings], None] = lambda probe, findings: None,
) -> Report:
    """Run `probes` and save the report at `path` after each one.

    Probes that an unfinished report at `path` already holds are not run again. A finished report is replaced, as is any
    report with `is_fresh`. Nothing is concluded before all second runs: until then answers are hints.

    ReportError if the unfinished report belongs to another device or driver, or to another kind of run.
    ConnectionLostError if the connection to the device is lost. The results up to then are saved, and the next run
    continues there.
    """
    report = _started(device, path, is_quick=is_quick, is_fresh=is_fresh)
    warm_up(device)
    for run_number in (1, 2):
        for probe in probes:
            earlier = report.aspects.get(probe.aspect)
            if earlier is not None and not _needs(probe, earlier, run_number):
                continue
            on_progress(probe, 0.0)
            meter = _meter(device, report, is_quick=is_quick, on_progress=functools.partial(on_progress, probe))
            findings = run_probe(probe, meter)
            if earlier is not None:
                findings = confirmed(earlier, findings)
            elif probe.is_repeated:
                findings = unconfirmed(findings)
            report = report.with_aspect(probe.aspect, findings)
            report.save(path)
            if earlier is None or claims(earlier) != claims(findings):
                on_done(probe, findings)
    report = report.finished()
    report.save(path)
    return report


def _needs(probe: Probe, earlier: Findings, run_number: int) -> bool:
    """Return whether a probe's answers still need their second run.

    It comes after all first runs, so that one disturbance of the machine does not affect both.
    """
    return run_number > earlier.runs and probe.is_repeated and earlier.state == "done"


def claims(findings: Findings) -> set[str]:
    return {key for key, answer in findings.answers.items() if not answer.is_declined}


def run_probe(probe: Probe, meter: Meter) -> Findings:
    """Run one probe. If it cannot run on this device, or fails, the findings say so."""
    facts = meter.device.facts
    reason = probe.not_on_cpu if facts.is_cpu else ""
    if not reason and probe.is_for_opencl and facts.api != "opencl":
        reason = "images and constant memory are probed through OpenCL alone"
    if not reason and probe.needs_images and not facts.has_images:
        reason = "the device has no images"
    if reason:
        return dataclasses.replace(not_applicable(reason), method=probe.method)
    start = time.monotonic()
    try:
        findings = probe.measure(meter)
    except ConnectionLostError:
        # The error says nothing about the device: the probe is left for the next run.
        raise
    except ArchProbeError as error:
        findings = Findings(state="failed", reason=error.message)
    return dataclasses.replace(findings, method=probe.method, seconds=time.monotonic() - start)


def warm_up(device: Device, seconds: float = 0.3) -> None:
    """Keep the device busy until its clock has risen."""
    meter = Meter(device=device)
    groups, size = full_grid(meter)
    work, _ = multiply_add(meter, groups=groups, group_size=size)
    end, iterations = time.monotonic() + seconds, 16
    while time.monotonic() < end:
        iterations *= 2 if work(iterations) < 0.02 else 1


def _meter(device: Device, report: Report, *, is_quick: bool, on_progress: Callable[[float], None]) -> Meter:
    meter = Meter(device=device, is_quick=is_quick, earlier_answers=report.answers(), on_progress=on_progress)
    return dataclasses.replace(meter, least_s=3e-4, tolerance=0.01, budget_s=1.5, max_repeats=4) if is_quick else meter


def _started(device: Device, path: Path, *, is_quick: bool, is_fresh: bool) -> Report:
    fresh = new_report(device.facts, is_quick=is_quick)
    if is_fresh or not path.exists():
        return fresh
    old = load_report(path)
    if old.header["IsComplete"]:
        return fresh
    for key in ("name", "driver", "platform"):
        was, now = old.header["Driver"][key], fresh.header["Driver"][key]
        if was != now:
            raise ReportError(
                f"{path} was begun on another device: its {key} is {was!r}, here {now!r}. Choose another file, or start"
                " afresh with --fresh."
            )
    if old.header["IsQuick"] != is_quick:
        was, now = ("full", "quick") if is_quick else ("quick", "full")
        raise ReportError(
            f"{path} was begun as a {was} run, this is a {now} one. Choose another file, or start afresh with --fresh."
        )
    return old
