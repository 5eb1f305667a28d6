"""romou records: measured configs in the format of Kernel Tuner, written and read."""

from __future__ import annotations

from pathlib import Path

import click

from romou.base.errors import UsageError
from romou.cli.common import console, debug_option, json_option, print_json


@click.group("records", invoke_without_command=True)
@click.option(
    "--contribute",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the best config of each kernel to FILE, a file of tuned schedules that can be offered to Romou.",
)
@click.option(
    "--work-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --contribute: the folder of the records. [default: all of the user's cache]",
)
@click.option(
    "--recording",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --contribute: a file of `romou phone record` in place of records.",
)
@click.option(
    "--import-autotvm",
    "autotvm",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Make recorded spaces of FILE, a log of AutoTVM on an Adreno GPU.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --import-autotvm: the folder for the spaces. [default: beside FILE]",
)
@click.option("--gpu", help="With --import-autotvm: the GPU of the log, as adreno660.")
@click.pass_context
def command(
    context: click.Context,
    contribute: Path | None,
    work_dir: Path | None,
    recording: Path | None,
    autotvm: Path | None,
    out: Path | None,
    gpu: str | None,
) -> None:
    """Export and import records in T4, the format of Kernel Tuner, offer tuned schedules, or read logs of AutoTVM.

    The commands take --json and --debug.

    \b
    Examples:
      romou records export records t4
      romou records --contribute best.jsonl --work-dir records
    """
    if context.invoked_subcommand is not None:
        for name, value in (("--contribute", contribute), ("--import-autotvm", autotvm)):
            if value is not None:
                raise UsageError(f"{name} is no option of romou records {context.invoked_subcommand}; leave one out")
    elif contribute is not None and autotvm is not None:
        raise UsageError("--contribute writes schedules and --import-autotvm reads a log; give one of them")
    elif autotvm is not None:
        _import_autotvm(autotvm, out, gpu or "")
    elif contribute is None:
        click.echo(context.get_help())
    else:
        from romou.driver.search.contribution import contribute_schedules

        if work_dir is not None and recording is not None:
            raise UsageError("--work-dir and --recording are both given; use one")
        count, total = contribute_schedules(contribute, work_dir, recording)
        text = f"{count} kernels in the records; {contribute} holds {total} tuned schedules"
        console(is_json=False).print(text, markup=False)


def _import_autotvm(file: Path, out: Path | None, gpu: str) -> None:
    from romou.tuner.records.autotvm_spaces import import_autotvm

    folder = out or file.with_name(f"{file.name.partition('.')[0]}_spaces")
    spaces = import_autotvm(file, folder, gpu)
    count, same = sum(len(s.configs) for s in spaces), sum(len(s.context["equivalents"]) for s in spaces)
    text = f"{count} configs of {len(spaces)} tasks in {folder}; {same} of them are in Romou's spaces as well"
    console(is_json=False).print(text, markup=False)


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
        count = sum(written.values())
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
    """Add the records of FILES to WORK_DIR. Its records stay as they are."""
    from romou.tuner.measure.fingerprint import device_fingerprint
    from romou.tuner.records import Origin, RecordStore, import_t4

    origin = None if any_device else Origin.here(device_fingerprint(device).to_dict())
    records = [record for path in files for record in import_t4(path, origin=origin)]
    with RecordStore(work_dir) as store:
        added = store.add_missing(records)
    if is_json:
        print_json({"read": len(records), "added": added})
    else:
        console(is_json=False).print(
            f"{added} records added to {work_dir}, {len(records) - added} were there", markup=False
        )
