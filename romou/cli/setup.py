"""romou setup: programs that Romou can use and no Python package has."""

from __future__ import annotations

from pathlib import Path

import click

from romou.cli.common import console, debug_option, is_quiet, json_option, print_json


@click.group("setup")
def command() -> None:
    """Download programs that Romou can use and no Python package has. All take --json and --debug.

    \b
    Examples:
      romou setup mobile-compilers
    """


@command.command("mobile-compilers")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--mesa",
    type=click.Choice(["25", "26"]),
    default="25",
    show_default=True,
    help="Mesa's version. 26 compiles for Adreno 8xx as well; presets were fitted to 25.",
)
@json_option
@debug_option
def mobile_compilers(folder: Path | None, mesa: str, is_json: bool) -> None:
    """Fetch Mesa's OpenCL compilers for Adreno and Mali into FOLDER, for `romou inspect --gpu`.

    FOLDER is ROMOU_MOBILE_COMPILERS, or ~/.cache/romou/mobile_compilers, with _26 at its end for Mesa 26. Debian builds
    these drivers for arm64 only, so they run under qemu, and no GPU is needed. About 190 MB to download, 500 MB on
    disk. It takes apt-get, dpkg-deb and the network, but no root: nothing is installed into the system.

    \b
    Examples:
      romou setup mobile-compilers
      romou setup mobile-compilers /opt/mobile_compilers
      romou setup mobile-compilers --mesa 26
    """
    from romou.base.shell import run_script
    from romou.devices import mobile_compilers as compilers

    run_script(compilers.SETUP_SCRIPT, "--mesa", mesa, *([str(folder)] if folder else []), is_quiet=is_quiet())
    version, path = compilers.mesa_version(folder, mesa=int(mesa)), compilers.find_compilers(folder, mesa=int(mesa))
    if is_json:
        print_json({"folder": str(path), "mesa": version})
    else:
        console(is_json=False).print(f"Mesa {version} is in {path}", markup=False)
