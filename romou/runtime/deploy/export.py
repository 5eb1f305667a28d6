"""Write a compiled model as files that run without Romou."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.environment import variable
from romou.base.errors import BuildError, UsageError
from romou.base.folders import check_replaceable, replacing
from romou.base.linking import check_linker, compiler_for, export_library, is_here
from romou.compiler.tir.primitives import SEPARATORS
from romou.devices.backends import backend, device_backends
from romou.runtime.deploy.phone import FOLDER as PHONE_FOLDER
from tvm_patches.quiet import quiet_stderr

if TYPE_CHECKING:
    import tvm

    from romou.devices.targets import Target

META = "model.json"
FORMAT = 1
_WHAT = "an exported model"
_SAMPLES = ("run_model.cc", "run_model.py")
# Host triple -> target of `scripts/build_phone_runtime.sh`.
_RUNTIME_TARGETS = {"aarch64-linux-android": "android-arm64", "aarch64-linux-gnu": "linux-arm64"}


def check_exportable(target: Target, folder: Path, host: str, runtime: Path | None) -> None:
    """Raise the errors of `export_model` that are known before code is generated."""
    if not target.backend.is_served:
        kinds = ", ".join(served.name for served in device_backends() if served.is_served)
        raise UsageError(
            f"a model for {target.kind} cannot be exported: the phone's runtime has devices of {kinds}",
            kind=target.kind,
        )
    check_linker(host)
    check_replaceable(folder, marker=META, what=_WHAT)
    if runtime is not None:
        _check_runtime(runtime, None if is_here(host) else host)


def export_model(
    program: tvm.runtime.Module,
    kernels: tvm.runtime.Module,
    folder: Path,
    *,
    kind: str,
    host: str | None,
    inputs: Mapping[str, tuple[tuple[int, ...], str]],
    outputs: Sequence[str],
    runtime: Path | None = None,
) -> Path:
    """Write `folder`. Parameters and errors as in `TunedModel.export_android`.

    program: the graph with its weights.
    kernels: host code for `host`, and the kernels that it launches.
    host: LLVM triple, or None for this machine.
    """
    with replacing(folder, marker=META, what=_WHAT) as fresh:
        with quiet_stderr():
            export_library(kernels, fresh / "model.so", host=host)
        program.write_to_file(str(fresh / "weights.bin"))
        about = {
            "format": FORMAT,
            "host": host,
            "kind": backend(kind).device_type,
            "device_type": backend(kind).device().dlpack_device_type(),
            # Relax counts one device per memory scope in a module. On the phone all of them are the same device.
            "devices": 1 + len(SEPARATORS),
            "inputs": [{"name": name, "shape": list(shape), "dtype": dtype} for name, (shape, dtype) in inputs.items()],
            "outputs": list(outputs),
        }
        (fresh / META).write_text(json.dumps(about, indent=1), encoding="utf-8")
        for sample in _SAMPLES:
            shutil.copyfile(Path(__file__).with_name(sample), fresh / sample)
        if runtime is not None:
            _compile_sample(fresh, host, runtime)
    return folder


def _check_runtime(runtime: Path, host: str | None) -> None:
    wanted = "host" if is_here(host) else _RUNTIME_TARGETS.get(str(host))
    try:
        built_for = json.loads((runtime / "runtime.json").read_text(encoding="utf-8"))["target"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{runtime} holds no runtime for a phone", hint="Build it: scripts/build_phone_runtime.sh --out FOLDER"
        ) from error
    if built_for != wanted:
        what = f"{runtime} was built for {built_for}; the model is for {host or 'this machine'}"
        raise UsageError(
            what, hint=f"Build the other one: scripts/build_phone_runtime.sh --target {wanted} --out FOLDER"
        )


def _compile_sample(folder: Path, host: str | None, runtime: Path) -> None:
    """Compile folder/run_model, linked against the libraries in `runtime`."""
    import tvm_ffi.libinfo

    compiler = (variable("CXX") or "g++") if is_here(host) else compiler_for(str(host))
    includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    command = [*compiler.split(), "-std=c++17", "-O2", *(f"-I{path}" for path in sorted(includes))]
    command += [
        str(folder / "run_model.cc"),
        "-o",
        str(folder / "run_model"),
        f"-L{runtime}",
        f"-Wl,-rpath,$ORIGIN:{PHONE_FOLDER}",
    ]
    # The sample calls TVM's runtime only by registered names, so the linker needs a flag to keep the library.
    command += ["-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi", "-ldl"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"compiling the C++ sample failed: {done.stderr.strip()[:800]}", command=" ".join(command))
