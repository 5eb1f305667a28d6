"""The sample workflow calls Romou with commands and options that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from romou.cli import main

WORKFLOW = Path(__file__).parents[2] / "docs/ci/github-actions.yml"


def test_commands_of_the_workflow_exist() -> None:
    lines = re.findall(r"(?:run: |^ +)(romou .+)$", WORKFLOW.read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["doctor", "compare", "bench"]
    for line in lines:
        _, name, *arguments = shlex.split(line)
        command = main.get_command(click.Context(main), name)
        assert command is not None
        # Parses every option and argument; raises for one that there is not.
        command.make_context(name, arguments)
