"""Run Mesa's compilers for Adreno and Mali on OpenCL C, and read their statistics."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from romou.base import environment
from romou.base.errors import EXIT_NO_DEVICE, BuildError
from romou.base.folders import HeldFolder
from romou.devices.mobile_compilers.gpus import mobile_gpu
from romou.devices.mobile_compilers.statistics import KernelStatistics, NoStatisticsError, read_statistics

SETUP_SCRIPT = Path(__file__).with_name("setup.sh")
SETUP = "romou setup mobile-compilers"
# The version that presets and cost models were fitted to.
OLDEST = 25
# Seconds between two polls of a running compiler
_POLL_S = 0.5
# Seconds for the start of a compiler, in an emulator on a busy machine.
_START_S = 300.0
# A processor without pointer authentication, which Debian's programs use in every function. Emulating it up to doubles
# the time.
_CPU = ("-cpu", "neoverse-n1")
TRIVIAL = "__kernel void trivial(__global float *a) { a[get_local_id(0)] = 1.0f; }\n"


class MobileCompilersMissingError(BuildError):
    """Mesa's mobile compilers have not been set up."""

    exit_code = EXIT_NO_DEVICE


def find_compilers(folder: Path | None = None, *, mesa: int = OLDEST) -> Path:
    """Return the folder of the set-up script: `folder`, ROMOU_MOBILE_COMPILERS, or ~/.cache/romou/mobile_compilers.

    MobileCompilersMissingError names the command to run if the compilers are not there.

    mesa: the lowest version that will do. If the folder holds an older one, the folder beside it, with the version at
        the end of its name, is the result: `romou setup mobile-compilers --mesa 26` fills it.
    """
    folder = (folder or environment.from_environment().mobile_compilers).expanduser().absolute()
    for candidate in (folder, folder.with_name(f"{folder.name}_{mesa}")):
        ready = candidate / "ready.json"
        if ready.is_file() and (mesa == OLDEST or int(_version_in(ready).partition(".")[0]) >= mesa):
            return candidate
    newer = f" --mesa {mesa}" if mesa > OLDEST else ""
    raise MobileCompilersMissingError(
        f"Mesa{f' {mesa}' if newer else ''}'s mobile compilers are not in {folder}",
        hint=f"Run {SETUP}{newer} (on Debian; no root needed), or set ROMOU_MOBILE_COMPILERS.",
    )


def mesa_version(folder: Path | None = None, *, mesa: int = OLDEST) -> str:
    """Return the version of `find_compilers`, as Debian names it: "25.0.7-2+deb13u1"."""
    return _version_in(find_compilers(folder, mesa=mesa) / "ready.json")


def _version_in(ready: Path) -> str:
    return str(json.loads(ready.read_text(encoding="utf-8")).get("mesa", OLDEST))


def compile_statistics(
    source: str, gpu: str, work_group: Sequence[int] | None = None, *, folder: Path | None = None
) -> list[KernelStatistics]:
    """Compile OpenCL C for a mobile GPU with Mesa, and return the statistics of each kernel, in the compiler's order.

    Nothing is executed. The numbers compare kernels, and do not predict a phone's: phones run the vendors' compilers.

    MobileCompilersMissingError if the compilers are not set up. BuildError if the compiler refuses the source, crashes
    or takes too long.

    source: one or more kernels.
    gpu: a name of `GPUS`, e.g. "a630" (Adreno 630) or "g76" (Mali-G76).
    work_group: reqd_work_group_size of kernels whose source has none. None for any work group.
    folder: folder of the compilers, see `find_compilers`.
    """
    (result,) = compile_all([source], gpu, work_group, folder=folder)
    if isinstance(result, BuildError):
        raise result
    return result


# Mesa 25.0.7's OpenCL crashes on the function, or takes its result for fp32. A conversion that rounds towards zero,
# which is exact for fp16 in memory, becomes part of the read, as no other conversion does. Mesa 26 reads fp16 itself,
# and would not join the conversion. Drop this together with Mesa 25.
_READ_IMAGEH = re.compile(r"\bread_imageh(\(image, (?:sampler, )?(?:coord|\(coord\)\.xy)\))")


# Kernels that call functions of sub-groups (`backends/opencl/sub_groups.py`). The OpenCL of Mesa 25.0.7 and 26.1.6
# offers these for neither Adreno nor Mali.
_SUB_GROUPS = re.compile(r"\bsub_group_\w+_of_\d+\(")


def compile_all(
    sources: Sequence[str],
    gpu: str,
    work_group: Sequence[int] | None = None,
    *,
    folder: Path | None = None,
    timeout_s: float = 120.0,
) -> list[list[KernelStatistics] | BuildError]:
    """Return `compile_statistics` of many sources, compiled in one process. A source that fails gives its error."""
    root = find_compilers(folder, mesa=mobile_gpu(gpu).mesa)
    if work_group is not None:
        sides = ", ".join(str(int(side)) for side in [*work_group, 1, 1][:3])
        sources = [
            re.sub(r"\b(?:__)?kernel\s+void\b", f"__kernel __attribute__((reqd_work_group_size({sides}))) void", s)
            for s in sources
        ]
    results: list[list[KernelStatistics] | BuildError] = []
    reads_fp16 = _version_in(root / "ready.json") >= "26"
    has_sub_groups = [_SUB_GROUPS.search(source) is not None for source in sources]
    with HeldFolder("mesa") as scratch:
        files = []
        for index, source in enumerate(sources):
            if not has_sub_groups[index]:
                files.append(Path(scratch) / f"{index}.cl")
                if not reads_fp16:
                    source = _READ_IMAGEH.sub(r"convert_half4_rtz(read_imagef\1)", source)
                files[-1].write_text(source, encoding="utf-8")
        while len(results) < len(files):
            results += _run_batch(root, gpu, files[len(results) :], timeout_s)
    compiled = iter(results)
    return [_no_sub_groups(gpu) if has else next(compiled) for has in has_sub_groups]


