"""The built wheel, installed in a fresh virtual environment, tunes from another folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from small_networks import residual_net

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(wheel: Path, fresh_environment: Callable[[], tuple[str, Path]]) -> str:
    """An environment that has Romou from the wheel alone."""
    inside, site = fresh_environment()
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)], check=True, stdin=subprocess.DEVNULL)
    return inside


def test_what_is_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "romou/api/tune.py",
        "romou/schedules/contraction/form.py",
        "romou/tvm_patches/opencl_runtime/libtvm_runtime_opencl.so",
        "romou/deploy/run_model.cc",
        "romou/tvm_patches/opencl_runtime/module.cc",
        "romou/hardware/devices/adreno640.json",
        "romou/models/resnet18.onnx",
        "romou/search/pretrained_models/opencl_nvidia_h200.ubj.gz",
        "romou/search/pretrained_models/columns.txt",
    ):
        assert wanted in names
    assert wheel.name.startswith("romou-0.1.0-py3-none-")
    assert not [name for name in names if name.startswith(("tests/", "schedules/", "tvm_patches/"))]


def test_it_tunes_from_another_folder(python: str, tmp_path: Path) -> None:
    onnx.save(residual_net(), tmp_path / "small.onnx")
    code = """
import pathlib, sys
import tvm
assert tvm.opencl(0).exist
import romou
assert pathlib.Path(romou.__file__).is_relative_to(sys.prefix), romou.__file__
tuned = romou.tune("small.onnx", target="opencl -device=host", trials=8)
assert tuned.summary().is_right
tuned.save("small.romou")
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([python, "-c", code], check=True, cwd=tmp_path, env=environment)
    done = subprocess.run(
        [python, "-m", "romou.cli", "run", "small.romou", "--json"], check=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [1, 7]


def test_it_works_inside_a_checkout(python: str) -> None:
    """The folder romou/ of the checkout must not stand in for the installed package, in the child processes neither."""
    code = "import sys; sys.path = [p for p in sys.path if p]; from romou.cli import main; main()"
    done = subprocess.run([python, "-c", code, "doctor", "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
