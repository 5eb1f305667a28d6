"""The place in Romou's or a user's code that caused an unexpected exception."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from romou.base.errors import RomouError

_ROMOU = Path(__file__).resolve().parents[1]
# These folders write the code that TVM refuses, so an exception below a call from them is Romou's fault.
_AUTHORS = tuple(str(_ROMOU / "compiler" / folder) for folder in ("operators", "scheduling", "passes"))
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib", "stdlib"))


def own_fault(error: BaseException) -> str | None:
    """Return the place of a fault in Romou's or a user's code, such as "romou/compiler/passes/nan.py:12".

    None for a RomouError, which is a refusal, and for an exception that only a library's code takes part in.
    """
    for cause in _chain(error):
        if isinstance(cause, RomouError):
            continue
        frames = [
            frame
            for frame in traceback.extract_tb(cause.__traceback__)
            if frame.lineno and Path(frame.filename).is_absolute()
        ]
        ours = [frame for frame in frames if not _is_of_library(frame.filename)]
        if ours and (ours[-1] is frames[-1] or any(frame.filename.startswith(_AUTHORS) for frame in ours)):
            return f"{_shown(ours[-1].filename)}:{ours[-1].lineno}"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    while error is not None:
        yield error
        error = error.__cause__  # type: ignore[assignment]


def _is_of_library(filename: str) -> bool:
    """Return whether a file belongs to Python or a wheel other than Romou's. C++ frames of TVM have no path here."""
    path = str(Path(filename).resolve())
    if path.startswith(str(_ROMOU)):
        return False
    return path.startswith(_LIBRARIES) or not path.endswith(".py")


def _shown(filename: str) -> str:
    path = Path(filename).resolve()
    return str(path.relative_to(_ROMOU.parent)) if path.is_relative_to(_ROMOU) else str(path)
