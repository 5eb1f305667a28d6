#!/usr/bin/env bash
# Fetches Mesa's OpenCL compilers for Adreno (ir3) and Mali (Bifrost), so that `romou inspect --gpu` and benchmarks/bench_mobile_static.py can ask them.
#   romou setup mobile-compilers [--mesa 25|26] [DIR]
# DIR is $ROMOU_MOBILE_COMPILERS, else ~/.cache/romou/mobile_compilers, with _26 at its end for Mesa 26, which compiles for Adreno 8xx as well.
# Debian builds these drivers for arm64 alone. They run under qemu's user mode with Mesa's own stand-ins for the kernel's DRM drivers, so no GPU is
# needed, and nothing is ever executed on one. About 190 MB to download, 500 MB on disk. Needs apt-get, dpkg-deb and the network, not root: nothing is
# installed into the system.
set -euo pipefail
say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: the mobile compilers could not be set up: %s\n' "$*" >&2; exit 1; }
source "$(dirname -- "${BASH_SOURCE[0]}")/arm64_packages.sh"

PACKAGES=(mesa-opencl-icd mesa-drm-shim ocl-icd-libopencl1 python3-minimal libpython3-stdlib)
MESA=25
if [ "${1:-}" = --mesa ]; then MESA=${2:-}; shift 2; fi
case $MESA in
  25) END= ;;
  26) END=_26 ARM64_BACKPORTS=trixie-backports ;;
  *) fail "--mesa takes 25 or 26, not '$MESA'" ;;
esac
DIR=${1:-${ROMOU_MOBILE_COMPILERS:-$HOME/.cache/romou/mobile_compilers}$END}

if [ -f "$DIR/ready.json" ]; then
  [ "$MESA" = 25 ] || grep -q "\"$MESA\." "$DIR/ready.json" || fail "$DIR holds an older Mesa than $MESA; give another folder"
  say "the mobile compilers are already in $DIR"
  exit 0
fi
begin_arm64 "$DIR"

fetch_arm64 "$work" "${PACKAGES[@]}"
mesa=$(sed -n 's/^mesa-opencl-icd //p' "$work/packages")
printf '{"mesa": "%s"}\n' "$mesa" > "$work/ready.json"
finish_arm64 "$DIR"
say "Mesa $mesa is ready in $DIR"
