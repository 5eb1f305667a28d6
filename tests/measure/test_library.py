"""Libraries for other machines: the compiler that links them, and its arguments."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

import pytest
import tvm

from romou.base.errors import BuildError
from romou.base.linking import compiler_for, export_library, is_here, linker
from romou.compiler.assembly.kernel import build_task
from romou.devices.targets import Target
from romou.tuner.measure import Candidate
from support.devices import faulty_kernels

_AARCH64 = 183  # EM_AARCH64, in an ELF header


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_what_is_here() -> None:
    assert is_here(None)
    assert is_here("x86_64-linux-gnu")
    assert not is_here("aarch64-linux-gnu")
    assert not is_here("x86_64-linux-android")


def test_a_compiler_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BuildError, match="aarch64-linux-gnu-g\\+\\+ is not there\napt-get install g\\+\\+-aarch64-linux-gnu"
    ):
        compiler_for("aarch64-linux-gnu")
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with pytest.raises(BuildError, match="no compiler for aarch64-linux-android: ANDROID_NDK_HOME is not set\n"):
        compiler_for("aarch64-linux-android")
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(BuildError, match=f"ANDROID_NDK_HOME={tmp_path} holds no toolchains/llvm/prebuilt/"):
        compiler_for("aarch64-linux-android")


def test_compilers_that_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gcc, clang = (
        tmp_path / "bin" / "aarch64-linux-gnu-g++",
        tmp_path / "ndk/toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android24-clang++",
    )
    script(gcc, "")
    script(clang, "")
    monkeypatch.setenv("PATH", str(gcc.parent))
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path / "ndk"))
    assert compiler_for("aarch64-unknown-linux-gnu") == str(gcc)
    assert compiler_for("aarch64-linux-android") == str(clang)


def test_a_candidate_for_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Objects for the phone's processor reach the phone's linker, with the candidate's own name."""
    made = tmp_path / "made"
    made.mkdir()
    script(
        tmp_path / "bin" / "aarch64-linux-gnu-g++",
        f'echo "$@" > {made}/arguments; for f in "$@"; do case $f in *.o) cp $f {made};; esac; done',
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    task, target = faulty_kernels.task(), Target("opencl -device=adreno640", host="aarch64-linux-gnu")
    candidate = Candidate(task=task, config=task.default_config(target), trial=0)
    export_library(
        build_task(task, candidate.config, target), tmp_path / "x.so", host=target.host, entry=candidate.name
    )
    objects = list(made.glob("*.o"))
    assert objects
    assert {struct.unpack_from("<H", o.read_bytes(), 18)[0] for o in objects} == {_AARCH64}
    arguments = (made / "arguments").read_text()
    assert f"--defsym,__tvm_ffi_{candidate.name}=__tvm_ffi_main" in arguments
    assert "-shared" in arguments


def test_a_linker_without_a_compiler_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model and a candidate with its own name are linked by it, and load."""
    (tmp_path / "ld").symlink_to(str(shutil.which("ld")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert linker() == (str(tmp_path / "ld"),)
    task, target = faulty_kernels.task(), Target("opencl -device=host")
    export_library(build_task(task, task.default_config(target), target), tmp_path / "x.so", entry="other")
    module = tvm.runtime.load_module(str(tmp_path / "x.so"))
    assert module["other"] is not None
    (tmp_path / "ld").unlink()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "ziglang" else None)
    assert linker() == (sys.executable, "-m", "ziglang", "ld.lld")


def test_no_two_candidates_have_one_name() -> None:
    task = faulty_kernels.task()
    names = [Candidate(task=task, config=faulty_kernels.config(fault), trial=0).name for fault in faulty_kernels.FAULTS]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
