"""Python processes that Romou starts for itself."""

from __future__ import annotations

import os
import sys

# `python -m` puts the current folder first on the import path. In a checkout of Romou, or beside any folder of a
# dependency's name, the child would import that folder instead of the installed package. From Python 3.11 on, the
# option -P prevents it too.
_RUN = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from romou.base.without_torch import leave_out_torch;"
    " leave_out_torch(); import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with `variables`, for a child."""
    return {**os.environ, **variables}


def become(environment: dict[str, str], path: list[str], folder: str) -> None:
    """Set the environment, the import path and the current folder of this process."""
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    os.chdir(folder)


def forget_import_path() -> None:
    """Drop the import path that a parent passed to this process by `child_environment`.

    Compilers started from here must not inherit it.
    """
    os.environ.pop("PYTHONPATH", None)


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` as a script under this interpreter.

    The current folder is not on the import path, and TVM does not load PyTorch.
    """
    return [sys.executable, "-c", _RUN.format(module=module), *arguments]
