"""A stand-in for Android's NDK: its compiler only records its arguments."""

from __future__ import annotations

import sys
from pathlib import Path

# Records its arguments and writes an empty output file.
COMPILER = f"""#!{sys.executable}
import pathlib, shlex, sys
with open(pathlib.Path(__file__).with_name("calls"), "a") as log: log.write(shlex.join(sys.argv[1:]) + "\\n")
if "--version" in sys.argv: print("Android clang version 17.0.2"); sys.exit()
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
# A file that includes all sources.
out.write_bytes(pathlib.Path(sys.argv[sys.argv.index("-c") + 1]).read_bytes() if "-c" in sys.argv else b"")
for one in map(pathlib.Path, sys.argv):
    if one.suffix == ".o" and one != out: out.write_bytes(one.read_bytes())
"""


def write_ndk(folder: Path) -> Path:
    """Write a toolchain for Android into `folder`, and return that."""
    toolchain = folder / "toolchains/llvm/prebuilt/linux-x86_64"
    (toolchain / "bin").mkdir(parents=True)
    (toolchain / "bin/clang++").write_text(COMPILER)
    (toolchain / "bin/clang++").chmod(0o755)
    library = toolchain / "sysroot/usr/lib/aarch64-linux-android/libc++_shared.so"
    library.parent.mkdir(parents=True)
    library.write_text("the NDK's C++ library")
    return folder
