"""The wheel on a machine with Python and nothing else. pip brings the OpenCL driver and the linker."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from support.models.small_networks import short_net
from support.suite.exhaustive import exhaustive

ROOT = Path(__file__).parents[2]
# A checkout on the path counts as installed for pip.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
WORKFLOW = ROOT / "docs/guide/ci/github-actions.yml"


def _interpreter(version: str) -> str:
    """Return a Python of this version: of PATH, or of pyenv. Without one, skip the test."""
    # pyenv has a program on PATH for each version, which fails unless that version is the chosen one.
    found = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")))
    found += [path] if (path := shutil.which(f"python{version}")) else []
    if not found:
        pytest.skip(f"there is no Python {version}")
    return found[0]


def _bare(folder: Path) -> dict[str, str]:
    """Return an environment whose PATH is empty, and in which the system has no driver for OpenCL or Vulkan."""
    nothing = folder / "nothing"
    nothing.mkdir()
    drivers = {"OCL_ICD_VENDORS": str(nothing), "VK_DRIVER_FILES": os.devnull, "VK_ICD_FILENAMES": os.devnull}
    return {"HOME": str(folder), "PATH": str(nothing), "LANG": "C.UTF-8", **drivers}


@exhaustive
@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_doctor_tune_and_run(version: str, wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python3"
    subprocess.run([_interpreter(version), "-m", "venv", str(tmp_path / "venv")], check=True, env=ENVIRONMENT)
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[cpu,linker]"]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
    romou, environment = str(python.with_name("romou")), _bare(tmp_path)
    said = {}
    for words in ("version", "doctor", "tune bundled:squeezenet1_0 --trials 4 -o s.romou", "run s.romou"):
        command = [romou, *words.split()]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        said[words.split()[0]] = done.stdout
    assert f"python {version}." in said["version"]
    assert "from PyPI's intel-opencl-rt" in said["doctor"]
    assert "BAD" not in said["doctor"]
    assert re.search(r"relative L2 error \d\.\d+e-0[67]\.", said["tune"]), said["tune"]
    assert "float32 [1, 1000]" in said["run"]
    _run_workflow(romou, environment, tmp_path)


def _run_workflow(romou: str, environment: dict[str, str], folder: Path) -> None:
    """Run the commands of the workflow for a hosted CI: first those of main, which make the baseline."""
    text = WORKFLOW.read_text(encoding="utf-8")
    target = re.findall(r"^  TARGET: ([^#\n]+)", text, re.MULTILINE)[0].strip()
    onnx.save(short_net(), folder / "model.onnx")
    lines = re.findall(r"(?:run: |^ +)romou (.+)$", text, re.MULTILINE)
    for name in ("bench", "compare"):
        (line,) = (line for line in lines if line.startswith(name))
        words = shlex.split(line.replace("$MODEL", "model.onnx").replace("$TARGET", target))
        done = subprocess.run([romou, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        # 1: slower by more than 5%, as a busy machine may be.
        assert done.returncode in ((0, 1) if name == "compare" else (0,)), (words, done.stdout, done.stderr)
    assert "|" in (folder / "kernels.md").read_text(encoding="utf-8")
    assert "<testsuite" in (folder / "kernels.xml").read_text(encoding="utf-8")
