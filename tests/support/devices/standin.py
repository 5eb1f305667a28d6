"""A driver with flaws: a library that forwards to the system's OpenCL library and returns wrong results as $STANDIN
specifies (standin_opencl.cc).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.suite.compiled import compiled

SOURCE = Path(__file__).parents[2] / "module" / "standin_opencl.cc"
_OPTIONS = ("-shared", "-fPIC", "-Wall")


def library() -> Path:
    """Return the library for ROMOU_OPENCL_LIBRARY."""

    def compile_to(path: Path) -> None:
        linked = ["-Wl,--no-as-needed", "-l:libOpenCL.so.1", "-ldl"]
        subprocess.run(["g++", *_OPTIONS, str(SOURCE), "-o", str(path), *linked], check=True)

    return compiled(".so", *_OPTIONS, SOURCE.read_text(), by=compile_to)
