"""The Vulkan runtime under AddressSanitizer and UndefinedBehaviorSanitizer: all tests of it that need no process of
their own, on the device here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tvm
import tvm_ffi

from support.docs.documents import ROOT
from support.suite.compiled import compiled
from support.suite.exhaustive import exhaustive

PATCHES = ROOT / "tvm_patches"
RUNTIME, COMMON = PATCHES / "vulkan_runtime", PATCHES / "device_runtime"
# What grows by the sanitizer's own bookkeeping is no leak.
TESTS = "not forked and not another_process and not rpc and not no_leak"
# Python's process loads this runtime instead of the one beside the sources.
RUN = """
import pathlib, sys
import tvm_patches as patches
patches.RUNTIMES["vulkan"] = pathlib.Path(sys.argv[1])
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[2], "-k", sys.argv[3]]))
"""


def sanitized() -> Path:
    sources = sorted([*RUNTIME.glob("*.cc"), *COMMON.glob("*.cc")])
    texts = [path.read_text() for folder in (RUNTIME, COMMON) for path in sorted(folder.rglob("*.[ch]*"))]
    wheels = [
        Path(tvm.__file__).parent / "include",
        Path(tvm.__file__).parent / "src",
        Path(tvm_ffi.__file__).parent / "include",
    ]
    options = [
        "-std=c++20",
        "-O0",
        "-g1",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ]
    options += [f'-DROMOU_{name}VERSION="0"' for name in ("", "TVM_", "TVM_FFI_")] + [
        f"-I{folder}" for folder in (RUNTIME, COMMON, COMMON / "shim")
    ]
    options += [f"-isystem{folder}" for folder in (ROOT / "third_party/vulkan", *wheels)]

    def compile_to(path: Path) -> None:
        # All sources in one: the compiler reads TVM's headers once.
        text = "".join(f'#include "{source}"\n' for source in sources)
        subprocess.run(
            ["g++", *options, "-x", "c++", "-", "-o", str(path), "-ldl", "-lpthread"], input=text, text=True, check=True
        )

    return compiled(".so", tvm.__version__, *options, *texts, by=compile_to)


@exhaustive
def test_the_runtime_breaks_no_rule_of_memory(vulkan_device: tvm.runtime.Device) -> None:
    libraries = (
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libubsan.so")
    )
    # TVM's own tables live as long as the process.
    variables = {"LD_PRELOAD": " ".join(library.strip() for library in libraries), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [
        sys.executable,
        "-c",
        RUN,
        str(sanitized()),
        str(ROOT / "tests/tvm_patches/test_vulkan_runtime.py"),
        TESTS,
    ]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
