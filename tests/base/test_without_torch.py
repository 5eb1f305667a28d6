"""TVM does not import PyTorch into a process that has not; whoever wants it still gets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# What importing TVM takes of it.
TORCH = """
print("torch is imported")
class Tensor: __dlpack_c_exchange_api__ = None
class cuda: is_available = staticmethod(lambda: False)
def __getattr__(name): return name
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(TORCH, encoding="utf-8")
    (tmp_path / "torch/version.py").touch()
    return tmp_path


def printed(code: str, folder: Path) -> list[str]:
    path = os.pathsep.join([str(folder), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    return done.stdout.split("\n")[:-1]


def test_it_is_there_for_others(folder: Path) -> None:
    code = "import romou, tvm, tvm.relax; print('tvm is'); import torch; print(torch.cuda.is_available())"
    assert printed(code, folder) == ["tvm is", "torch is imported", "False"]


def test_one_that_is_imported_already_is_used(folder: Path) -> None:
    code = "import torch, romou, tvm_ffi._convert as used; print(used.torch is torch)"
    assert printed(code, folder) == ["torch is imported", "True"]


def test_workers_do_without(folder: Path) -> None:
    asked = "'torch' in __import__('sys').modules"
    code = (
        "from romou.runtime.workers.child import ChildProcess; c = ChildProcess('test'); print(c.call('builtins:eval',"
        f" {asked!r})); c.kill()"
    )
    assert printed(code, folder) == ["False"]
