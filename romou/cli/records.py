"""romou records: measured configs in the format of Kernel Tuner, written and read."""

from __future__ import annotations

from pathlib import Path

import click

from romou.cli.common import console, debug_option, json_option, print_json


@click.group("records")
def command() -> None:
    """Export and import records in T4, the format of Kernel Tuner. Both take --json and --debug."""


@command.command("export")
@click.argument("work_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@json_option
@debug_option
def export(work_dir: Path, folder: Path, is_json: bool) -> None:
    """Write the records of WORK_DIR to FOLDER: a file for each task, device and version."""
    from romou.tuner.records import RecordStore, export_t4

    with RecordStore(work_dir) as store:
        written = export_t4(store, folder)
        count = len(store)
    if is_json:
        print_json({"records": count, "files": [str(path) for path in written]})
    else:
        console(is_json=False).print(f"{count} records in {len(written)} files in {folder}", markup=False)


@command.command("import")
@click.argument("work_dir", type=click.Path(file_okay=False, path_type=Path))
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--device",
    default="opencl:0",
    show_default=True,
    help="The attached device that they were measured on; files of another one are refused.",
)
@click.option(
    "--any-device", is_flag=True, help="Take files of any device and version; they do not count as measured elsewhere."
)
@json_option
@debug_option
def import_(work_dir: Path, files: tuple[Path, ...], device: str, any_device: bool, is_json: bool) -> None:
    """Add the records of FILES to those of WORK_DIR; what is there already stays as it is."""
    from romou.tuner.measure.fingerprint import device_fingerprint
    from romou.tuner.records import Origin, RecordStore, import_t4

    origin = None if any_device else Origin.here(device_fingerprint(device).to_dict())
    found = [record for path in files for record in import_t4(path, origin=origin)]
    with RecordStore(work_dir) as store:
        added = store.add_missing(found)
    if is_json:
        print_json({"read": len(found), "added": added})
    else:
        console(is_json=False).print(
            f"{added} records added to {work_dir}, {len(found) - added} were there", markup=False
        )
