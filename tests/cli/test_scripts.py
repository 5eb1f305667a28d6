"""The shell scripts parse, and what they export and find is what the rest expects."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NAMES = ("demo", "test", "setup_env", "arm64_packages", "setup_arm64", "setup_mobile_compilers", "build_phone_runtime")
SCRIPTS = (*(f"scripts/{name}.sh" for name in _NAMES), ".ci/run")


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_parses(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s not in ("scripts/setup_env.sh", "scripts/arm64_packages.sh")])
def test_script_is_executable(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


def test_setup_knows_the_checkout_from_any_folder(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("VENV", "OCL_ICD_VENDORS")}
    code = f'set -euo pipefail; source "{ROOT}/scripts/setup_env.sh"; echo "$ROOT $VENV $OCL_ICD_VENDORS"; find_python'
    out = subprocess.run(["bash", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == f"{ROOT} {ROOT}/.venv /etc/OpenCL/vendors"
    assert "python" in out[1]
