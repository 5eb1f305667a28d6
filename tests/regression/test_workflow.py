"""The sample workflow calls Romou with commands and options that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from romou.cli import main

WORKFLOW = Path(__file__).parents[2] / "docs/guide/ci/github-actions.yml"


def test_commands_of_the_workflow_exist() -> None:
    lines = re.findall(r"(?:run: |^ +)(romou .+)$", WORKFLOW.read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["doctor", "compare", "bench", "setup", "compare"]
    for line in lines:
        _, name, *arguments = shlex.split(line)
        command = main.get_command(click.Context(main), name)
        assert command is not None
        # Parses every option and argument; raises for one that there is not.
        command.make_context(name, arguments)


def test_the_wheel_of_the_workflow_has_its_name() -> None:
    """The name that scripts/build_wheel.sh gives it: tests/packaging/test_wheel.py."""
    version = re.search(r'^version = "(.+)"$', (WORKFLOW.parents[3] / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    wheel = rf"^  ROMOU: \./wheels/romou-{re.escape(version[1])}-py3-none-manylinux_2_\d+_x86_64\.whl\[cpu,linker\]$"
    assert re.search(wheel, WORKFLOW.read_text(encoding="utf-8"), re.MULTILINE)
