"""The shell scripts parse, and export the variables and files that other code expects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NAMES = ("demo", "test", "setup_env", "setup_arm64", "build_wheel")
_SOURCED = ("scripts/setup_env.sh", "romou/devices/mobile_compilers/arm64_packages.sh")
_IN_WHEELS = ("romou/devices/mobile_compilers/setup.sh", "tvm_patches/build_phone_runtime.sh")
SCRIPTS = (*(f"scripts/{name}.sh" for name in _NAMES), ".ci/run", _SOURCED[1], *_IN_WHEELS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_parses(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s not in _SOURCED])
def test_script_is_executable(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


def test_setup_knows_the_checkout_from_any_folder(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("VENV", "OCL_ICD_VENDORS")}
    code = f'set -euo pipefail; source "{ROOT}/scripts/setup_env.sh"; echo "$ROOT $VENV $OCL_ICD_VENDORS"; find_python'
    out = subprocess.run(
        ["bash", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert out[0] == f"{ROOT} {ROOT}/.venv /etc/OpenCL/vendors"
    assert "python" in out[1]


@pytest.fixture
def without_apt(tmp_path: Path) -> dict[str, str]:
    """Return an environment without apt-get, sudo, compilers and OpenCL platforms."""
    for tool in ("dirname", "grep", "id", "true"):
        path = shutil.which(tool)
        assert path is not None
        (tmp_path / tool).symlink_to(path)
    environment = {name: value for name, value in os.environ.items() if name not in ("VENV", "CXX")}
    return {
        **environment,
        "PATH": str(tmp_path),
        "PYTHON": sys.executable,
        "OCL_ICD_VENDORS": str(tmp_path / "vendors"),
    }


def setup_system(environment: dict[str, str], *parts: str) -> subprocess.CompletedProcess[str]:
    code = (
        f'set -euo pipefail; source "{ROOT}/scripts/setup_env.sh"; setup_system {" ".join(parts)}; echo'
        ' "MISSING=$MISSING"'
    )
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, "-c", code], env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def test_a_missing_compiler_is_one_sentence_where_nothing_can_be_installed(without_apt: dict[str, str]) -> None:
    done = setup_system(without_apt)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: missing: g++")
    assert "nobody but root can install these: apt-get install g++" in line


def test_the_demo_needs_no_package_and_tests_say_what_they_miss(without_apt: dict[str, str]) -> None:
    found = setup_system({**without_apt, "CXX": "/usr/bin/g++"})
    assert (found.returncode, found.stdout) == (0, "==> system packages: all there\nMISSING=\n")
    found = setup_system({**without_apt, "CXX": "/usr/bin/g++"}, "compilers")
    assert found.returncode == 0, found.stderr
    assert "MISSING=pocl-opencl-icd mesa-opencl-icd" in found.stdout
