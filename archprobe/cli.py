"""The commands run, show, plot, compare, analyse and devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from archprobe import session
from archprobe.curve import Findings
from archprobe.devices import SERVED, device_kinds, listed_devices, open_device
from archprobe.errors import EXIT_NO_DEVICE, ArchProbeError, DeviceError, UsageError
from archprobe.extras import module
from archprobe.plots.curves import caption
from archprobe.probes import all_probes
from archprobe.probes.probe import Probe
from archprobe.report import original
from archprobe.report.document import CONCLUSIONS, Report, load_report

_PATH = click.Path(path_type=Path)
_RPC = click.option(
    "--rpc",
    default="",
    help="host:port/key of a TVM RPC server with Romou, or tracker://host:port/key: the devices there.",
)


@click.group()
def app() -> None:
    """Measure the properties of a GPU that its vendor does not publish."""


@app.command()
@_RPC
def devices(rpc: str) -> None:
    """List the devices that --device accepts, of every kind, with the numbers that `romou devices` gives them."""
    is_found = False
    for name, kind in device_kinds().items():
        if rpc and name not in SERVED:
            continue
        try:
            listed = listed_devices(kind, rpc=rpc)
            reason = f"no {kind.title} device: {kind.driver_hint}"
        except DeviceError as error:
            if rpc and not is_found:
                raise
            listed, reason = [], error.message
        for index, device in enumerate(listed):
            click.echo(f"{name}:{index}  {device}")
        if not listed:
            click.echo(f"no {name}:0: {reason}", err=True)
        is_found = is_found or bool(listed)
    if not is_found:
        sys.exit(EXIT_NO_DEVICE)


@app.command()
@click.option(
    "--device",
    default="opencl:0",
    show_default=True,
    help="opencl:INDEX, cuda:INDEX or vulkan:INDEX, as `archprobe devices` lists them.",
)
@_RPC
@click.option(
    "--output",
    "-o",
    type=_PATH,
    default="report.json",
    show_default=True,
    help="The report; an unfinished one is continued.",
)
@click.option("--quick", is_flag=True, help="Fewer points and repeats: under a minute.")
@click.option("--only", default="", help="Probes to run, with commas between them.")
@click.option("--fresh", is_flag=True, help="Begin anew, whatever the report holds.")
def run(device: str, rpc: str, output: Path, quick: bool, only: str, fresh: bool) -> None:
    """Measure a device and write a report."""
    module("jsonschema")  # before minutes of measuring
    console = Console(stderr=True)
    chosen = select(only)
    opened = open_device(device, rpc=rpc)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        # Each probe runs twice.
        whole = bar.add_task(opened.facts.name, total=2 * len(chosen))
        started: list[Probe] = []

        def on_progress(probe: Probe, share: float) -> None:
            if share == 0:
                started.append(probe)
            bar.update(whole, completed=len(started) - 1 + share, description=probe.title)

        def on_done(probe: Probe, findings: Findings) -> None:
            bar.console.print(_line(probe, findings), highlight=False, markup=False, soft_wrap=True)

        report = session.run(
            opened, chosen, output, is_quick=quick, is_fresh=fresh, on_progress=on_progress, on_done=on_done
        )
        bar.update(whole, completed=2 * len(chosen))
    seconds = sum(findings.seconds for findings in report.aspects.values())
    measured = sum(aspect != CONCLUSIONS for aspect in report.aspects)
    click.echo(f"{measured} aspects of {report.device_name} in {seconds:.0f} s: {output}")


@app.command()
@click.argument("report", type=_PATH)
@click.option("--reasons", "is_wide", is_flag=True, help="Print how each number was found.")
def show(report: Path, is_wide: bool) -> None:
    """Print a report's answers, the knees of its curves, and what is not known of the device."""
    loaded = load_report(report)
    console = Console()
    console.print(_title(loaded), highlight=False)
    _print_answers(console, loaded.aspects, has_reasons=is_wide)
    for aspect, findings in loaded.aspects.items():
        for curve in findings.curves:
            if curve.knees:
                console.print(f"{aspect}: {caption(curve, findings)}", highlight=False, markup=False)
    unknowns = {} if is_wide else loaded.unknowns()
    if unknowns:
        console.print("Not known of this device:")
    for name, reason in unknowns.items():
        console.print(f"{name}: {reason}", highlight=False, markup=False)


@app.command()
@click.argument("folder", type=_PATH)
@click.option("--output", "-o", type=_PATH, help="Write them as a report, named for the device: pixel4.json.")
def analyse(folder: Path, output: Path | None) -> None:
    """Analyse the CSV files that Microsoft's ArchProbe wrote to FOLDER.

    With its report, print what follows from several numbers too, and list the numbers of it that the curves do not
    support.
    """
    from archprobe.report.convert import converted

    by_aspect = original.analyse(folder)
    console = Console()
    stated = folder / "ArchProbeReport.json"
    aspects: Mapping[str, Findings] = {aspect: Findings(answers=answers) for aspect, answers in by_aspect.items()}
    if stated.is_file():
        aspects = converted(folder, folder.resolve().name).aspects
    _print_answers(console, aspects, has_reasons=True)
    if stated.is_file():
        for doubt in original.doubts(original.read_report(stated), by_aspect):
            console.print(f"doubtful: {doubt}", highlight=False, markup=False)
    if output is not None:
        converted(folder, output.stem).save(output)
        click.echo(f"wrote {output}")


