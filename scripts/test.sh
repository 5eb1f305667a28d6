#!/usr/bin/env bash
# Sets everything up, Mesa's mobile compilers and an arm64 Linux included, and runs every check: ruff, mypy and pytest. Arguments go to pytest:
# scripts/test.sh tests/targets -k json; --exhaustive runs what the default run has samples of. Without arguments, a tenth of the long tests runs, another one
# for each content of the checkout (tests/support/suite/drawn.py).
# An active virtual environment is used only if it is complete: Romou and ArchProbe in editable form from this checkout, and all that pyproject.toml asks for.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/setup_env.sh"
cd "$ROOT"

is_complete() {
  [ -n "${VIRTUAL_ENV:-}" ] && "$VIRTUAL_ENV/bin/python" - "$ROOT" > /dev/null 2>&1 <<'PY'
import importlib.metadata, pathlib, sys
from packaging.requirements import Requirement
try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

root = pathlib.Path(sys.argv[1]).resolve()
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]

def check(requirements):
    for one in map(Requirement, requirements):
        if one.name == project["name"]:
            for extra in one.extras:
                check(project["optional-dependencies"][extra])
        elif one.marker is None or one.marker.evaluate():
            assert one.specifier.contains(importlib.metadata.version(one.name), prereleases=True), one

check([*project["dependencies"], "romou[test]"])
# What a package is installed for may still be missing.
from cuda.bindings import nvrtc
nvrtc.nvrtcVersion()
import pyopencl, vulkan
import archprobe, romou
for package in (archprobe, romou):
    assert pathlib.Path(package.__file__).resolve().is_relative_to(root), package
from romou.devices.backends import backend, installed
for kind in installed():
    backend(kind)
from tvm_patches import RUNTIMES, compat
compat.check_versions()
for runtime in RUNTIMES.values():
    assert runtime.is_relative_to(root), runtime
    folders = (runtime.parent, runtime.parents[1] / "device_runtime", root / "third_party" / runtime.parent.name.removesuffix("_runtime"))
    sources = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".cc", ".h")]
    assert runtime.stat().st_mtime >= max(path.stat().st_mtime for path in sources), f"{runtime} was built from older sources"
PY
}

setup_system
python=
if is_complete; then
  VENV=$VIRTUAL_ENV
  say "using the active environment $VENV"
else
  # Tests of packaging install copies of this checkout, and find the objects again.
  cached=${CXX:-}
  if [ -z "$cached" ] && command -v g++ > /dev/null; then cached="$(find_python) '$ROOT/tests/packaging/cached_compiler.py'"; fi
  # Python compiles what it imports; pip would compile every file of some sixty packages. It goes on beside the system's packages.
  CXX=$cached PIP_COMPILE=0 setup_python "[test]" --editable &
  python=$!
fi
# Kotlin's compiler takes half a minute; only exhaustive tests run it.
kotlin=
[[ " $* " != *" --exhaustive "* ]] || kotlin=kotlin
setup_system compilers vulkan arm64 $kotlin
scratch=$(mktemp -d)
# Without mobile compilers some tests are skipped, which pytest's last lines tell; all else is checked. arm64 is a phone's stand-in.
{
  "$ROOT/romou/devices/mobile_compilers/setup.sh" || say "WARNING: no mobile compilers; the tests that need them are SKIPPED"
  [[ $MISSING == *arm64* || $MISSING == *aarch64* ]] || "$ROOT/scripts/setup_arm64.sh"
} > "$scratch/downloads" 2>&1 &
downloads=$!
[ -z "$python" ] || wait "$python" || fail "Romou could not be installed into $VENV"
# A test runs it again, from its cache, over a program that uses every package.
"$VENV/bin/python" -m mypy > "$scratch/mypy" 2>&1 &
mypy=$!
wait "$downloads" || { cat "$scratch/downloads"; exit 1; }
cat "$scratch/downloads"
say "ruff"
"$VENV/bin/python" -m ruff check .
say "mypy"
wait "$mypy" || { cat "$scratch/mypy"; exit 1; }
rm -rf -- "$scratch"
say "pytest"
[ $# -gt 0 ] || set -- --draw "$(git rev-parse 'HEAD^{tree}' 2> /dev/null || echo none)"
# Each worker begins with its share of all tests, so that few files and their fixtures are set up twice; a faster one takes over from others. One more than
# there are cores: while tests wait for servers, devices and time limits, others go on.
[ -n "$MISSING" ] || set -- --all-platforms "$@"
# Memory that a process gives back it soon asks for again: a tenth of all time went into the kernel's pages. Children inherit it.
export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TOP_PAD_=16777216
status=0
"$VENV/bin/python" -m pytest -n "$(($(nproc) + 1))" --dist worksteal "$@" < /dev/null || status=$?
# Where the code grows. It fails nothing.
"$VENV/bin/python" scripts/budget.py || say "WARNING: the tokens of each room could not be counted"
exit "$status"
