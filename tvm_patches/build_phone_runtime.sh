#!/usr/bin/env bash
# Builds the folder that a phone needs: an RPC server, TVM's runtime, tvm-ffi and Romou's OpenCL and Vulkan runtimes, from the sources in the installed wheels and
# those beside this file. No TVM checkout is needed.
#   romou phone build [--target android-arm64|linux-arm64|host] --out DIR      default: android-arm64; `romou phone push DIR` comes next
# android-arm64  the NDK (r26 or newer) that ANDROID_NDK_HOME names
# linux-arm64    Debian's cross compiler (apt-get install g++-aarch64-linux-gnu)
# host           this machine, to try the server out: the wheels' own libraries, only the server is compiled
# Apps link against libromou.so (romou.h); the folder has romou_bench, too.
# What is compiled is kept in ~/.cache/romou/phone_runtime, by versions, compiler and sources; a minute or two the first time.
set -euo pipefail
PATCHES=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# A wheel has the headers here, a checkout beside this folder.
HEADERS=$PATCHES/third_party
[ -d "$HEADERS" ] || HEADERS=${PATCHES%/*}/third_party
say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: the phone runtime was not built: %s\n' "$*" >&2; exit 1; }

TARGET=android-arm64 OUT=
while [ $# -gt 0 ]; do
  case $1 in
    --target) TARGET=${2:-}; shift ;;
    --out) OUT=${2:-}; shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown argument $1; see --help" ;;
  esac
  shift || fail "--target and --out need a value"
done
[ -n "$OUT" ] || fail "--out DIR is missing"
if [ -e "$OUT" ] && [ ! -f "$OUT/runtime.json" ] && [ -n "$(ls -A -- "$OUT" 2> /dev/null || echo file)" ]; then
  fail "$OUT holds something else; give another folder, or remove it"
fi

# ---- the compiler
API=24 # Android 7: the first whose linker finds libraries beside a program
case $TARGET in
  android-arm64)
    [ -n "${ANDROID_NDK_HOME:-}" ] || fail "ANDROID_NDK_HOME is not set. Get the NDK from https://developer.android.com/ndk/downloads, unpack it, and set ANDROID_NDK_HOME to its folder"
    toolchain=$(compgen -G "$ANDROID_NDK_HOME/toolchains/llvm/prebuilt/*" | head -n 1) || true
    [ -x "${toolchain:-}/bin/clang++" ] || fail "ANDROID_NDK_HOME=$ANDROID_NDK_HOME holds no toolchains/llvm/prebuilt/*/bin/clang++; it must be the folder of an NDK, r26 or newer, from https://developer.android.com/ndk/downloads"
    CXX=("$toolchain/bin/clang++" "--target=aarch64-linux-android$API")
    LINK=(-ldl -Wl,-z,max-page-size=16384)
    libcxx=$toolchain/sysroot/usr/lib/aarch64-linux-android/libc++_shared.so
    [ -f "$libcxx" ] || fail "$libcxx is missing; the NDK in ANDROID_NDK_HOME must be r26 or newer"
    ;;
  linux-arm64)
    command -v aarch64-linux-gnu-g++ > /dev/null || fail "aarch64-linux-gnu-g++ is missing: apt-get install g++-aarch64-linux-gnu (Debian, Ubuntu)"
    CXX=(aarch64-linux-gnu-g++)
    LINK=(-ldl -lpthread)
    ;;
  host)
    command -v "${CXX:-g++}" > /dev/null || fail "g++ is missing: apt-get install g++"
    CXX=("${CXX:-g++}")
    LINK=(-ldl -lpthread)
    ;;
  *) fail "unknown target '$TARGET'; there are android-arm64, linux-arm64 and host" ;;
esac

# ---- the wheels
python=
for candidate in "${PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${PATCHES%/*}/.venv/bin/python" python3; do
  if [ -n "$candidate" ] && "$candidate" -c 'import tvm_ffi, importlib.util as u, sys; sys.exit(u.find_spec("tvm") is None)' 2> /dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || fail "no Python with apache-tvm: install Romou, or set PYTHON"
{ read -r TVM; read -r FFI; read -r TVM_VERSION; read -r FFI_VERSION; read -r ROMOU_VERSION; } < <("$python" - "$PATCHES" << 'PY'
import importlib.util, pathlib, re, sys
from importlib.metadata import version

for package in ("tvm", "tvm_ffi"):
    print(pathlib.Path(importlib.util.find_spec(package).origin).parent)
patches = pathlib.Path(sys.argv[1])
checks = (patches / "compat.py").read_text(encoding="utf-8")
for package in ("apache-tvm", "apache-tvm-ffi"):
    pinned = re.search(rf'"{package}": "([^"]+)"', checks)[1]
    if version(package) != pinned:
        sys.exit(f"{package} {version(package)} is installed, {pinned} is needed: pip install {package}=={pinned}")
    print(pinned)
print(re.search(r'^__version__ = "([^"]+)"', (patches / "version.py").read_text(encoding="utf-8"), re.M)[1])
PY
)
[ -n "${ROMOU_VERSION:-}" ] || fail "the installed TVM packages are not the pinned pair; install Romou again"

