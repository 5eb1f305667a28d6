# Sourced by setup.sh and by scripts/setup_arm64.sh of the checkout: programs of Debian for arm64 in a folder of their own, and a qemu that runs them.
#   begin_arm64 DIR               sets `work` to a folder beside DIR, to be filled; fails where DIR holds something, or a tool is missing
#   finish_arm64 DIR              moves it to DIR: a broken download never looks ready
#   fetch_arm64 DIR PACKAGE...    DIR/arm64 (the packages and all that they depend on, unpacked) and DIR/qemu-aarch64; the name and version of each
#                                 package, a line each, in DIR/packages. DIR must be empty.
# Needs apt-get, dpkg-deb and the network, not root: nothing is installed into the system. The sourcing script has `say` and `fail`.

ARM64_SUITE=trixie
# A suite of newer versions, which packages come from where it has them. Empty for none.
ARM64_BACKPORTS=

DEBIAN_KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

begin_arm64() {
  local tool
  if [ -e "$1" ] && [ -n "$(ls -A -- "$1" 2> /dev/null || echo file)" ]; then
    fail "$1 holds something else; give another folder, or remove it"
  fi
  for tool in apt-get apt-config dpkg-deb; do
    command -v "$tool" > /dev/null || fail "$tool is missing; this works on Debian and its descendants"
  done
  [ -f "$DEBIAN_KEYS" ] || fail "$DEBIAN_KEYS is missing; apt-get install debian-archive-keyring"
  mkdir -p "$(dirname -- "$1")"
  work=$(mktemp -d -- "$1.XXXXXX")
  trap 'rm -rf -- "$work"' EXIT
  chmod 755 "$work"
}

finish_arm64() {
  [ ! -d "$1" ] || rmdir -- "$1"
  mv -- "$work" "$1"
  trap - EXIT
}

fetch_arm64() {
  local dir=$1 mirror native apt name
  shift
  # The mirror that the system uses, if it is one of Debian's.
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2> /dev/null | grep -v '^ *#' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ') || true
  mirror=${mirror:-http://deb.debian.org/debian}

  # An apt of its own for arm64: the system's lists and packages stay as they are.
  apt=$dir/apt
  mkdir -p "$apt"/{lists/partial,cache/archives/partial,etc/preferences.d,etc/sources.list.d,etc/apt.conf.d}
  : > "$apt/status"
  native=$(dpkg --print-architecture)
  for name in $ARM64_SUITE $ARM64_BACKPORTS; do
    echo "deb [arch=arm64,$native signed-by=$DEBIAN_KEYS] $mirror $name main"
  done > "$apt/etc/sources.list"
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

  local log=$dir/log
  run() { APT_CONFIG=$apt/apt.conf "$@" >> "$log" 2>&1; }
  why() { grep -E '^[EW]: ' "$log" | grep -m 1 -E '^E: |Failed|Could not' || tail -n 1 "$log"; }
  say "downloading $* for arm64 from $mirror (${ARM64_BACKPORTS:-$ARM64_SUITE})"
  run apt-get update -q || fail "apt-get update: $(why)"
  grep -qE '^(E|Err):' "$log" && fail "apt-get update: $(why)"
  run apt-get install -q -y --target-release "${ARM64_BACKPORTS:-$ARM64_SUITE}" --download-only "$@" || fail "apt-get: $(why)"

  say "unpacking"
  mkdir -p "$dir"/arm64/usr/{lib,bin,sbin}
  for name in lib bin sbin; do ln -s "usr/$name" "$dir/arm64/$name"; done
  for name in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$name" "$dir/arm64" || fail "unpacking $(basename "$name")"
    basename "$name" | cut -d_ -f1-2 | tr _ ' '
  done > "$dir/packages"

  # The suite's own qemu, not the system's: version 10 compiles a kernel three times as fast as version 7.
  (cd "$dir" && run apt-get download -q "qemu-user:$native") || fail "qemu-user: $(why)"
  dpkg-deb -x "$dir"/qemu-user_*.deb "$dir/unpacked" || fail "unpacking qemu-user"
  mv "$dir/unpacked/usr/bin/qemu-aarch64" "$dir/"
  rm -rf -- "$dir"/qemu-user_*.deb "$dir/unpacked"
  "$dir/qemu-aarch64" --version > /dev/null || fail "$ARM64_SUITE's qemu does not run on this machine"
  rm -rf -- "$apt" "$dir"/arm64/usr/share/{doc,locale,man}
}
