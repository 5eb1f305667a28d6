"""romou phone: the runtime of a phone over adb, and a recording of any phone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from romou.cli.click_options import options_of
from romou.cli.common import console, debug_option, is_quiet, json_option, key_option, print_json
from romou.driver.options import PhoneRecordOptions

_F = TypeVar("_F", bound=Callable[..., Any])


def _serial_option(function: _F) -> _F:
    return click.option(
        "--serial", metavar="NUMBER", help="Which phone, where several are attached; `adb devices` lists them."
    )(function)


@click.group("phone")
def command() -> None:
    """Build the runtime of a phone, push it, start, stop and look at its RPC server, over adb.

    All take --json and --debug.

    \b
    romou phone build --out FOLDER     builds the runtime
    romou phone push FOLDER
    romou phone start --key-file FILE               prints the address for tuning
    romou phone record --rpc ADDRESS -o FILE        times layers on any device at an address
    """


@command.command("build")
@click.option(
    "-o",
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the runtime; an earlier one is replaced.",
)
@click.option(
    "--target",
    type=click.Choice(["android-arm64", "linux-arm64", "host"]),
    default="android-arm64",
    show_default=True,
    help="android-arm64 takes the NDK in ANDROID_NDK_HOME, linux-arm64 Debian's cross compiler, host g++.",
)
@json_option
@debug_option
def build(folder: Path, target: str, is_json: bool) -> None:
    """Build the runtime of a phone: RPC server, TVM's runtime, OpenCL and Vulkan, libromou.so and romou_bench.

    The sources are in the installed packages. What is compiled is kept in ~/.cache/romou/phone_runtime. It takes bash
    and a C++ compiler for the target, and a minute or two the first time.

    \b
    Examples:
      romou phone build --out phone_runtime
      romou phone build --target linux-arm64 --out arm64_runtime
    """
    from romou.base.shell import run_script
    from romou.runtime.deploy.phone import BUILD_SCRIPT, runtime_facts

    run_script(BUILD_SCRIPT, "--target", target, "--out", str(folder), is_quiet=is_quiet())
    if is_json:
        print_json(runtime_facts(folder) | {"folder": str(folder)})


@command.command("push")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_serial_option
@json_option
@debug_option
def push(folder: Path, serial: str | None, is_json: bool) -> None:
    """Copy the runtime in FOLDER to the phone."""
    from romou.runtime.deploy.phone import FOLDER, Phone

    phone = Phone(serial)
    phone.push(folder)
    if is_json:
        print_json({"serial": phone.serial, "folder": FOLDER})
    else:
        console(is_json=False).print(f"the runtime is on {phone.serial}, in {FOLDER}", markup=False)


@command.command("start")
@key_option
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    default=9090,
    show_default=True,
    help="On both sides; a number of its own for each phone.",
)
@click.option("--tracker", metavar="HOST:PORT", help="Report to this tracker, which runs on this machine.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="End a session that is silent for so many seconds; 0: never.",
)
@_serial_option
@json_option
@debug_option
def start(key: str, port: int, tracker: str | None, timeout_s: float, serial: str | None, is_json: bool) -> None:
    """Start the RPC server and forward a port of this machine to it.

    The server runs all code that it receives. Only this machine reaches it.
    """
    from romou.runtime.deploy.phone import Phone

    phone = Phone(serial)
    address = phone.start(key=key, port=port, tracker=tracker, timeout_s=timeout_s)
    if is_json:
        print_json({"serial": phone.serial, "rpc": address})
    else:
        console(is_json=False).print(
            f"the RPC server is running on {phone.serial}; tune with --rpc {address}", markup=False
        )


@command.command("warm")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_serial_option
@json_option
@debug_option
def warm(folder: Path, serial: str | None, is_json: bool) -> None:
    """Run the exported model in FOLDER once on the phone and put its compiled programs there.

    Phones of the same kind and driver can use the programs.
    """
    from romou.runtime.deploy.phone import Phone

    phone = Phone(serial)
    printed = phone.warm(folder)
    if is_json:
        print_json(
            {
                "serial": phone.serial,
                "folder": str(folder),
                "programs": len(list(folder.glob("*/programs/*.program"))),
                "printed": printed,
            }
        )
    else:
        console(is_json=False).print(printed.rstrip(), markup=False)


@command.command("record")
@options_of(PhoneRecordOptions, "rpc", "minutes")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The recording; one that was begun is continued.",
)
@options_of(PhoneRecordOptions, "target", "archprobe", "seed")
@json_option
@debug_option
def record(output: Path, is_json: bool, **options: Any) -> None:
    """Time 30 configs each of 20 layers of mobile networks, and keep them in one file.

    The device's clock is held up and checked around each config. The file can be offered to Romou: it judges the
    estimate, and its best configs become tuned schedules.
    """
    from romou.driver.phone.recording import record_phone

    out = console(is_json=is_json)
    recording = record_phone(output, PhoneRecordOptions(**options), say=lambda line: out.print(line, markup=False))
    timed = [trial for trial in recording.trials if trial.record.time_s is not None]
    numbers = {
        "file": str(output),
        "device": recording.origin.device["name"],
        "configs": len(recording.trials),
        "timed": len(timed),
        "steady": sum(recording.is_steady(trial) for trial in timed),
        "operators": len({trial.record.task_key for trial in timed}),
    }
    if is_json:
        print_json(numbers)
    else:
        text = "{file}: {configs} configs of {operators} operators on {device}, {timed} timed, {steady} at full clock"
        out.print(text.format(**numbers), markup=False)


@command.command("stop")
@_serial_option
@json_option
@debug_option
def stop(serial: str | None, is_json: bool) -> None:
    """Stop the RPC server and the forwarding of ports."""
    from romou.runtime.deploy.phone import Phone

    phone = Phone(serial)
    was_running = phone.stop()
    if is_json:
        print_json({"serial": phone.serial, "was_running": was_running})
    else:
        console(is_json=False).print(
            f"the RPC server on {phone.serial} {'is stopped' if was_running else 'was not running'}", markup=False
        )


@command.command("status")
@_serial_option
@json_option
@debug_option
def status(serial: str | None, is_json: bool) -> None:
    """Show the phone, its drivers, whether the RPC server is running, and forwarded ports.

    Exit code 3 without a usable driver.
    """
    from romou.base.errors import EXIT_NO_DEVICE
    from romou.runtime.deploy.phone import Phone

    phone = Phone(serial).status()
    if is_json:
        print_json(dataclasses.asdict(phone))
    else:
        out = console(is_json=False)
        lines = {
            "phone": f"{phone.model}, {phone.soc}, Android {phone.android} ({phone.serial})",
            "runtime": "not pushed"
            if phone.runtime is None
            else ", ".join(f"{name} {version}" for name, version in phone.runtime.items()),
            **{
                d.title: f"none: {d.failure}" if d.failure else f"{', '.join(d.devices)} through {d.library}"
                for d in phone.drivers
            },
            "server": "not running" if phone.server_pid is None else f"running, process {phone.server_pid}",
            "ports": "; ".join(phone.forwarded) or "none forwarded",
        }
        for name, text in lines.items():
            out.print(f"{name + ':':9}{text}", markup=False)
    if all(driver.failure for driver in phone.drivers):
        raise click.exceptions.Exit(EXIT_NO_DEVICE)
