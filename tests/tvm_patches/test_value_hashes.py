"""Romou works with tvm-ffi 0.1.15, too, for which TVM 0.27 was not built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "0.1.15.post2"
PLAIN = """
import tvm_patches.value_hashes
tvm_patches.value_hashes.replace_c_functions = lambda: None
import tvm
tvm.ir.save_json(tvm.tirx.Var("x", "int32"))
"""
# Each candidate is sent to a worker, and a saved model has its host code, both as JSON.
TUNED = f"""
import numpy as np, romou, tvm, tvm_ffi
from support.models.small_networks import prime_net
assert tvm_ffi.__version__ == {VERSION!r}
x = tvm.tirx.Var("x", "int32")
assert str(tvm.ir.load_json(tvm.ir.save_json(x + 1))) == "x + 1"
tuned = romou.tune(prime_net(), target="opencl -device=host", trials=4, work_dir=False, progress=False)
summary = tuned.summary()
assert summary.relative_l2_error < 1e-4 and sum(row.trials for row in summary.rows) >= 4
inputs = {{name: np.ones(shape, dtype) for name, (shape, dtype) in tuned.inputs.items()}}
again = romou.load(tuned.save("tuned.romou"))
assert np.array_equal(tuned.run(inputs)[0], again.run(inputs)[0])
"""


@pytest.fixture(scope="module")
def other_ffi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ffi")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, f"apache-tvm-ffi=={VERSION}"], check=True, stdin=subprocess.DEVNULL)
    return folder


def run(program: str, ffi: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # Modules beside this environment's come before them.
    paths = [str(ffi), *(path for path in sys.path if path and not path.endswith("site-packages"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def test_a_model_is_tuned_saved_and_loaded(other_ffi: Path, tmp_path: Path) -> None:
    done = run(TUNED, other_ffi, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_functions_are_still_needed(other_ffi: Path, tmp_path: Path) -> None:
    """Drop tvm_patches/value_hashes.py when this fails with a newer TVM."""
    assert run(PLAIN, other_ffi, tmp_path).returncode < 0
