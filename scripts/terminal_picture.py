"""Runs a command and draws its output as an SVG of a terminal.

python scripts/terminal_picture.py docs/tune.svg romou tune bundled:squeezenet1_0
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from romou.base.interpreter import child_environment

WIDTH = 104


def main(arguments: list[str]) -> int:
    """Write the picture of a command and return the command's exit status.

    Progress bars are on stderr and stay on the terminal.
    """
    if len(arguments) < 2:
        print("usage: terminal_picture.py FILE.svg COMMAND...", file=sys.stderr)
        return 2
    path, command = Path(arguments[0]), arguments[1:]
    environment = child_environment(COLUMNS=str(WIDTH), FORCE_COLOR="1")
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=False)
    out = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    out.print(Text(f"$ {shlex.join(command)}"))
    out.print(Text.from_ansi(done.stdout))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(out.export_svg(title=command[0]))
    print(f"wrote {path}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
