"""A driver with flaws: the system's OpenCL library behind one that lies, as $STANDIN says (standin_opencl.cc)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.suite.compiled import compiled

SOURCE = Path(__file__).parents[2] / "module" / "standin_opencl.cc"
_OPTIONS = ("-shared", "-fPIC", "-Wall")


def library() -> Path:
    """The library for ROMOU_OPENCL_LIBRARY."""

    def compile_to(path: Path) -> None:
        linked = ["-Wl,--no-as-needed", "-l:libOpenCL.so.1", "-ldl"]
        subprocess.run(["g++", *_OPTIONS, str(SOURCE), "-o", str(path), *linked], check=True)

    return compiled(".so", *_OPTIONS, SOURCE.read_text(), by=compile_to)