# ---- compiling
CACHE=$HOME/.cache/romou/phone_runtime/$TARGET
mkdir -p "$CACHE"
# Two of them at the same time: the second one finds all compiled.
if command -v flock > /dev/null; then exec 9> "$CACHE/lock" && flock 9; fi
WORK=$(mktemp -d -- "$CACHE/work.XXXXXX")
trap 'rm -rf -- "$WORK"' EXIT
INCLUDES=(-I"$PATCHES/app_runtime" -I"$PATCHES/phone_runtime/include" -I"$PATCHES/device_runtime" -I"$PATCHES/device_runtime/shim" -isystem"$TVM/include" -isystem"$FFI/include" -isystem"$FFI/3rdparty/dlpack/include")
read -ra optimise <<< "${CXXFLAGS:--O2}"
COMPILE=(-std=c++20 "${optimise[@]}" -fPIC -DNDEBUG)
DEFINES=(-DROMOU_TVM_VERSION="\"$TVM_VERSION\"" -DROMOU_TVM_FFI_VERSION="\"$FFI_VERSION\"" -DROMOU_VERSION="\"$ROMOU_VERSION\"")
JOBS=$(nproc 2> /dev/null || echo 2)
COMPILER_VERSION=$("${CXX[@]}" --version | head -n 1) || fail "${CXX[0]} does not run"

