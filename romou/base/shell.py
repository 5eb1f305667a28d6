"""Shell scripts that come with Romou, run as part of a command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from romou.base.errors import BuildError
from romou.base.interpreter import child_environment

_ERROR = "error: "


def run_script(script: Path, *arguments: str, is_quiet: bool = False) -> None:
    """Run a script with this Python as $PYTHON, and pass its lines on as they come, all of them to stderr.

    is_quiet: pass on errors only.

    Raises
    ------
    BuildError
        The script failed. The message is its line that begins with "error: ".
    """
    bash = shutil.which("bash")
    if bash is None:
        raise BuildError("bash, which runs Romou's scripts, is not on PATH", hint="apt-get install bash")
    command = [bash, str(script), *arguments]
    environment = child_environment(PYTHON=sys.executable)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    reason = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_ERROR):
                reason = line.removeprefix(_ERROR).strip()
            elif not (is_quiet and line.startswith("==> ")):
                sys.stderr.write(line)
        code = process.wait()
    finally:
        process.kill()
    if code:
        raise BuildError(reason or f"{script.name} ended with {code}; its messages stand above")
