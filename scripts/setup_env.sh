# Sourced by demo.sh and test.sh: system packages and a Python virtual environment with Romou in it.
#   setup_system [vulkan] [arm64]   OpenCL for the CPU (PoCL), an ICD loader, g++ and venv, by apt-get where something is missing; with "vulkan"
#                                   Vulkan for the CPU (lavapipe), its loader and glslang, too; with "arm64" the cross compiler for arm64
#   setup_python EXTRAS             $VENV (default .venv in the checkout) with `pip install`; EXTRAS is "" or "[test]"
# Needs bash, Debian or Ubuntu for the system part, and python3 3.10 or newer.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$ROOT/.venv}
# Where the system lists its platforms; some ICD loaders look elsewhere by themselves.
export OCL_ICD_VENDORS=${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}

say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Not through a pipe: grep ends at the first hit, and the broken pipe would count as a failure of ldconfig.
has_library() { grep -q "$1\.so\.1" <<< "$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null)"; }
has_platform() { [ -f "$OCL_ICD_VENDORS" ] || compgen -G "$OCL_ICD_VENDORS/*.icd" > /dev/null; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

setup_system() {
  local wanted=() missing
  has_platform || wanted+=(pocl-opencl-icd)
  has_library libOpenCL || wanted+=(ocl-icd-libopencl1)
  command -v g++ > /dev/null || wanted+=(g++)
  if [[ " $* " = *" vulkan "* ]]; then
    { compgen -G "/usr/share/vulkan/icd.d/*.json" || compgen -G "/etc/vulkan/icd.d/*.json"; } > /dev/null || wanted+=(mesa-vulkan-drivers)
    has_library libvulkan || wanted+=(libvulkan1)
    command -v glslangValidator > /dev/null || wanted+=(glslang-tools)
  fi
  [[ " $* " != *" arm64 "* ]] || command -v aarch64-linux-gnu-g++ > /dev/null || wanted+=(g++-aarch64-linux-gnu)
  find_python > /dev/null || wanted+=(python3)
  # A Python from elsewhere may bring venv along; Debian's own has it in a package apart.
  "$(find_python || echo python3)" -c 'import venv, ensurepip' 2>/dev/null || wanted+=(python3-venv)
  # Headers for the extension that setup.py builds are inside the TVM wheel; no -dev package is needed.
  [ ${#wanted[@]} -gt 0 ] || { say "system packages: all there"; return; }
  missing="${wanted[*]}"
  command -v apt-get > /dev/null || fail "missing: $missing. This script installs them with apt-get, which is not here; install them yourself and run it again."
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || fail "missing: $missing. Run as root, or install sudo, or run: apt-get install $missing"
    sudo=(sudo)
  fi
  say "installing $missing"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq < /dev/null
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" < /dev/null > /dev/null
  find_python > /dev/null || fail "python3 is older than 3.10; set PYTHON to a newer one"
}

setup_python() {
  local python extras=$1
  shift
  if [ ! -x "$VENV/bin/python" ]; then
    python=$(find_python) || fail "no python3 of version 3.10 or newer; set PYTHON to one"
    say "making $VENV with $python"
    "$python" -m venv "$VENV"
  fi
  say "installing Romou into $VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@" "$ROOT$extras" < /dev/null
}
