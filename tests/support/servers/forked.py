"""Python commands without their start-up time. Each runs in a fork of a process that has imported TVM, as workers of a
search do (romou/runtime/workers/nursery.py).

Tests that check the start itself, or end the command by a signal, start a real process instead.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping
from pathlib import Path

from romou.runtime.workers.child import ChildProcess, ChildTimeoutError

# Read while a process starts, or while a library is loaded that the nursery has loaded already.
_READ_AT_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "TVM_LIBRARY", "TVM_USE")


def run(
    *words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Return the result of `python WORDS...`: -c CODE, -m MODULE or a script, and arguments.

    `env`: its whole environment, this process's if None.
    """
    environment = dict(os.environ if env is None else env)
    changed = {name for name, _ in environment.items() ^ os.environ.items()}
    assert not (late := [name for name in changed if name.startswith(_READ_AT_START)]), (
        f"{late}: a process of its own has to read them"
    )
    arguments = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        child = ChildProcess("forked")
        try:
            code = child.call(
                "support.servers.forked:become_command",
                arguments,
                environment,
                str(cwd or Path.cwd()),
                folder,
                timeout_s=timeout,
            )
        except ChildTimeoutError:
            raise subprocess.TimeoutExpired(arguments, timeout) from None
        finally:
            child.kill()
        out, err = ((Path(folder) / name).read_text(errors="replace") for name in ("out", "err"))
    return subprocess.CompletedProcess(arguments, code, out, err)


def become_command(arguments: list[str], environment: dict[str, str], cwd: str, folder: str) -> int:
    """Run the command in the fork, with its output in files of `folder`, and return its exit code. The fork does
    nothing else afterwards.
    """
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = None
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    code = _exit_code(arguments)
    # The same happens when an interpreter ends.
    atexit._run_exitfuncs()
    for text in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            text.flush()
    return code


def _exit_code(arguments: list[str]) -> int:
    kind, *rest = arguments
    try:
        if kind == "-m":
            sys.argv, sys.path[:0] = rest, [os.getcwd()]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            return 0
        main = types.ModuleType("__main__")
        if kind == "-c":
            sys.argv, sys.path[:0] = ["-c", *rest[1:]], [""]
            code = compile(rest[0], "<string>", "exec")
        else:
            sys.argv, sys.path[:0], main.__file__ = arguments, [str(Path(kind).parent)], kind
            code = compile(Path(kind).read_bytes(), kind, "exec")
        sys.modules["__main__"] = main
        exec(code, main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
