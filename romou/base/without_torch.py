"""TVM without PyTorch, which it imports wherever that is installed: seconds in each process, and nothing of Romou's
uses it.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import FrameType

_TVM = ("tvm", "tvm_ffi")


class _WithoutTorch(MetaPathFinder):
    """Hides PyTorch from TVM while that is imported; for anybody else, and afterwards, it is there."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torch" and _is_for_tvm():
            raise ModuleNotFoundError("Romou has TVM do without torch", name=fullname)


def leave_out_torch() -> None:
    """Keep TVM from importing PyTorch in this process. Where somebody has imported it before, TVM uses it as ever."""
    if not any(isinstance(finder, _WithoutTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutTorch())


def _is_for_tvm() -> bool:
    """Whether the import that asks is one of those that importing TVM takes, in this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") in _TVM:
            return True
        frame = frame.f_back
    return False
