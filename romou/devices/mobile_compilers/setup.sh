#!/usr/bin/env bash
# Fetches Mesa's OpenCL compilers for Adreno (ir3) and Mali (Bifrost), so that `romou inspect --gpu` and benchmarks/bench_mobile_static.py can ask them.
#   romou setup mobile-compilers [DIR]     default: $ROMOU_MOBILE_COMPILERS, else ~/.cache/romou/mobile_compilers
# Debian builds these drivers for arm64 alone. They run under qemu's user mode with Mesa's own stand-ins for the kernel's DRM drivers, so no GPU is
# needed, and nothing is ever executed on one. About 190 MB to download, 500 MB on disk. Needs apt-get, dpkg-deb and the network, not root: nothing is
# installed into the system.
set -euo pipefail
say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: the mobile compilers could not be set up: %s\n' "$*" >&2; exit 1; }
source "$(dirname -- "${BASH_SOURCE[0]}")/arm64_packages.sh"

PACKAGES=(mesa-opencl-icd mesa-drm-shim ocl-icd-libopencl1 python3-minimal libpython3-stdlib)
DIR=${1:-${ROMOU_MOBILE_COMPILERS:-$HOME/.cache/romou/mobile_compilers}}

if [ -f "$DIR/ready.json" ]; then
  say "the mobile compilers are already in $DIR"
  exit 0
fi
begin_arm64 "$DIR"

fetch_arm64 "$work" "${PACKAGES[@]}"
mesa=$(sed -n 's/^mesa-opencl-icd //p' "$work/packages")
printf '{"mesa": "%s"}\n' "$mesa" > "$work/ready.json"
finish_arm64 "$DIR"
say "Mesa $mesa is ready in $DIR"
