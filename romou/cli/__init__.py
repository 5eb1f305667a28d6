"""The `romou` command. One file per subcommand; COMMANDS is the visible list."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from romou.cli.common import DEBUG_KEY, JSON_KEY, debug_option, print_json
from romou.core.errors import EXIT_FAILED, EXIT_USAGE, RomouError, nearest_name

# name -> (module under romou.cli, one line of help). A module is imported when its command runs, so `romou --help` is quick.
COMMANDS = {
    "tune": "Tune an ONNX model for a device and save the result.",
    "compile": "Compile an ONNX model with default schedules; no device needed.",
    "inspect": "Show kernels: source, estimates, IR around each pass, what Mesa's mobile compilers say.",
    "space": "Show how many configs each task has, and what the facts of the device exclude; no device needed.",
    "records": "Export and import measured configs in Kernel Tuner's T4 format.",
    "run": "Run a tuned model.",
    "serve": "Serve this machine's OpenCL devices over TVM RPC, to be tuned on from elsewhere.",
    "bench": "Time a model by operator and save what romou compare needs.",
    "compare": "Compare with a saved bench: is a kernel slower, or worse by what can be read off it?",
    "phone": "Push the runtime to a phone, start, stop and look at its RPC server, over adb.",
    "doctor": "Check this machine: build and run a tiny kernel on every device, with a hint for each problem.",
    "devices": "List attached devices and those that -device= knows.",
}


class RomouGroup(click.Group):
    """Loads commands on demand and turns a RomouError into one message and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"romou.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest_name(args[0], COMMANDS)
            ctx.fail(f"no such command {args[0]!r}; there are {', '.join(COMMANDS)}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RomouError as error:
            _report(ctx, error)
            ctx.exit(error.exit_code)


def _report(ctx: click.Context, error: RomouError) -> None:
    if ctx.meta.get(DEBUG_KEY):
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if ctx.meta.get(JSON_KEY):
        print_json({"error": error.to_dict()})
    click.echo(f"romou: {error}", err=True)


@click.group(cls=RomouGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="romou", message="%(prog)s %(version)s")
@debug_option
def main() -> None:
    """Tuned, correct, fast kernels from an ONNX model, for any OpenCL device.

    \b
    Exit codes: 0 fine, 1 failed, 2 wrong use, 3 no usable device.
    """


def run_main() -> None:
    """`main` for `python -m romou.cli`."""
    try:
        main(prog_name="romou")
    except KeyboardInterrupt:
        sys.exit(EXIT_FAILED)


assert click.UsageError.exit_code == EXIT_USAGE
