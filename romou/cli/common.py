"""Options and output that the subcommands share.

With --json, stdout carries one JSON document and nothing else. Text for a person goes to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from romou.base import environment
from romou.base.errors import EXIT_NO_DEVICE, EXIT_UNCHECKED, UsageError
from romou.base.rung import MOST_ON_HOST

if TYPE_CHECKING:
    from rich.console import Console

    from romou.devices.targets import Target
    from romou.runtime.module import Summary

JSON_KEY = "romou.is_json"
DEBUG_KEY = "romou.is_debug"
QUIET_KEY = "romou.is_quiet"
_PRINTED_KEY = "romou.has_printed"
LOADING = "Loading TVM and the drivers ..."
_LOADS_TVM = (
    "tune",
    "compile",
    "check",
    "inspect",
    "space",
    "run",
    "generate",
    "bench",
    "compare",
    "doctor",
    "devices",
)
_F = TypeVar("_F", bound=Callable[..., Any])


def _remember(key: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    # All contexts share ctx.meta, so the group's error handler sees the options of the subcommand.
    def callback(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
        ctx.meta[key] = (
            ctx.meta.get(key, False) or value or (key == DEBUG_KEY and environment.from_environment().is_debug)
        )
        return value

    return callback


def announce(target: Target, device: int | str | None, rpc: str | None, *, is_timed: bool = True) -> None:
    """Print the device that a command works on or for, as its first line, on stderr. With -q print nothing.

    device: the option `--device`, or the number of an attached device.
    is_timed: the command runs on an attached device, whatever the target's is.
    """
    from romou.devices.targets import device_text, with_device

    if is_quiet():
        return
    if rpc is not None:
        text = f"{target} at {rpc.rpartition('/')[0] or rpc}"
    else:
        text = device_text(*with_device(target, device), is_timed=is_timed)
    if text:
        click.echo(f"Device: {text}", err=True)


def host_option(function: _F) -> _F:
    text = (
        f"Accept a model with more than {100 * MOST_ON_HOST:.0f}% of its operations on the host. [default: exit code"
        f" {EXIT_NO_DEVICE}]"
    )
    return click.option("--allow-host", is_flag=True, help=text)(function)


def check_host(summary: Summary, allow_host: bool) -> None:
    """Raise an error if too much of a saved model is not on the device."""
    if summary.is_off_device and not allow_host:
        share = f"{summary.host_flop_share:.0%} of the model's operations run on the host"
        print_problem(f"{share}, more than {MOST_ON_HOST:.0%}; --allow-host accepts that")
        raise SystemExit(EXIT_NO_DEVICE)


def check_verified(summary: Summary, is_verified: bool) -> None:
    """Exit with a code of its own if a saved model's outputs were not compared with onnxruntime's.

    is_verified: whether that was asked.
    """
    if summary.unchecked and is_verified:
        print_problem(f"the outputs were not checked: {summary.unchecked}; --no-verify accepts that")
        raise SystemExit(EXIT_UNCHECKED)


def output_option(text: str) -> Callable[[_F], _F]:
    """Return the decorator for --output with this help."""
    return click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help=text)


def json_option(function: _F) -> _F:
    return click.option(
        "--json",
        "is_json",
        is_flag=True,
        is_eager=True,
        callback=_remember(JSON_KEY),
        help="One JSON document on stdout; all else on stderr.",
    )(function)


def debug_option(function: _F) -> _F:
    """Add `--debug`, `-q` and `-v`, which every command has, and a first sign of life."""
    how: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
    texts = (
        (("-v", "--verbose"), _log_level(logging.INFO), "Say more on stderr: what is tried, kept and left out."),
        (("-q", "--quiet"), _log_level(logging.ERROR), "Only the result and errors: no progress, no warnings."),
        (("--debug",), _remember(DEBUG_KEY), "Show the traceback of an error (or set ROMOU_DEBUG=1)."),
    )
    function = _saying_that_it_started(function)
    for names, callback, text in texts:
        function = click.option(*names, **how, callback=callback, help=text)(function)
    return function


def _saying_that_it_started(function: _F) -> _F:
    """Print a line on stderr before a command loads TVM and the drivers, which takes seconds."""

    @functools.wraps(function)
    def started(*arguments: Any, **options: Any) -> Any:
        context = click.get_current_context()
        if context.info_name in _LOADS_TVM and not is_quiet():
            click.echo(LOADING, err=True)
        return function(*arguments, **options)

    return cast(_F, started)


def _log_level(level: int) -> Callable[[click.Context, click.Parameter, bool], bool]:
    """Return a callback that sets the level of Romou's messages while the command runs."""

    def callback(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
        if value:
            ctx.meta[QUIET_KEY] = level == logging.ERROR
            logger, handler = logging.getLogger("romou"), logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(message)s"))
            before, is_passed_on = logger.level, logger.propagate
            logger.setLevel(level)
            logger.addHandler(handler)
            logger.propagate = False

            def restore() -> None:
                logger.removeHandler(handler)
                logger.setLevel(before)
                logger.propagate = is_passed_on

            ctx.find_root().call_on_close(restore)
        return value

    return callback


def is_quiet() -> bool:
    """Return whether the running command has the option -q."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET_KEY))


def is_verbose() -> bool:
    """Return whether the running command has the option -v."""
    return logging.getLogger("romou").isEnabledFor(logging.INFO)


def key_option(function: _F) -> _F:
    """Add `--key` and `--key-file`, which give the command one argument `key`."""

    @functools.wraps(function)
    def with_key(*arguments: Any, key: str | None, key_file: Path | None, **options: Any) -> Any:
        return function(*arguments, key=_chosen_key(key, key_file), **options)

    path = click.Path(dir_okay=False, path_type=Path)
    with_key = click.option(
        "--key-file",
        type=path,
        default=None,
        help="File with the key, which no other user can read. Without it: ROMOU_RPC_KEY.",
    )(with_key)
    text = (
        "What a client has to name, where this machine has no other users: they can read it here. It travels"
        " unencrypted."
    )
    return cast(_F, click.option("--key", default=None, help=text)(with_key))


def _chosen_key(key: str | None, key_file: Path | None) -> str:
    from romou.runtime.rpc import keys

    if key is not None and key_file is not None:
        raise UsageError("--key and --key-file are both given; use one")
    if key is not None:
        click.echo(keys.WARNING, err=True)
        return key
    stored = keys.from_environment() if key_file is None else keys.from_file(key_file)
    if stored is None:
        raise UsageError(
            "no key is given: what a client has to name",
            hint=f"Write a secret word into a file of yours and give --key-file, or set {keys.VARIABLE}.",
        )
    return stored


def print_json(data: Any) -> None:
    """Print one document on stdout. NaN and infinity, which JSON does not have, become null."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_PRINTED_KEY] = True
    click.echo(json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def print_problem(message: str, hint: str | None = None) -> None:
    """Print an error and its hint on stderr, each marked by a word, which has a colour in a terminal."""
    click.echo(f"{click.style('romou:', fg='red', bold=True)} {message}", err=True)
    if hint is not None:
        click.echo(f"{click.style('hint:', fg='cyan', bold=True)} {hint}", err=True)


def print_error(context: click.Context, error: BaseException, message: str) -> None:
    """Print an error that is no RomouError as a document on stdout, with --json and unless a document is there."""
    if context.meta.get(JSON_KEY) and not context.meta.get(_PRINTED_KEY):
        with contextlib.suppress(OSError):
            print_json({"error": {"type": type(error).__name__, "message": message}})


def console(*, is_json: bool) -> Console:
    """Return the console for text for a person: stdout, or stderr if stdout is for a program."""
    from rich.console import Console

    out = Console(stderr=is_json, highlight=False, soft_wrap=False)
    # Rich assumes 80 columns for a pipe or a log, and would cut tables.
    return (
        out if out.is_terminal else Console(stderr=is_json, highlight=False, soft_wrap=False, width=max(out.width, 120))
    )
