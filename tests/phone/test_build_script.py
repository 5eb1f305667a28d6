"""tvm_patches/build_phone_runtime.sh: its compilations for Android, with a compiler that only records its arguments,
and its messages for missing tools.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from romou.cli import main
from support.servers.android_ndk import COMPILER, write_ndk
from support.servers.phone_servers import ROOT

SCRIPT = ROOT / "tvm_patches/build_phone_runtime.sh"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "ANDROID_NDK_HOME"} | environment
    return subprocess.run([str(SCRIPT), *arguments], env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def ndk(tmp_path: Path) -> Path:
    return write_ndk(tmp_path / "ndk")


def test_android_up_to_the_compiler(ndk: Path, tmp_path: Path) -> None:
    environment = {"ANDROID_NDK_HOME": str(ndk), "HOME": str(tmp_path)}
    done = run("--out", str(tmp_path / "out"), PYTHON=sys.executable, **environment)
    assert done.returncode == 0, done.stderr
    pushed = {
        "libc++_shared.so",
        "libtvm_ffi.so",
        "libtvm_runtime.so",
        "libtvm_runtime_opencl.so",
        "libtvm_runtime_vulkan.so",
        "libromou.so",
        "libromou_jni.so",
        "romou.h",
        "romou.hpp",
        "romou_bench",
        "romou_rpc_server",
        "runtime.json",
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == pushed
    facts = json.loads((tmp_path / "out/runtime.json").read_text())
    assert facts["target"] == "android-arm64"
    calls = [
        shlex.split(line) for line in (ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/calls").read_text().splitlines()
    ]
    compiled, linked = [c for c in calls if "-c" in c], [c for c in calls if "-o" in c and "-c" not in c]
    assert {c[0] for c in compiled + linked} == {"--target=aarch64-linux-android24"}
    assert len(compiled) == len(linked) == 8, "each is compiled as one file"
    texts = {name: (tmp_path / "out" / name).read_text() for name in pushed if name.startswith("libtvm")}
    sources = {name: [Path(line.split('"')[1]) for line in text.splitlines()] for name, text in texts.items()}
    # Of TVM, tvm-ffi and our own; nothing that needs a desktop.
    for name, some in {
        "libtvm_runtime.so": {"rpc_endpoint.cc", "vm.cc"},
        "libtvm_ffi.so": {"object.cc", "library_module_dynamic_lib.cc"},
    }.items():
        assert some <= {source.name for source in sources[name]}
    for kind in ("opencl", "vulkan"):
        ours = {source.parent.name for source in sources[f"libtvm_runtime_{kind}.so"]}
        assert ours == {f"{kind}_runtime", "device_runtime"}
    assert not [s for each in sources.values() for s in each if "cuda" in str(s) or "popen" in s.name]
    assert all(f'-DROMOU_TVM_VERSION="{facts["tvm"]}"' in c for c in compiled)
    assert [Path(c[c.index("-o") + 1]).name for c in linked] == [
        *sorted(name for name in pushed if name.startswith("libtvm")),
        "romou_rpc_server",
        "libromou.so",
        "libromou_jni.so",
        "romou_bench",
    ]
    assert all("-Wl,-rpath,$ORIGIN" in c and "-Wl,-z,max-page-size=16384" in c for c in linked)
    for command in linked[-4:-2]:
        assert {"-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"} <= set(command)
    # The second time all of it comes from the cache, and an earlier folder is replaced.
    (tmp_path / "out/libtvm_ffi.so").unlink()
    again = run("--out", str(tmp_path / "out"), PYTHON=sys.executable, **environment)
    assert (again.returncode, "compiling" in again.stdout) == (0, False)
    assert (tmp_path / "out/libtvm_ffi.so").is_file()


def test_the_command_runs_the_script(ndk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`romou phone build` has the script's result, and its error as an error of Romou's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANDROID_NDK_HOME", str(ndk))
    words = ["phone", "build", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["target"] == "android-arm64"
    assert "==> compiling romou_bench for android-arm64, files: 1" in done.stderr
    assert (tmp_path / "out/romou_rpc_server").is_file()
    assert "==>" not in CliRunner().invoke(main, [*words, "-q"]).stderr
    monkeypatch.delenv("ANDROID_NDK_HOME")
    failed = CliRunner().invoke(main, words)
    assert failed.exit_code == 1
    message = "the phone runtime was not built: ANDROID_NDK_HOME is not set. Get the NDK from"
    assert message in json.loads(failed.stdout)["error"]["message"]
    assert f"romou: {message}" in failed.stderr


# Counts real warnings of TVM, and its notes on memory scopes, in what is compiled.
COUNTER = """
for text in (open(path).read() for path in sys.argv if path.endswith("libtvm_runtime.so.cc")):
    texts = [open(line.split('"')[1]).read() for line in text.splitlines()]
    counts = [sum(text.count(what) for text in texts) for what in ("LOG(WARNING)", "Scope Loaded")]
    pathlib.Path(__file__).with_name("counts").write_text(str(counts))
