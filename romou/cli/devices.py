"""romou devices: attached devices, the names that --device takes, and the facts of each."""

from __future__ import annotations

from typing import Any

import click

from romou.cli.common import console, debug_option, json_option, print_json, print_problem


@click.command("devices")
@click.option(
    "--facts",
    "named",
    default=None,
    metavar="NAME",
    help="Print what is known of a device, each fact with its unit and source.",
)
@click.option(
    "--compare", "both", nargs=2, default=None, metavar="A B", help="Print the facts in which two devices differ."
)
@click.option("--all", "is_all", is_flag=True, help="Also list the GPUs, phones and SoCs that --device takes by name.")
@json_option
@debug_option
def command(named: str | None, both: tuple[str, str] | None, is_all: bool, is_json: bool) -> None:
    """List the attached devices, and with --all the names of others that --device accepts.

    A device is named by its file (adreno740) or by its driver's name for it ("QUALCOMM Adreno(TM) 740"). Nothing runs
    on the devices, unlike with `romou doctor`. Without any attached device the exit code is 3, except for --facts and
    --compare.

    \b
    Examples:
      romou devices
      romou devices --all
      romou devices --facts adreno740
    """
    from romou.base.errors import UsageError

    if named is not None and both is not None:
        raise UsageError("--facts and --compare are both given; use one")
    if named is not None:
        _print_facts(named, is_json=is_json)
    elif both is not None:
        _compare(*both, is_json=is_json)
    else:
        _list(is_all=is_all, is_json=is_json)


def _print_facts(name: str, *, is_json: bool) -> None:
    from romou.devices.hardware import load_device
    from romou.tools.report.devices import facts_table

    spec = load_device(name)
    nearest = load_device(spec.nearest) if spec.nearest else None
    if is_json:
        print_json(spec.to_dict())
        return
    out = console(is_json=False)
    out.print(facts_table(spec, nearest))
    if nearest is not None:
        out.print(
            f"More was measured of {nearest.title}, the nearest: -facts=nearest in a target takes from it what is not"
            " known.",
            markup=False,
        )


def _compare(one: str, other: str, *, is_json: bool) -> None:
    from romou.devices.hardware import load_device
    from romou.tools.report.devices import comparison_table

    specs = load_device(one), load_device(other)
    if is_json:
        print_json([spec.to_dict() for spec in specs])
    else:
        console(is_json=False).print(comparison_table(*specs))


def _list(*, is_all: bool, is_json: bool) -> None:
    from rich.table import Table

    from romou.base.errors import EXIT_NO_DEVICE
    from romou.devices import attached_devices
    from romou.tools.report.table import print_table

    attached, known = attached_devices(), _known()
    if is_json:
        print_json({"attached": attached, "known": known})
    else:
        out = console(is_json=False)
        keys = ("device", "name", "platform", "type", "driver")
        table = Table(*keys, title="Attached")
        for facts in attached:
            table.add_row(*(str(facts[key]) for key in keys))
        if attached:
            print_table(table, out)
        if is_all:
            names = Table("name", "device", "found in, also a name for --device", title="Known to --device")
            for entry in known:
                names.add_row(entry["name"], entry["title"], ", ".join(entry["found_in"]))
            print_table(names, out)
        else:
            found_in = sum(len(entry["found_in"]) for entry in known)
            text = f"--device also takes the names of {len(known)} GPUs, and of {found_in} phones and SoCs: --all"
            out.print(f"{text} lists them.", markup=False)
    if not attached:
        print_problem("no device is attached", "`romou doctor` says what is missing.")
        raise click.exceptions.Exit(EXIT_NO_DEVICE)


def _known() -> list[dict[str, Any]]:
    """Return each named device once: its title, the kinds of target that take it, and phones and SoCs that have it."""
    from romou.devices.backends import device_backends
    from romou.devices.hardware import known_socs, load_device

    kinds: dict[str, list[str]] = {}
    for backend in device_backends():
        for name in backend.named_devices():
            kinds.setdefault(name, []).append(backend.name)
    found_in: dict[str, list[str]] = {}
    for soc in known_socs():
        found_in.setdefault(soc.gpu, []).extend((soc.name, *soc.phones))
    return [
        {"name": name, "title": load_device(name).title, "kinds": of_name, "found_in": found_in.get(name, [])}
        for name, of_name in kinds.items()
    ]
