"""The place in Romou's or a user's code that caused an unexpected exception."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from romou.base.errors import RomouError

_ROMOU = Path(__file__).resolve().parents[1]
# Its ONNX converters may refuse a node by any exception, which then runs on the host.
_PATCHES = _ROMOU.parent / "tvm_patches"
# These folders write the code that TVM refuses, so an exception below a call from them is Romou's fault.
_AUTHORS = tuple(str(_ROMOU / "compiler" / folder) for folder in ("operators", "scheduling", "passes"))
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib", "stdlib"))

_MISTAKES = (NameError, ImportError, SyntaxError)
_USERS_MISTAKES = (AttributeError, TypeError, LookupError, ArithmeticError, NotImplementedError)
# TVM passes an exception of a type that it does not know on as a RuntimeError with the same text.
_MISTAKES_IN_TEXT = re.compile(
    r"^(name '\w+' is not defined|No module named |cannot import name |cannot access local )"
)


def own_fault(error: BaseException) -> str | None:
    """Return the place of a fault in Romou's or a user's code, such as "romou/compiler/passes/nan.py:12".

    None for a RomouError, which is a refusal, and for an exception that only a library's code takes part in.
    """
    for cause in _chain(error):
        frames, ours = _frames_of(cause)
        if ours and (ours[-1] is frames[-1] or any(frame.filename.startswith(_AUTHORS) for frame in ours)):
            return f"{_shown(ours[-1].filename)}:{ours[-1].lineno}"
    return None


def mistake(error: BaseException) -> BaseException | None:
    """Return the cause of `error` that is a mistake in the code itself, whatever the model is, or None.

    Such an exception is a missing name or import in Romou's or a user's Python code, and in a user's code any exception
    of Python's own that no check raises on purpose.
    """
    for cause in _chain(error):
        frames, ours = _frames_of(cause)
        if not ours or ours[-1] is not frames[-1]:
            continue
        path = Path(ours[-1].filename).resolve()
        is_users = not any(path.is_relative_to(own) for own in (_ROMOU, _PATCHES))
        if isinstance(cause, _MISTAKES + _USERS_MISTAKES * is_users) or _MISTAKES_IN_TEXT.search(str(cause)):
            return cause
    return None


def _frames_of(cause: BaseException) -> tuple[list[traceback.FrameSummary], list[traceback.FrameSummary]]:
    """Return the Python frames of an exception, and those among them in Romou's or a user's code.

    Both are empty for a RomouError, which is a refusal.
    """
    if isinstance(cause, RomouError):
        return [], []
    stack = traceback.extract_tb(cause.__traceback__)
    frames = [frame for frame in stack if frame.lineno and Path(frame.filename).is_absolute()]
    return frames, [frame for frame in frames if not _is_of_library(frame.filename)]


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
