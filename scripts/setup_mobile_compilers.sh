#!/usr/bin/env bash
# Fetches Mesa's OpenCL compilers for Adreno (ir3) and Mali (Bifrost), so that `romou inspect --gpu` and scripts/bench_mobile_static.py can ask them.
#   scripts/setup_mobile_compilers.sh [DIR]     default: $ROMOU_MOBILE_COMPILERS, else ~/.cache/romou/mobile_compilers
# Debian builds these drivers for arm64 alone. They run under qemu's user mode with Mesa's own stand-ins for the kernel's DRM drivers, so no GPU is
# needed, and nothing is ever executed on one. About 190 MB to download, 500 MB on disk. Needs apt-get, dpkg-deb and the network, not root: nothing is
# installed into the system.
set -euo pipefail
say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: the mobile compilers could not be set up: %s\n' "$*" >&2; exit 1; }

SUITE=trixie
PACKAGES=(mesa-opencl-icd mesa-drm-shim ocl-icd-libopencl1 python3-minimal libpython3-stdlib)
DIR=${1:-${ROMOU_MOBILE_COMPILERS:-$HOME/.cache/romou/mobile_compilers}}

if [ -f "$DIR/ready.json" ]; then
  say "the mobile compilers are already in $DIR"
  exit 0
fi
if [ -e "$DIR" ] && [ -n "$(ls -A -- "$DIR" 2> /dev/null || echo file)" ]; then
  fail "$DIR holds something else; give another folder, or remove it"
fi
for tool in apt-get apt-config dpkg-deb; do
  command -v "$tool" > /dev/null || fail "$tool is missing; this works on Debian and its descendants"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f "$keyring" ] || fail "$keyring is missing; apt-get install debian-archive-keyring"
# The mirror that the system uses, if it is one of Debian's.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2> /dev/null | grep -v '^ *#' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ') || true
mirror=${mirror:-http://deb.debian.org/debian}

mkdir -p "$(dirname -- "$DIR")"
# Built beside its final place and moved: a broken download never looks ready.
work=$(mktemp -d -- "$DIR.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
chmod 755 "$work"

# An apt of its own for arm64: the system's lists and packages stay as they are.
apt=$work/apt
mkdir -p "$apt"/{lists/partial,cache/archives/partial,etc/preferences.d,etc/sources.list.d,etc/apt.conf.d}
: > "$apt/status"
native=$(dpkg --print-architecture)
echo "deb [arch=arm64,$native signed-by=$keyring] $mirror $SUITE main" > "$apt/etc/sources.list"
{
  cat << X
APT::Architecture "arm64";
APT::Architectures { "arm64"; "$native"; };
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Acquire::Retries "2";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
Dir::Etc "$apt/etc";
Dir::Log "$apt";
X
  # How to reach the network is the system's affair.
  apt-config dump | grep -E '^Acquire::https?::' || true
} > "$apt/apt.conf"

log=$work/log
run() { APT_CONFIG=$apt/apt.conf "$@" >> "$log" 2>&1; }
why() { grep -E '^[EW]: ' "$log" | grep -m 1 -E '^E: |Failed|Could not' || tail -n 1 "$log"; }
say "downloading Mesa's compilers for arm64 from $mirror ($SUITE)"
run apt-get update -q || fail "apt-get update: $(why)"
grep -qE '^(E|Err):' "$log" && fail "apt-get update: $(why)"
run apt-get install -q -y --download-only "${PACKAGES[@]}" || fail "apt-get: $(why)"

say "unpacking"
mkdir -p "$work"/arm64/usr/{lib,bin,sbin}
for folder in lib bin sbin; do ln -s "usr/$folder" "$work/arm64/$folder"; done
for package in "$apt"/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$work/arm64" || fail "unpacking $(basename "$package")"
done
mesa=$(basename "$apt"/cache/archives/mesa-opencl-icd_*_arm64.deb | cut -d_ -f2)

# The suite's own qemu, not the system's: version 10 compiles a kernel three times as fast as version 7.
(cd "$work" && run apt-get download -q "qemu-user:$native") || fail "qemu-user: $(why)"
dpkg-deb -x "$work"/qemu-user_*.deb "$work/unpacked" || fail "unpacking qemu-user"
mv "$work/unpacked/usr/bin/qemu-aarch64" "$work/"
rm -rf -- "$work"/qemu-user_*.deb "$work/unpacked"
"$work/qemu-aarch64" --version > /dev/null || fail "$SUITE's qemu does not run on this machine"
rm -rf -- "$apt" "$work"/arm64/usr/share/{doc,locale,man}
printf '{"mesa": "%s"}\n' "$mesa" > "$work/ready.json"
[ ! -d "$DIR" ] || rmdir -- "$DIR"
mv -- "$work" "$DIR"
trap - EXIT
say "Mesa $mesa is ready in $DIR"
