"""TVM without PyTorch, for the processes that Romou starts: the command line and workers.

TVM imports PyTorch wherever it is installed. That takes seconds in each process, and Romou uses nothing of it.
Processes of the user are left as they are.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import FrameType

_TVM = ("tvm", "tvm_ffi")


class _WithoutTorch(MetaPathFinder):
    """Hides PyTorch from TVM while TVM is being imported. Other imports of PyTorch find it."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torch" and _is_for_tvm():
            raise ModuleNotFoundError("Romou has TVM do without torch", name=fullname)


def leave_out_torch() -> None:
    """Keep TVM from importing PyTorch in this process. If PyTorch is imported already, TVM uses it."""
    if not any(isinstance(finder, _WithoutTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutTorch())


def _is_for_tvm() -> bool:
    """Return whether this thread is inside an import of TVM."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") in _TVM:
            return True
        frame = frame.f_back
    return False
