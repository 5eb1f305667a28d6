"""Romou's own processes do not import PyTorch. A user's process is not changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from support.models.small_networks import NetworkBuilder

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


# Prints the state of a user's process. Before and after it must be the same line.
STATE = "print(sys.meta_path, sorted(os.environ.items()), 'torch' in sys.modules and sys.modules['torch'].__file__)"


def compiled_by_user(folder: Path) -> str:
    """Return code that compiles a tiny model as a user does."""
    one = NetworkBuilder({"x": (1, 4)})
    onnx.save(one.model(one.add("Relu", "x")), folder / "tiny.onnx")
    return f"romou.compile({str(folder / 'tiny.onnx')!r}, target='null', verify=False)"


def test_importing_romou_changes_nothing(folder: Path) -> None:
    before, after = printed(f"import os, sys\n{STATE}\nimport romou\n{STATE}", folder)
    assert before == after


def test_compiling_changes_nothing(folder: Path) -> None:
    # TVM imports PyTorch and adds its finders. The first state is that of a user who has imported TVM already.
    code = f"import os, sys, tvm\n{STATE}\nimport romou\n{compiled_by_user(folder)}\n{STATE}"
    _, before, after = printed(code, folder)
    assert before == after


def test_tvm_has_torch_in_a_process_of_the_user(folder: Path) -> None:
    code = "import romou, tvm, tvm_ffi._convert as used, torch; print(used.torch is torch)"
    assert printed(code, folder) == ["torch is imported", "True"]


def test_the_command_line_does_without(folder: Path) -> None:
    compiled_by_user(folder)
    arguments = ["romou", "compile", str(folder / "tiny.onnx"), "--target", "null", "--no-verify"]
    arguments += ["--output", str(folder / "tiny.romou")]
    code = f"import sys\nsys.argv = {arguments}\nfrom romou.cli import main\ntry: main()\nexcept SystemExit as end:"
    assert printed(f"{code} print(end.code, 'torch' in sys.modules)", folder)[-1] == "0 False"


def test_it_is_there_for_others_where_tvm_does_without(folder: Path) -> None:
    code = "from romou.base.without_torch import leave_out_torch; leave_out_torch(); import romou, tvm, tvm.relax"
    code += "; print('tvm is'); import torch; print(torch.cuda.is_available())"
    assert printed(code, folder) == ["tvm is", "torch is imported", "False"]


def test_workers_do_without(folder: Path) -> None:
    asked = "'torch' in __import__('sys').modules"
    code = (
        "from romou.runtime.workers.child import ChildProcess; c = ChildProcess('test'); print(c.call('builtins:eval',"
        f" {asked!r})); c.kill()"
    )
    assert printed(code, folder) == ["False"]
