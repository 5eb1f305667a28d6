"""The OpenCL runtime with failing drivers and damaged files, under AddressSanitizer and ThreadSanitizer, on a library
that fails on demand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
import tvm_ffi

import romou
from support.models.small_networks import prime_net
from support.suite.compiled import compiled
from support.suite.exhaustive import exhaustive

HERE = Path(__file__).parent
PATCHES = Path(__file__).parents[2] / "tvm_patches"
RUNTIME, COMMON = PATCHES / "opencl_runtime", PATCHES / "device_runtime"
OPTIONS = [
    "-std=c++20",
    "-O0",
    "-g1",
    "-fPIC",
    "-Wall",
    '-DROMOU_VERSION="0"',
    f"-I{RUNTIME}",
    f"-I{COMMON}",
    f"-I{COMMON}/shim",
]
CHECKS = (
    "failed_waits",
    "waiting_holds_no_queue",
    "dropped_elsewhere",
    "large_buffers_are_profiled",
    "every_call_fails",
    "threads",
    "sizes",
    "lengths",
    "modules",
    "source_kernels",
    "tensors",
    "mapping",
    "plain_options",
    "exact_options",
)
# A data race is one of several threads.
OF_THREADS = ("waiting_holds_no_queue", "dropped_elsewhere", "threads")


def compile_with(source: Path, suffix: str, *options: str) -> Path:
    """Compile a file of this directory by g++. A cached result is returned if the file and its includes from the
    runtime are unchanged.
    """
    texts = [
        path.read_text()
        for path in (source, *(path for folder in (COMMON, RUNTIME) for path in sorted(folder.rglob("*.[ch]*"))))
    ]

    def compile_to(path: Path) -> None:
        subprocess.run(["g++", *OPTIONS, str(source), *options, "-o", str(path)], check=True)

    return compiled(suffix, tvm.__version__, *options, *texts, by=compile_to)


@pytest.fixture(scope="module")
def library() -> Path:
    return compile_with(HERE / "fake_opencl.cc", ".so", "-shared")


def driver(library: Path, sanitizer: str) -> Path:
    """Return drive_runtime.cc, compiled and linked to the libraries of TVM's wheel."""
    tvm_folder, ffi = Path(tvm.__file__).parent, Path(tvm_ffi.__file__).parent
    includes = [f"-isystem{folder}" for folder in (tvm_folder / "include", tvm_folder / "src", ffi / "include")]
    folders = [f"{tvm_folder}/lib", f"{ffi}/lib", str(library.parent)]
    linked = [f"-L{folder}" for folder in folders] + [f"-Wl,-rpath,{folder}" for folder in folders]
    names = ["-ltvm_runtime", "-ltvm_ffi", f"-l:{library.name}", "-ldl", "-pthread"]
    # AddressSanitizer finds the faults of the first two, and processors load from every address: they take half of the
    # compilation.
    options = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=undefined", "-fno-sanitize=null,object-size,alignment"]
    return compile_with(HERE / "drive_runtime.cc", "", *options, *includes, *linked, *names)


@pytest.fixture(scope="module")
def addresses(library: Path) -> Path:
    return driver(library, "address,undefined")


def run(program: Path, library: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # TVM's own tables live as long as the process; handles of the driver are counted by the library.
    variables = {
        **os.environ,
        "ROMOU_OPENCL_LIBRARY": str(library),
        "ROMOU_OPENCL_DEVICE": "",
        "ASAN_OPTIONS": "detect_leaks=0",
        **environment,
    }
    return subprocess.run(
        [str(program), *arguments], env=variables, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("check", CHECKS)
def test_errors_are_survived(addresses: Path, library: Path, check: str) -> None:
    done = run(addresses, library, check)
    assert (done.returncode, done.stdout) == (0, f"{check}\n"), done.stderr


# A list of launches has no event to wait for.
@pytest.mark.parametrize(
    ("extension", "of_events"),
    [("cl_qcom_recordable_queues", ["failed_waits", "waiting_holds_no_queue"]), ("none", [])],
)
def test_errors_without_command_buffers_are_survived(
    addresses: Path, library: Path, extension: str, of_events: list[str]
) -> None:
    """Failing calls leave nothing behind if Qualcomm's extension or a list of launches replaces command buffers."""
    checks = [*of_events, "dropped_elsewhere", "every_call_fails"]
    done = run(addresses, library, *checks, FAKE_EXTENSION=extension)
    assert (done.returncode, done.stdout.split()) == (0, checks), done.stderr


@exhaustive
def test_threads_do_not_race(library: Path) -> None:
    done = run(driver(library, "thread"), library, *OF_THREADS)
    assert (done.returncode, done.stdout.split()) == (0, list(OF_THREADS)), done.stderr


def test_sources_of_failed_kernels_overwrite_nothing(addresses: Path, library: Path, tmp_path: Path) -> None:
    """A link that waits under the old name of the folder, or under the file's name in a folder that others write to, is
    not followed.
    """
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine")

    def save(**environment: str) -> str:
        return run(
            addresses, library, "save", "main_kernel", "source", TMPDIR=str(tmp_path), **environment
        ).stdout.strip()

    (tmp_path / f"romou-opencl-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    first, second = Path(save()), Path(save())
    for path in (first, second):
        assert path.read_text() == "source"
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_mode & 0o777 == 0o600
    assert first.parent != second.parent
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    (shared / first.name).symlink_to(victim)
    assert re.fullmatch(r"\(could not be written to .*: File exists\)", save(ROMOU_OPENCL_DUMP_DIR=str(shared)))
    (shared / first.name).unlink()
    for _ in range(2):
        assert save(ROMOU_OPENCL_DUMP_DIR=str(shared)) == str(shared / first.name)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


_LOSES_ITS_DEVICE = """
import ctypes, sys
import romou
from romou.base.errors import DeviceError
from romou.base.inputs import random_inputs
fake, model = ctypes.CDLL(sys.argv[2]), romou.load(sys.argv[1])
inputs = random_inputs(model.inputs, seed=0)
model.run(inputs)
for call in ("clWaitForEvents", "clFinish", "clEnqueueNDRangeKernel", "*"):
    for skipped in (0, 2, 9):
        fake.fake_fail(call.encode(), -5, skipped)
        try:
            model.run(inputs), model.times(repeat=2)
        except DeviceError as error:
            print(call, str(error).splitlines()[0])
        fake.fake_fail(b"", 0, 0)
        model.run(inputs)
assert fake.fake_misused() == 0
fake.fake_fail(b"*", -5, 0)
"""


def test_a_model_on_a_lost_device_ends_in_one_error(
    library: Path, tmp_path: Path, opencl_device: tvm.runtime.Device
) -> None:
    """Runs and timings raise only a DeviceError and continue once the device is back. The process ends normally even if
    the device is lost then.
    """
    saved = romou.compile(prime_net(), target="opencl -device=host").save(tmp_path / "m.romou")
    done = run(Path(sys.executable), library, "-c", _LOSES_ITS_DEVICE, str(saved), str(library))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len({line.partition(" ")[0] for line in lines}) == 4, done.stdout
    assert all(
        re.fullmatch(
            r"\S+ the device failed: cl\w+ failed: CL_OUT_OF_RESOURCES \(-5\).*; device opencl:0 'fake' \(fake\).*",
            line,
        )
        for line in lines
    )