def _no_sub_groups(gpu: str) -> BuildError:
    return BuildError(
        f"Mesa's compiler for {gpu} has no sub-groups, whose functions the kernel calls",
        hint="Look at a config with sub_group=1.",
    )


def _run_batch(
    root: Path, gpu: str, files: Sequence[Path], timeout_s: float
) -> list[list[KernelStatistics] | BuildError]:
    """Return the results of the first files, at least of one.

    A crash, a file that takes too long, and a kernel that was compiled before end the batch.
    """
    # Translating the OpenCL library takes seconds, so it comes from a cache. It is a copy, because nothing is printed
    # for a kernel that is in the cache.
    with HeldFolder("mesa") as scratch:
        cache = shutil.copytree(_filled_cache(root, gpu), Path(scratch) / "cache")
        text, how = _run(root, gpu, files, {"MESA_SHADER_CACHE_DIR": str(cache)}, timeout_s)
    results: list[list[KernelStatistics] | BuildError] = []
    for file, part in zip(files, text.split("@romou begin ")[1:], strict=False):
        if not part.startswith(f"{file}\n"):
            raise BuildError(f"Mesa's compiler for {gpu}: its output does not follow the files; {file.name} is missing")
        try:
            if "\n@romou end" not in part:
                raise BuildError(
                    f"Mesa's compiler for {gpu} {how}; its last words: {part.strip().splitlines()[-1][:200]}"
                )
            results.append(read_statistics(part, gpu))
        except NoStatisticsError as error:
            if results:
                break
            results.append(error)
        except BuildError as error:
            results.append(error)
    if not results:
        raise BuildError(
            f"Mesa's compiler for {gpu} does not start: it {how}: {text.strip()[-500:]}",
            hint=f"Remove {root} and run {SETUP} again.",
        )
    return results


def _run(root: Path, gpu: str, files: Sequence[Path], extra: dict[str, str], timeout_s: float) -> tuple[str, str]:
    """Return the compiler's output and its end.

    It is stopped if one file takes longer than the timeout, or if it does not begin with the first for `_START_S`.
    """
    wanted = mobile_gpu(gpu)
    library = root / "arm64/usr/lib/aarch64-linux-gnu"
    inside = {
        "LD_PRELOAD": f"{library}/lib{wanted.driver}_noop_drm_shim.so",
        "LD_LIBRARY_PATH": str(library),
        "OCL_ICD_VENDORS": f"{root}/arm64/etc/OpenCL/vendors/rusticl.icd",
        "RUSTICL_ENABLE": wanted.driver,
        "RUSTICL_FEATURES": "fp16",
    }
    python = next((root / "arm64/usr/bin").glob("python3.[0-9]*"))
    command = [str(root / "qemu-aarch64"), *_CPU, "-L", str(root / "arm64")]
    for name, value in inside.items():
        command += ["-E", f"{name}={value}"]
    command += [str(python), "-S", "-E", str(Path(__file__).with_name("driver.py")), "", *map(str, files)]
    kept = {name: setting for name in ("HOME", "PATH", "TMPDIR") if (setting := environment.variable(name)) is not None}
    # A file instead of a pipe keeps the output of a stopped compiler, and never blocks.
    with tempfile.NamedTemporaryFile() as output:

        def text() -> str:
            # A file that is shared with the compiler has one position for both, so it is opened again.
            return Path(output.name).read_text(encoding="utf-8", errors="replace")

        process = subprocess.Popen(
            command,
            env={**kept, **wanted.environment, **extra},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        done, since = 0, time.monotonic()
        while True:
            try:
                code = process.wait(timeout=min(_POLL_S, timeout_s))
                return text(), f"ended with code {code}"
            except subprocess.TimeoutExpired:
                marks, limit_s = text().count("@romou"), timeout_s if done else max(timeout_s, _START_S)
                if marks > done:
                    done, since = marks, time.monotonic()
                elif time.monotonic() - since > limit_s:
                    process.kill()
                    process.wait()
                    return text(), f"took longer than {limit_s:.0f} s"


@functools.cache
def _filled_cache(root: Path, gpu: str) -> Path:
    """Return Mesa's shader cache with the OpenCL library in it, made at the first use."""
    cache = root / "cache" / gpu
    if not cache.is_dir():
        cache.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
            (Path(scratch) / "trivial.cl").write_text(TRIVIAL, encoding="utf-8")
            fresh = Path(scratch) / gpu
            text, how = _run(
                root,
                gpu,
                [Path(scratch) / "trivial.cl"],
                {"MESA_SHADER_CACHE_DIR": str(fresh), "ROMOU_FILL_CACHE": "1"},
                _START_S,
            )
            if "@romou end" not in text or not fresh.is_dir():
                raise BuildError(
                    f"Mesa's compiler for {gpu} does not work: it {how}: {text.strip()[-500:]}",
                    hint=f"Remove {root} and run {SETUP} again.",
                )
            # Another process may have been faster.
            with contextlib.suppress(OSError):
                fresh.rename(cache)
    return cache
