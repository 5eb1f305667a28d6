"""The `romou` command. COMMANDS lists the subcommands. Each is a file."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import click

from romou.base import environment
from romou.base.errors import EXIT_FAILED, EXIT_USAGE, RomouError, UsageError, nearest_name
from romou.base.without_torch import leave_out_torch
from romou.cli.common import DEBUG_KEY, JSON_KEY, debug_option, print_error, print_json, print_problem

# name -> (module under romou.cli, one line of help). A module is imported when its command runs, so `romou --help` is
# quick.
COMMANDS = {
    "tune": "Tune an ONNX model for a device and save the result.",
    "compile": "Compile an ONNX model with default schedules; no device needed.",
    "check": "Check in seconds how an ONNX model would run on a device; no device needed.",
    "inspect": "Show kernels: source, estimates, IR around each pass, what Mesa's mobile compilers say.",
    "space": "Show how many configs each task has, and what the facts of the device exclude; no device needed.",
    "records": "Export and import measured configs in Kernel Tuner's T4 format.",
    "run": "Run a tuned model.",
    "export": "Write a saved model as files for an app, which run without Romou.",
    "generate": "Generate tokens by a language model's decoder.",
    "serve": "Serve this machine's devices over TVM RPC, to be tuned on from elsewhere.",
    "bench": "Time a model by operator and save what romou compare needs.",
    "report": "Draw records, tuned models and benches as one HTML page with figures.",
    "compare": "Compare with a saved bench: is a kernel slower, or worse by what can be read off it?",
    "phone": "Build the runtime of a phone, push it, start, stop and look at its RPC server, over adb.",
    "setup": "Download programs that Romou can use and no Python package has.",
    "doctor": "Check this machine: build and run a tiny kernel on every device, with a hint for each problem.",
    "devices": "List attached devices and those that -device= knows.",
    "docs": "Print a page of the documentation.",
    "version": "Print the versions of Romou, TVM and Python.",
}

_DISK_ERRORS = (
    errno.ENOSPC,
    errno.EFBIG,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
)


class RomouGroup(click.Group):
    """The group of commands. It imports a command when it runs, and turns a RomouError into a message and an exit code.

    With --json, every error is also a document on stdout.
    """

    def main(self, args: Sequence[str] | None = None, *rest: Any, **named: Any) -> Any:
        if args is None:  # this process is the command line's own
            leave_out_torch()
        return super().main(args, *rest, **named)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"romou.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest_name(args[0], COMMANDS)
            ctx.fail(
                f"no such command {args[0]!r}; there are {', '.join(COMMANDS)}."
                + (f" Did you mean {near!r}?" if near else "")
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:  # romou help tune
            args = [*args[1:], "--help"]
        # Errors of the arguments are reported as --json wants them, although no option is parsed yet.
        ctx.meta[JSON_KEY] = "--json" in args
        # Click colours what goes to a terminal. It does not read this variable.
        ctx.color = False if environment.variable("NO_COLOR") else None
        with _reporting(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _terminable(), _reporting(ctx):
            _check_folders()
            return super().invoke(ctx)


class Terminated(SystemExit):
    """Raised by SIGTERM, so that everything open is closed."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: temporary folders and worker processes go. A second one kills."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated(128 + number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_folders() -> None:
    """Raise UsageError if the working folder was deleted, or no temporary file can be written."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the working folder was deleted", hint="Change to another one: cd FOLDER") from error
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UsageError(
            str(error.strerror),
            hint="Free some space there, set TMPDIR, or lift the limit on the size of files (ulimit -f).",
        ) from error


@contextlib.contextmanager
def _telling_of_disks() -> Iterator[None]:
    """Turn errors of a full disk, or of a file that may not be written, into UsageError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise UsageError(
            f"{error.filename or 'a file'}: {error.strerror}",
            hint="Free some space, or choose a folder that may be written.",
        ) from error


@contextlib.contextmanager
def _reporting(ctx: click.Context) -> Iterator[None]:
    try:
        with _telling_of_disks():
            yield
    except RomouError as error:
        if ctx.meta.get(DEBUG_KEY):
            import traceback

            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        if ctx.meta.get(JSON_KEY):
            print_json({"error": error.to_dict()})
        print_problem(error.message, error.hint)
        ctx.exit(error.exit_code)
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        print_error(ctx, error, error.format_message())
        raise
    except (Exception, KeyboardInterrupt, Terminated) as error:
        # A bug keeps its traceback.
        print_error(
            ctx, error, {KeyboardInterrupt: "interrupted", Terminated: "ended by SIGTERM"}.get(type(error), str(error))
        )
        raise


@click.group(cls=RomouGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="romou", message="%(prog)s %(version)s")
@debug_option
def main() -> None:
    """Tuned, correct, fast kernels from an ONNX model, for mobile GPUs and others.

    \b
    Exit codes: 0 fine, 1 failed, 2 wrong use, 3 no usable device, or too much of a model is not on it, 4 a saved model
    was not checked.
    """


def run_main() -> None:
    """Run `main` for `python -m romou.cli`."""
    try:
        main(prog_name="romou")
    except KeyboardInterrupt:
        sys.exit(EXIT_FAILED)


assert click.UsageError.exit_code == EXIT_USAGE
