"""romou version: the versions of Romou and of what it stands on."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from romou.base.version import __version__
from romou.cli.common import debug_option, json_option, print_json

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime")


@click.command("version")
@json_option
@debug_option
def command(is_json: bool) -> None:
    """Print the versions of Romou, of the packages that it stands on, and of Python.

    \b
    Examples:
      romou version
      romou version --json
    """
    versions = {"romou": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    versions |= {"python": platform.python_version(), "platform": platform.platform()}
    if is_json:
        print_json(versions)
        return
    for name, version in versions.items():
        click.echo(f"{name} {version}")
