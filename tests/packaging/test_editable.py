"""`pip install -e .` from a copy of the checkout, and the messages of builds that cannot work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
INSTALL = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "-e", "."]


def test_a_checkout_runs_in_place(
    source: Path, fresh_environment: Callable[[], tuple[str, Path]], compiler: dict[str, str], tmp_path: Path
) -> None:
    """The three folders import under their installed names, from any folder, and TVM finds the library in the source
    tree.
    """
    python, _ = fresh_environment()
    subprocess.run(
        [python, *INSTALL, "--quiet"], check=True, cwd=source, stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **compiler}
    )
    code = f"""
import importlib, pathlib
root = pathlib.Path({str(source)!r}).resolve()
for name, folder in (("romou", "romou"), ("romou.compiler.operators", "romou/compiler/operators"), ("tvm_patches", "tvm_patches")):
    found = pathlib.Path(importlib.import_module(name).__file__).resolve().parent
    assert found == root / folder, (name, found)
import tvm
assert tvm.opencl(0).exist
from tvm_patches import RUNTIMES, compat
for runtime in RUNTIMES.values():
    assert runtime.exists() and runtime.resolve().is_relative_to(root), runtime
compat.check_versions()
"""  # noqa: E501
    for folder in (tmp_path, source):
        done = subprocess.run(
            [python, "-c", code], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (folder, done.stderr)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CXX": "/nonexistent/c++"}, "libtvm_runtime_opencl failed"),
        (
            {"CXX": "", "PATH": "/nonexistent"},
            "need a C++20 compiler and there is none: apt-get install g++, or set CXX",
        ),
    ],
)
def test_a_build_without_a_compiler_says_so(
    source: Path, fresh_environment: Callable[[], tuple[str, Path]], variables: dict[str, str], message: str
) -> None:
    python, site = fresh_environment()
    done = subprocess.run(
        [python, *INSTALL], cwd=source, capture_output=True, text=True, timeout=300, env={**ENVIRONMENT, **variables}
    )
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert not list(site.glob("*romou*"))
