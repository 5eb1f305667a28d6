"""romou export: a saved model as files for an app, which run without Romou and Python."""

from __future__ import annotations

from pathlib import Path

import click

from romou.cli.common import console, debug_option, json_option, print_json


@click.command("export")
@click.argument("module", type=click.Path(path_type=Path))
@click.option(
    "--android",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for the files; an earlier export is replaced.",
)
@click.option(
    "--host",
    default="aarch64-linux-android",
    show_default=True,
    metavar="TRIPLE",
    help="Machine that runs them: aarch64-linux-gnu is arm64 Linux. Android takes the NDK in ANDROID_NDK_HOME.",
)
@click.option(
    "--runtime",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of scripts/build_phone_runtime.sh, to compile the sample against.",
)
@json_option
@debug_option
def command(module: Path, folder: Path, host: str, runtime: Path | None, is_json: bool) -> None:
    """Write MODULE, which `romou tune` or `romou compile` saved, as files for an app on a phone.

    \b
    Examples:
      romou export model.romou --android out
      romou export model.romou --android out --host aarch64-linux-gnu
    """
    import romou

    romou.load(module).export_android(folder, host=host, runtime=runtime)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    if is_json:
        print_json({"module": str(module), "folder": str(folder), "host": host, "bytes": sizes})
        return
    out = console(is_json=False)
    for name, size in sizes.items():
        out.print(f"{size / 2**20:9.3f} MiB  {name}", markup=False)
    out.print(f"{sum(sizes.values()) / 2**20:9.3f} MiB  in {folder}, for {host}", markup=False)
