#!/usr/bin/env bash
# Sets up an arm64 Linux with OpenCL to run under qemu's user mode, where a phone is missing: it runs what `romou phone build` makes for linux-arm64.
#   scripts/setup_arm64.sh [DIR]     default: ~/.cache/romou/arm64; afterwards DIR/run PROGRAM ARGUMENT... runs an arm64 program with PoCL's OpenCL
# About 150 MB to download, 450 MB on disk. Needs apt-get, dpkg-deb and the network, not root: nothing is installed into the system. To run kernels,
# it needs Debian's cross linker (apt-get install g++-aarch64-linux-gnu): PoCL links every kernel, and an arm64 linker cannot be called from inside qemu.
set -euo pipefail
say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: arm64 could not be set up: %s\n' "$*" >&2; exit 1; }
source "$(dirname -- "${BASH_SOURCE[0]}")/../romou/devices/mobile_compilers/arm64_packages.sh"

DIR=${1:-$HOME/.cache/romou/arm64}
command -v aarch64-linux-gnu-ld > /dev/null || fail "aarch64-linux-gnu-ld is missing: apt-get install g++-aarch64-linux-gnu (Debian, Ubuntu)"
# The program that runs others, in folder $1. Its processor has no pointer authentication, which Debian's programs use in every function: emulating that
# takes as long as all else.
write_run() {
  cat > "$1/run.$$" << 'X'
#!/bin/sh
# Runs an arm64 program with PoCL's OpenCL: run PROGRAM ARGUMENT...
root=$(cd -- "$(dirname -- "$0")" && pwd)
libraries=$root/arm64/usr/lib/aarch64-linux-gnu
exec "$root/qemu-aarch64" -cpu neoverse-n1 -L "$root/arm64" \
  -E LD_LIBRARY_PATH="$libraries" -E OCL_ICD_VENDORS="$root/arm64/etc/OpenCL/vendors" \
  -E COMPILER_PATH="$root/linker" -E LIBRARY_PATH="$(echo "$root"/arm64/usr/lib/gcc/aarch64-linux-gnu/*):$libraries" "$@"
X
  chmod 755 "$1/run.$$"
  mv -- "$1/run.$$" "$1/run"
}

if [ -f "$DIR/packages" ] && [ -x "$DIR/run" ]; then
  # One of an older version may have been slower.
  write_run "$DIR"
  say "arm64 is already in $DIR"
  exit 0
fi
begin_arm64 "$DIR"
fetch_arm64 "$work" pocl-opencl-icd ocl-icd-libopencl1

# PoCL asks clang to link, and clang looks for `ld` here first. It is this machine's, told where arm64's libraries are.
mkdir "$work/linker"
cat > "$work/linker/ld" << 'X'
#!/bin/sh
exec aarch64-linux-gnu-ld --sysroot="$(dirname -- "$(dirname -- "$0")")/arm64" "$@"
X
chmod 755 "$work/linker/ld"
write_run "$work"
finish_arm64 "$DIR"
say "arm64 with PoCL $(sed -n 's/^libpocl2t64 //p' "$DIR/packages") is ready in $DIR"
