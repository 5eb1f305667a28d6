# Sourced by demo.sh and test.sh: system packages and a Python virtual environment with Romou in it.
#   setup_system [compilers] [vulkan] [arm64] [kotlin]   what Romou is built with (g++, Python's venv), by apt-get where something is missing; with "compilers" OpenCL
#                                   for the CPU by PoCL and rusticl, its ICD loader, Oclgrind, and ssh; with "vulkan" Vulkan for the CPU (lavapipe), its loader,
#                                   glslang, and what tests check shaders and calls with (spirv-val, the validation layer); with "arm64" the cross compiler
#                                   for arm64; with "kotlin" its compiler and a JDK. Where apt-get or root is out of reach, what tests can do without is left out: MISSING names it. What nothing
#                                   can do without ends the script.
#   setup_python EXTRAS [OPTIONS]   $VENV (default .venv in the checkout) with what `pip install` would bring; EXTRAS is "[cpu]" or "[test]"; both bring an
#                                   OpenCL driver
# Needs bash and python3 3.10 or newer; Debian or Ubuntu for the system part.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$ROOT/.venv}
MISSING=
# Where the system lists its platforms; some ICD loaders look elsewhere by themselves.
export OCL_ICD_VENDORS=${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}

say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Not through a pipe: grep ends at the first hit, and the broken pipe would count as a failure of ldconfig.
has_library() { grep -q "$1\.so\.1" <<< "$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null)"; }
has_platform() { [ -f "$OCL_ICD_VENDORS" ] || [ -f "$OCL_ICD_VENDORS/$1.icd" ]; }
has_compiler() { [ -n "${CXX:-}" ] || command -v g++ > /dev/null || command -v clang++ > /dev/null; }

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
  local needed=() wanted=() sudo=()
  has_compiler || needed+=(g++)
  find_python > /dev/null || needed+=(python3)
  # A Python from elsewhere may bring venv along; Debian's own has it in a package apart.
  [ -x "$VENV/bin/python" ] || "$(find_python || echo python3)" -c 'import venv, ensurepip' 2>/dev/null || needed+=(python3-venv)
  if [[ " $* " = *" compilers "* ]]; then
    has_platform pocl || wanted+=(pocl-opencl-icd)
    has_platform rusticl || wanted+=(mesa-opencl-icd)
    # Opens reports, as a reader's browser does.
    # A tunnel is tested with a server of ssh's own; nothing starts it but that test.
    [ -x /usr/sbin/sshd ] || wanted+=(openssh-server)
    command -v ssh > /dev/null || wanted+=(openssh-client)
    command -v chromium > /dev/null || command -v google-chrome > /dev/null || wanted+=(chromium)
    has_library libOpenCL || wanted+=(ocl-icd-libopencl1)
    [ -f /usr/lib/oclgrind/liboclgrind-rt.so ] || wanted+=(oclgrind)
  fi
  if [[ " $* " = *" vulkan "* ]]; then
    { compgen -G "/usr/share/vulkan/icd.d/*.json" || compgen -G "/etc/vulkan/icd.d/*.json"; } > /dev/null || wanted+=(mesa-vulkan-drivers)
    has_library libvulkan || wanted+=(libvulkan1)
    command -v glslangValidator > /dev/null || wanted+=(glslang-tools)
    command -v spirv-val > /dev/null || wanted+=(spirv-tools)
    [ -f /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json ] || wanted+=(vulkan-validationlayers)
  fi
  [[ " $* " != *" arm64 "* ]] || command -v aarch64-linux-gnu-g++ > /dev/null || wanted+=(g++-aarch64-linux-gnu)
  if [[ " $* " = *" kotlin "* ]]; then
    command -v kotlinc > /dev/null || wanted+=(kotlin)
    command -v javac > /dev/null || wanted+=(default-jdk-headless)
  fi
  # Headers for the extension that setup.py builds are inside the TVM wheel; no -dev package is needed.
  [ $((${#needed[@]} + ${#wanted[@]})) -gt 0 ] || { say "system packages: all there"; return; }
  # Asks for a password where there is somebody to type it.
  if [ "$(id -u)" -ne 0 ]; then
    sudo=(sudo)
    [ -t 0 ] || sudo+=(-n)
  fi
  if command -v apt-get > /dev/null && "${sudo[@]}" true 2> /dev/null; then
    say "installing ${needed[*]} ${wanted[*]}"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq < /dev/null
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${needed[@]}" "${wanted[@]}" < /dev/null > /dev/null
  elif [ ${#needed[@]} -gt 0 ]; then
    fail "missing: ${needed[*]}. Romou's runtime is compiled with a C++20 compiler; nobody but root can install these: apt-get install ${needed[*]}"
  else
    MISSING=${wanted[*]}
    say "WARNING: $MISSING cannot be installed without root and apt-get; tests that need them are skipped or fail"
  fi
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
  # uv takes a tenth of pip's time. It does not read pip's settings (a mirror, a proxy's certificate): where it fails, pip says why or succeeds.
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv < /dev/null \
    && "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" "$@" "$ROOT$extras" < /dev/null \
    || "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@" "$ROOT$extras" < /dev/null
}