"""


def test_a_model_opens_without_tvms_notes_on_images(ndk: Path, tmp_path: Path) -> None:
    compiler = ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/clang++"
    compiler.write_text(COMPILER + COUNTER)
    done = run("--out", str(tmp_path / "out"), ANDROID_NDK_HOME=str(ndk), HOME=str(tmp_path), PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    warnings, scopes = json.loads(compiler.with_name("counts").read_text())
    assert scopes == 0
    assert warnings > 0, "real warnings stay"


def test_other_flags_and_versions_are_compiled_anew(ndk: Path, tmp_path: Path) -> None:
    environment = {"ANDROID_NDK_HOME": str(ndk), "HOME": str(tmp_path), "PYTHON": sys.executable}
    for flags in ("-O2", "-O1", "-O2"):
        done = run("--out", str(tmp_path / "out"), CXXFLAGS=flags, **environment)
        assert done.returncode == 0, done.stderr
    calls = (ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/calls").read_text()
    assert calls.count("-c ") == 2 * 8


def test_a_failing_compiler_leaves_nothing(ndk: Path, tmp_path: Path) -> None:
    compiler = ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/clang++"
    compiler.write_text(
        COMPILER
        + '\nif "-c" in sys.argv and "libtvm_runtime.so.cc" in " ".join(sys.argv): sys.exit("vm.cc:1: error: no'
        ' luck")\n'
    )
    done = run("--out", str(tmp_path / "out"), ANDROID_NDK_HOME=str(ndk), HOME=str(tmp_path), PYTHON=sys.executable)
    assert done.returncode == 1
    assert "vm.cc:1: error: no luck" in done.stderr
    assert (
        done.stderr.splitlines()[-1]
        == "error: the phone runtime was not built: compiling libtvm_runtime.so; the compiler's message stands above"
    )
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / ".cache/romou/phone_runtime/android-arm64").glob("work.*"))


def test_a_failing_compiler_costs_only_its_own_library(ndk: Path, tmp_path: Path) -> None:
    compiler, environment = ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/clang++", {"HOME": str(tmp_path)}
    environment |= {"ANDROID_NDK_HOME": str(ndk), "PYTHON": sys.executable}
    compiler.write_text(COMPILER + '\nif "libtvm_runtime.so.cc" in " ".join(sys.argv): sys.exit(1)\n')
    assert run("--out", str(tmp_path / "out"), **environment).returncode == 1
    compiler.write_text(COMPILER)
    done = run("--out", str(tmp_path / "out"), **environment)
    assert [line for line in done.stdout.splitlines() if "compiling" in line] == [
        "==> compiling libtvm_runtime.so for android-arm64, files: 25"
    ]


def test_a_job_that_bash_forgot_is_not_a_failure(ndk: Path, tmp_path: Path) -> None:
    # Bash forgets the status of a job as soon as another process gets its number: minutes, on a busy machine.
    forgetful = tmp_path / "forgetful.sh"
    forgetful.write_text(
        'wait() { builtin wait; [ $# = 0 ] || { echo "$1 is not a child of this shell"; return 127; }; }'
    )
    environment = {"ANDROID_NDK_HOME": str(ndk), "HOME": str(tmp_path), "PYTHON": sys.executable}
    done = run("--out", str(tmp_path / "out"), BASH_ENV=str(forgetful), **environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_an_ndk(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "ANDROID_NDK_HOME is not set. Get the NDK from https://developer.android.com/ndk/downloads" in done.stderr
    done = run("--out", str(tmp_path / "out"), ANDROID_NDK_HOME=str(tmp_path))
    assert f"ANDROID_NDK_HOME={tmp_path} holds no toolchains/llvm/prebuilt/*/bin/clang++" in done.stderr


def test_without_the_cross_compiler(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "env", "dirname", "ls", "head"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    done = run("--target", "linux-arm64", "--out", str(tmp_path / "out"), PATH=str(tools))
    assert "aarch64-linux-gnu-g++ is missing: apt-get install g++-aarch64-linux-gnu" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--out DIR is missing"),
        (("--target",), "--target and --out need a value"),
        (
            ("--out", "x", "--target", "windows"),
            "unknown target 'windows'; there are android-arm64, linux-arm64 and host",
        ),
        (("--outt", "x"), "unknown argument --outt; see --help"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (1, f"error: the phone runtime was not built: {message}\n")


def test_a_folder_of_something_else_is_spared(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("mine")
    done = run("--out", str(tmp_path))
    assert f"{tmp_path} holds something else; give another folder, or remove it" in done.stderr
    assert (tmp_path / "letter").read_text() == "mine"


def test_help() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "[--target android-arm64|linux-arm64|host] --out DIR" in done.stdout
    assert "set -e" not in done.stdout