# build NAME LINK-FLAGS... -- COMPILE-FLAGS... -- SOURCE...      starts to compile, unless the cache has NAME; `link` comes last
names=()
declare -A keys links
build() {
  local name=$1 flags=() more=() key
  shift
  while [ "$1" != -- ]; do flags+=("$1"); shift; done
  shift
  while [ "$1" != -- ]; do more+=("$1"); shift; done
  shift
  key=$({
    echo "$COMPILER_VERSION" "${CXX[*]}" "${COMPILE[*]}" "${DEFINES[*]}" "${LINK[*]}" "${flags[*]/$WORK/}" "${more[*]/$WORK/}"
    # TVM's sources are told by their version; ours, and the one that is changed, by what is in them.
    printf '%s\n' "${@#"$WORK"}"
    find "$PATCHES"/{phone,device,opencl,vulkan}_runtime "$HEADERS" -type f -name '*.h' -print0 | sort -z | xargs -0 cat
    for source in "$@"; do case $source in "$PATCHES"/* | "$WORK"/src/runtime/vm/executable.cc) cat "$source" ;; esac; done
    case $1 in "$PATCHES"/app_runtime/*) cat "$PATCHES"/app_runtime/*.h* ;; esac
  } | sha256sum | cut -c1-24)
  names+=("$name") keys[$name]=$key links[$name]=${flags[*]@Q}
  if [ -f "$CACHE/$key/$name" ] || [ -f "$CACHE/$key/$name.o" ]; then return 0; fi
  while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do sleep 0.1; done
  say "compiling $name for $TARGET, files: $#"
  # All sources in one: the compiler reads TVM's headers once, which is most of its work.
  printf '#include "%s"\n' "$@" > "$WORK/$name.cc"
  mkdir -p "$CACHE/$key"
  # The object says by its name that it is whole: bash forgets how a job ended if many processes end after it.
  { "${CXX[@]}" "${COMPILE[@]}" "${DEFINES[@]}" "${more[@]}" "${INCLUDES[@]}" -c "$WORK/$name.cc" -o "$WORK/$name.o" && mv "$WORK/$name.o" "$CACHE/$key/"; } &
}

# Links what was compiled, in the order of the calls of `build`, and puts all into $NEW. Objects stay in the cache until they are linked.
link() {
  local name kept
  wait
  for name in "${names[@]}"; do
    kept=$CACHE/${keys[$name]}
    if [ ! -f "$kept/$name" ]; then
      [ -f "$kept/$name.o" ] || fail "compiling $name; the compiler's message stands above"
      eval "local flags=(${links[$name]})"
      "${CXX[@]}" -o "$WORK/$name" "$kept/$name.o" "${flags[@]}" -Wl,-rpath,'$ORIGIN' "${LINK[@]}" || fail "linking $name; the linker's message stands above"
      mv "$WORK/$name" "$kept/$name"
      rm -f "$kept/$name.o"
    fi
    cp "$kept/$name" "$NEW/"
  done
}

# Built beside its place in the cache and moved: a broken build never looks ready.
NEW=$WORK/phone
mkdir "$NEW"
if [ "$TARGET" = host ]; then
  mapfile -t devices < <("$python" -c 'import tvm_patches as p; print(*p.RUNTIMES.values(), sep="\n")')
  for library in "${devices[@]:-none}"; do [ -f "$library" ] || fail "Romou is not installed for $python"; done
  cp "$FFI/lib/libtvm_ffi.so" "$TVM/lib/libtvm_runtime.so" "${devices[@]}" "$NEW/"
else
  # The wheel lacks headers that its sources name relative to themselves; those in phone_runtime/support stand in for them.
  mkdir -p "$WORK/src"
  cp -r "$TVM/src/runtime" "$WORK/src/runtime"
  cp -r "$PATCHES/phone_runtime/support" "$WORK/src/support"
  runtime=$WORK/src/runtime
  # A warning for each constant in an image, at each start of an app.
  sed -i '/LOG(WARNING) << "Scope /d' "$runtime/vm/executable.cc"
  ffi=("$FFI"/src/ffi/{container,custom_allocator,dtype,error,function,init_once,object,tensor,backtrace}.cc)
  for source in "$FFI"/src/ffi/extra/*.cc; do ffi+=("$source"); done
  # What a model and an RPC session need: no compiler's output formats, no pipes between processes, no language-model caches, no NVIDIA.
  tvm=("$runtime"/{const_loader_module,cpu_device_api,device_api,file_utils,logging,module,tensor,thread_pool,threading_backend,timer,workspace_pool}.cc)
  tvm+=("$runtime/memory/memory_manager.cc" "$runtime"/vm/{builtin,bytecode,executable,vm}.cc)
  tvm+=("$runtime"/rpc/rpc_{channel,device_api,endpoint,event_impl,local_session,module,server_env,session,socket_impl}.cc)
  build libtvm_ffi.so -shared -Wl,-soname,libtvm_ffi.so -- -w -DTVM_FFI_USE_LIBBACKTRACE=0 -- "${ffi[@]}"
  build libtvm_runtime.so -shared -Wl,-soname,libtvm_runtime.so -Wl,--no-undefined -L"$NEW" -ltvm_ffi -- -w -- "${tvm[@]}"
  for kind in opencl vulkan; do
    build "libtvm_runtime_$kind.so" -shared -Wl,-soname,"libtvm_runtime_$kind.so" -Wl,--no-undefined -L"$NEW" -ltvm_runtime -ltvm_ffi \
      -- -fvisibility=hidden -Wall -I"$PATCHES/${kind}_runtime" -isystem"$HEADERS/$kind" -isystem"$TVM/src" -- "$PATCHES"/{"$kind",device}_runtime/*.cc
  done
  [ "$TARGET" != android-arm64 ] || cp "$libcxx" "$NEW/"
fi
# Nothing in the server names TVM's runtime, which registers what the server calls: the linker must not leave it out.
build romou_rpc_server -Wl,--no-as-needed -L"$NEW" -ltvm_runtime -ltvm_ffi -- -Wall -- "$PATCHES/phone_runtime/rpc_server.cc"
# What apps link against: romou.h has no type of TVM.
build libromou.so -shared -Wl,-soname,libromou.so -Wl,--no-undefined -Wl,--no-as-needed -L"$NEW" -ltvm_runtime -ltvm_ffi \
  -- -fvisibility=hidden -Wall -- "$PATCHES"/app_runtime/{model,c_api}.cc
if [ "$TARGET" = android-arm64 ]; then # the NDK has jni.h
  build libromou_jni.so -shared -Wl,-soname,libromou_jni.so -Wl,--no-undefined -L"$NEW" -lromou -- -Wall -- "$PATCHES/app_runtime/jni.cc"
fi
build romou_bench -L"$NEW" -lromou -- -Wall -- "$PATCHES/app_runtime/romou_bench.cc"
link
cp "$PATCHES"/app_runtime/romou.{h,hpp} "$NEW/"
printf '{"target": "%s", "tvm": "%s", "tvm_ffi": "%s", "romou": "%s"}\n' "$TARGET" "$TVM_VERSION" "$FFI_VERSION" "$ROMOU_VERSION" > "$NEW/runtime.json"

mkdir -p "$(dirname -- "$OUT")"
rm -rf -- "$OUT"
cp -r "$NEW" "$OUT"
say "the runtime for $TARGET is in $OUT ($(du -sh "$OUT" | cut -f1))"
