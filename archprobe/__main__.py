"""The command ``archprobe``, also as ``python -m archprobe``."""

from __future__ import annotations

import sys

from archprobe.errors import EXIT_FAILED


def main() -> None:
    """Run the command line, or exit with a hint if the packages of the extra `archprobe` are missing."""
    try:
        from archprobe.cli import main as run
    except ModuleNotFoundError as error:
        print(f"archprobe needs {error.name}, which is not installed: pip install 'romou[archprobe]'", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    run()


if __name__ == "__main__":
    main()