@app.command()
@click.argument("report", type=_PATH)
@click.option(
    "--output", "-o", type=_PATH, default="plots", show_default=True, help="A folder for the pictures and page."
)
def plot(report: Path, output: Path) -> None:
    """Draw every curve with the points found on it and the architecture, and collect all in one HTML page."""
    from archprobe.plots.page import write_page

    click.echo(f"wrote {write_page(load_report(report), output)}")


@app.command()
@click.argument("one", type=_PATH)
@click.argument("other", type=_PATH)
def compare(one: Path, other: Path) -> None:
    """Print the answers of two reports that differ by more than their intervals allow."""
    first, second = load_report(one), load_report(other)
    table = Table("key", one.stem, other.stem, "ratio", "", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    answers, others = first.answers(), second.answers()
    for key in [*answers, *(key for key in others if key not in answers)]:
        a, b = answers.get(key), others.get(key)
        ratio = verdict = ""
        if a and b and not a.is_declined and not b.is_declined:
            if a.low is not None and b.low is not None and a.high is not None and b.high is not None:
                ratio = f"{b.number() / a.number():.3g}" if a.number() else ""
                verdict = "" if a.low <= b.high and b.low <= a.high else "differs"
            else:
                verdict = "" if a.value == b.value else "differs"
        values = ("-" if x is None else "undecided" if x.is_declined else text(x.value) for x in (a, b))
        table.add_row(key, *values, ratio, verdict)
    console = Console()
    console.print(f"{one.stem}: {_title(first)}\n{other.stem}: {_title(second)}", highlight=False)
    console.print(table)


def select(only: str) -> tuple[Probe, ...]:
    """Return all probes, or the probes named in `only`. UsageError for an unknown name."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    probes = {probe.name: probe for probe in all_probes()}
    for name in names:
        if name not in probes:
            raise UsageError(f"there is no probe {name!r}; the probes are {', '.join(probes)}", probe=name)
    return tuple(probe for name, probe in probes.items() if not names or name in names)


def text(value: object) -> str:
    """Format a value: five digits of a number, yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


# The width of a column of names. Longer names are folded.
_NAME_COLUMNS = 26


def _print_answers(console: Console, aspects: Mapping[str, Findings], *, has_reasons: bool) -> None:
    """Print a table with a line for each answer.

    The reasons follow below the table, because a column for them would be one word wide.
    """
    table = Table("key", "value", "from to", "sure", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    reasons = []
    for aspect, findings in aspects.items():
        table.add_row(
            f"[bold]{escape(aspect)}[/]", "" if findings.state == "done" else findings.state.replace("_", " ")
        )
        reasons += [(aspect, findings.reason)] if findings.reason else []
        for key, answer in findings.answers.items():
            interval = "" if answer.low is None or answer.high is None else f"{answer.low:.4g} {answer.high:.4g}"
            # The unit of a word lists the possible words, "yes or no" for instance.
            unit = "" if isinstance(answer.value, (str, bool)) else f" {answer.unit}"
            value, sure = (
                ("undecided", "") if answer.is_declined else (f"{text(answer.value)}{unit}", f"{answer.confidence:.2f}")
            )
            table.add_row(f"  {escape(key)}", escape(value), interval, sure)
            reasons.append((f"{aspect}.{key}", "; ".join((answer.reason, *answer.notes))))
    for column in table.columns:
        column.overflow = "fold"
    # Names of usual length are not wrapped, nor are numbers; long cells of other columns are.
    longest = max((len(f"  {key}") for findings in aspects.values() for key in findings.answers), default=0)
    table.columns[0].min_width, table.columns[-1].min_width = min(longest, _NAME_COLUMNS), len("0.00")
    console.print(table)
    for name, reason in reasons if has_reasons else []:
        console.print(f"{name}: {reason}", highlight=False, markup=False)


def _line(probe: Probe, findings: Findings) -> str:
    if findings.state != "done":
        return f"{probe.title}: {findings.state.replace('_', ' ')}: {findings.reason}"
    parts = [f"{key} {'undecided' if a.is_declined else text(a.value)}" for key, a in findings.answers.items()]
    return f"{probe.title} ({findings.seconds:.1f} s): {', '.join(parts)}"


def _title(report: Report) -> str:
    head = report.header
    state = ("" if head["IsComplete"] else ", unfinished") + (", quick" if head["IsQuick"] else "")
    return f"{report.device_name}, driver {head['Driver']['driver']}, {head['Date']}{state}"


def main() -> None:
    """Run the command line. An error meant for a person is printed without a trace, and its kind sets the exit code."""
    try:
        app()
    except ArchProbeError as error:
        print(f"archprobe: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)
