"""romou devices: what is attached, and which -device= names there are."""

from __future__ import annotations

import click

from romou.cli.common import console, debug_option, json_option, print_json


@click.command("devices")
@json_option
@debug_option
def command(is_json: bool) -> None:
    """List the attached devices and the device names that a target knows.

    Nothing is run on the devices; `romou doctor` does that. Without any attached device the exit code is 3.
    """
    from rich.table import Table

    from romou.backends import device_backends
    from romou.core.errors import EXIT_NO_DEVICE
    from romou.hardware import load_device
    from romou.report.table import print_table

    attached = [{"backend": found.name, "index": i, **facts} for found in device_backends() for i, facts in enumerate(found.list_devices())]
    targets = [(name, f"{found.name} -device={name}") for found in device_backends() for name in found.named_devices()]
    known = [{"name": name, "title": load_device(name).title, "target": target} for name, target in targets]
    if is_json:
        print_json({"attached": attached, "known": known})
    else:
        out = console(is_json=False)
        table = Table("device", "name", "platform", "type", "driver", title="Attached")
        for facts in attached:
            table.add_row(f"{facts['backend']}:{facts['index']}", str(facts["name"]), str(facts["platform"]), str(facts["type"]), str(facts["driver"]))
        if attached:
            print_table(table, out)
        names = Table("target", "device", title="Known to -device=")
        for entry in known:
            names.add_row(entry["target"], entry["title"])
        print_table(names, out)
    if not attached:
        click.echo("romou: no device is attached; `romou doctor` says what is missing.", err=True)
        raise click.exceptions.Exit(EXIT_NO_DEVICE)
