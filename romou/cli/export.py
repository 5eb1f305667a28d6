"""romou export: a saved model as files for an app, which run without Romou and Python."""

from __future__ import annotations

from pathlib import Path

import click

from romou.cli.common import console, debug_option, json_option, print_json


@click.command("export")
@click.argument("modules", metavar="MODEL...", nargs=-1, required=True, type=click.Path(path_type=Path))
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
    "--project",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Also write an Android project here: a Kotlin class, the runtime, the model, and a sample app.",
)
@click.option(
    "--runtime",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of `romou phone build`, for the project.",
)
@json_option
@debug_option
def command(
    modules: tuple[Path, ...], folder: Path, host: str, project: Path | None, runtime: Path | None, is_json: bool
) -> None:
    """Write MODEL, which `romou tune` or `romou compile` saved, as files for an app on a phone.

    Several saved models of one ONNX model, each for another device, go into one folder: the app takes the one that
    suits its device best, by the name that the driver gives it. One for --target null is plain code for the processor.
    A decoder that `romou generate -o` saved is a model, too.

    \b
    Examples:
      romou export model.romou --android out
      romou export adreno740.romou adreno640.romou plain.romou --android out
      romou export model.romou --android out --project sample --runtime phone_runtime
      romou export model.romou --android out --host aarch64-linux-gnu
    """
    import romou

    first, *others = [romou.load(module) for module in modules]
    first.export_android(folder, others=others, host=host, project=project, runtime=runtime)
    sizes = {str(place): _sizes(place) for place in (folder, project) if place is not None}
    if is_json:
        print_json(
            {"modules": [str(module) for module in modules], "host": host, "folder": str(folder), "bytes": sizes}
        )
        return
    out = console(is_json=False)
    for place, files in sizes.items():
        for name, size in files.items():
            out.print(f"{size / 2**20:9.3f} MiB  {name}", markup=False)
        out.print(f"{sum(files.values()) / 2**20:9.3f} MiB  in {place}, for {host}", markup=False)


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
