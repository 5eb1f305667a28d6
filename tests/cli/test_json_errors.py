"""The output of --json always holds one document on stdout, and the exit status says whether it is an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from romou.cli import COMMANDS, main


def commands(group: click.Command = main, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command that runs something, by its words."""
    if not isinstance(group, click.Group):
        return [(path, group)]
    context = click.Context(group)
    return [
        found
        for name in group.list_commands(context)
        for found in commands(group.get_command(context, name), (*path, name))
    ]  # type: ignore[arg-type]


def error_of(result: Any) -> dict[str, Any]:
    """Return the only document of a failed command."""
    assert result.exit_code not in (0, None)
    error = json.loads(result.stdout)["error"]
    assert error["message"]
    assert result.stderr or result.exception
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize(
    ("words", "command"), commands(), ids=lambda found: "-".join(found) if isinstance(found, tuple) else ""
)
def test_wrong_use_of_any_command_is_a_document(words: tuple[str, ...], command: click.Command) -> None:
    assert any("--json" in parameter.opts for parameter in command.params)
    for where in (
        ["--json", "--no-such-option"],
        ["--no-such-option", "--json"],
        ["one", "more", "than", "there", "is", "--json"],
    ):
        result = CliRunner().invoke(main, [*words, *where])
        if where[0] == "one" and any(parameter.nargs == -1 for parameter in command.params):
            continue
        assert error_of(result)["type"] in (
            "NoSuchOption",
            "UsageError",
            "BadParameter",
            "MissingParameter",
        ), result.output
        assert result.exit_code == 2


def test_the_commands_are_all_there() -> None:
    assert {words[0] for words, _ in commands()} == set(COMMANDS)


@pytest.mark.parametrize(
    "arguments", [["nonsense", "--json"], ["records", "--json"], ["--nonsense", "devices", "--json"]]
)
def test_wrong_use_before_any_command_is_a_document(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert error_of(result)["type"] in ("UsageError", "NoSuchOption")
    assert result.exit_code == 2


def test_a_bug_is_a_document_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from romou.devices.backends.opencl import OpenCL

    monkeypatch.setattr(OpenCL, "list_devices", lambda self: 1 // 0)
    result = CliRunner().invoke(main, ["devices", "--json"])
    assert error_of(result) == {"type": "ZeroDivisionError", "message": "integer division or modulo by zero"}
    assert isinstance(result.exception, ZeroDivisionError)


def test_what_comes_after_the_document_adds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import romou.cli.devices
    from romou.cli.common import print_json

    @click.command("devices")
    @click.option("--json", is_flag=True)
    def command(json: bool) -> None:
        print_json({"all": float("nan"), "is": [float("inf"), 1.5], "well": json})
        raise KeyError("late")

    monkeypatch.setattr(romou.cli.devices, "command", command)
    result = CliRunner().invoke(main, ["devices", "--json"])
    assert json.loads(result.stdout) == {"all": None, "is": [None, 1.5], "well": True}
    assert result.exit_code == 1


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, "Terminated"), (signal.SIGINT, "KeyboardInterrupt")])
def test_a_signal_is_a_document(number: signal.Signals, kind: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import romou.devices.backends.opencl as o, time\ndef wait(self):\n    open('waits', 'w');"
        " time.sleep(600)\no.OpenCL.list_devices = wait\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(Path.cwd()))]),
    }
    command = [sys.executable, "-m", "romou.cli", "devices", "--json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    while not (tmp_path / "waits").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert json.loads(stdout)["error"]["type"] == kind
    assert process.returncode > 0
    assert "Traceback" not in stderr


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04", "two"])
def test_an_input_file_that_holds_no_array_is_one_error(content: bytes | str, tmp_path: Path) -> None:
    from romou.base.errors import UsageError
    from romou.cli.run import read_inputs

    path = tmp_path / "x.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(1), b=np.zeros(1))
    with pytest.raises(UsageError, match="--input x: "):
        read_inputs((f"x={path}",), {"x": ((1,), "float32")})
