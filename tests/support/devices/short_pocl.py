"""A copy of PoCL that declares fewer built-in functions, so that small programs build in a third of the time.

PoCL parses the declarations of some 14,000 functions with each program. The copy's header lacks those of
`UNCALLED`, and a call of one of them would be a compiler's error. PoCL looks for its headers relative to its
library, so a copied library in another folder reads other headers.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from support.suite.compiled import kept

SYSTEM = Path("/etc/OpenCL/vendors")
# Families of functions that no kernel of this project or of TVM calls.
UNCALLED = re.compile(
    r"convert_(?!half4_rtz)\w+?_(sat|rt[ezpn]|sat_rt[ezpn])|shuffle2?|async_work\w*|prefetch|intel_\w+|amd_\w+"
    r"|atomic_(fetch|exchange|compare_exchange|load|store|init|flag)\w*|\w+_explicit|bitfield\w*|bit_reverse|upsample"
    r"|get_image_(channel|num|dim|depth|array)\w*|sub_group_(non_uniform|clustered|scan|ballot|elect|rotate)\w*"
    r"|work_group_(broadcast|reduce|scan)\w*|remquo|lgamma_r|frexp|sincos|fract|modf|mad_hi|mad_sat|abs_diff|r?hadd"
)
DECLARATION = re.compile(r"^[a-z][\w ]*?[\w*]+\s+(?:__attribute__\(\(\w+\)\)\s*)*(\w+)\s*\([^;{}]*\);\n", re.MULTILINE)


def is_first() -> bool:
    """Return whether PoCL is installed and no platform but Mesa's beside it, which may be a GPU's."""
    installed = {path.stem for path in SYSTEM.glob("*.icd")}
    return "pocl" in installed and installed <= {"pocl", "mesa", "rusticl"}


def vendors() -> Path:
    """Return the system's folder of OpenCL platforms with the copy in place of PoCL, or that folder itself if PoCL is
    not installed in the usual way.
    """
    icd = SYSTEM / "pocl.icd"
    if not icd.is_file():
        return SYSTEM
    library = next((path for path in Path("/usr/lib").glob(f"*/{Path(icd.read_text().strip()).name}")), None)
    data = Path("/usr/share/pocl")
    header = data / "include/opencl-c.h"
    if library is None or not header.is_file():
        return SYSTEM
    text = header.read_text()
    state = library.stat()
    made = kept("", str(library), str((state.st_size, state.st_mtime_ns)), text, UNCALLED.pattern)
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=made.parent))
        _copy(library, data, text, partial, final=made)
        try:
            partial.rename(made)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    return made / "vendors"


def _copy(library: Path, data: Path, header: str, folder: Path, *, final: Path) -> None:
    libraries = folder / "lib" / library.parent.name
    libraries.mkdir(parents=True)
    shutil.copy(library, libraries)
    if (plugins := library.parent / "pocl").is_dir():
        (libraries / "pocl").symlink_to(plugins)
    shared = folder / "share/pocl"
    (shared / "include").mkdir(parents=True)
    for path in (*data.iterdir(), *(data / "include").iterdir()):
        if path.name not in ("include", "opencl-c.h"):
            (shared / path.relative_to(data)).symlink_to(path)
    short = DECLARATION.sub(lambda found: "" if UNCALLED.fullmatch(found[1]) else found[0], header)
    (shared / "include/opencl-c.h").write_text(short)
    (folder / "vendors").mkdir()
    for path in SYSTEM.glob("*.icd"):
        (folder / "vendors" / path.name).write_text(path.read_text())
    (folder / "vendors/pocl.icd").write_text(f"{final / libraries.relative_to(folder) / library.name}\n")
