#!/usr/bin/env bash
# Sets everything up, Mesa's mobile compilers and an arm64 Linux included, and runs every check: ruff, mypy and pytest. Arguments go to pytest: scripts/test.sh tests/target -k json
# An active virtual environment is used only if it is complete (Romou and ArchProbe in editable form from this checkout,
# what both need, and the test tools).
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/setup_env.sh"
cd "$ROOT"

is_complete() {
  [ -n "${VIRTUAL_ENV:-}" ] && "$VIRTUAL_ENV/bin/python" - "$ROOT" > /dev/null 2>&1 <<'PY'
import pathlib, sys
from cuda.bindings import nvrtc
nvrtc.nvrtcVersion()
import hypothesis, jsonschema, matplotlib, mypy, pyopencl, pytest, ruff, vulkan, xdist  # noqa: F401
import archprobe, romou
for package in (archprobe, romou):
    assert pathlib.Path(package.__file__).resolve().is_relative_to(pathlib.Path(sys.argv[1]).resolve())
import tvm
# The newest functions of the OpenCL runtime: one that lacks them was built from older sources.
assert all(tvm.get_global_func(name, allow_missing=True) is not None for name in ("romou.rpc.versions", "romou.rpc.module_of", "romou.opencl.failure"))
PY
}

setup_system vulkan arm64
if is_complete; then
  VENV=$VIRTUAL_ENV
  say "using the active environment $VENV"
else
  setup_python "[test]" --editable
fi
# Without them some tests are skipped, which pytest's last lines tell; all else is checked.
"$ROOT/scripts/setup_mobile_compilers.sh" || say "WARNING: no mobile compilers; the tests that need them are SKIPPED"
# A phone's stand-in, and the runtime that it runs. The tests would do both by themselves, but each of their processes at the same time.
"$ROOT/scripts/setup_arm64.sh"
runtime=$(mktemp -d)
PYTHON=$VENV/bin/python CXXFLAGS=-O1 "$ROOT/scripts/build_phone_runtime.sh" --target linux-arm64 --out "$runtime"
rm -rf -- "$runtime"
say "ruff"
"$VENV/bin/python" -m ruff check .
say "mypy"
"$VENV/bin/python" -m mypy
say "pytest"
exec "$VENV/bin/python" -m pytest -n 2 "$@" < /dev/null
