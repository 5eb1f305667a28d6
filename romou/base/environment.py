"""The environment variables of Romou, its C++ runtimes and its scripts. Python reads them only here."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from romou.base.errors import UsageError, nearest_name


@dataclasses.dataclass(frozen=True)
class Variable:
    """An environment variable: its meaning, and its effect if it is not set."""

    help: str
    default: str = "none"


VARIABLES = {
    "ANDROID_NDK_HOME": Variable("folder of the Android NDK, whose compiler links models for phones"),
    "CUDA_VISIBLE_DEVICES": Variable("numbers of the NVIDIA GPUs that are used; NVIDIA's driver reads it, too", "all"),
    "CXX": Variable("C++ compiler of the runtime and exported samples, linker of models", "g++, then any linker"),
    "CXXFLAGS": Variable("options for the C++ compiler while Romou is built"),
    "HOME": Variable("Mesa's compilers keep their cache below it"),
    "NO_COLOR": Variable("anything: no colours in a terminal", "colours in a terminal, none in a pipe"),
    "OCL_ICD_VENDORS": Variable(
        "folder in which the OpenCL loader finds platforms; `romou doctor` looks there as well", "/etc/OpenCL/vendors"
    ),
    "PATH": Variable("where Mesa's compilers find their tools, and Arm's malioc is found"),
    "ROMOU_ADRENO_COMPILER": Variable(
        "program that compiles OpenCL C for an Adreno as its vendor does, for `romou inspect --gpu`: called and read as"
        " Arm's malioc is"
    ),
    "ROMOU_CACHE_DIR": Variable(
        "folder of compiled programs, and of records that no work_dir names", "XDG_CACHE_HOME/romou or ~/.cache/romou"
    ),
    "ROMOU_DEBUG": Variable("1: show tracebacks of errors that are otherwise one message", "0"),
    "ROMOU_DEVICE_LOCK": Variable(
        "0: time kernels and models without waiting for other processes that time on the same device", "1"
    ),
    "ROMOU_DEVICES": Variable(
        "folder of device files, JSON as in romou/devices/hardware/devices or reports of ArchProbe, whose names"
        " `-device=` knows"
    ),
    "ROMOU_DUMP": Variable(
        "names of compiler stages, separated by commas, or all: the module after each is written to a text file;"
        " [the pipeline](pipeline.md) lists them"
    ),
    "ROMOU_DUMP_DIR": Variable("folder of the files of ROMOU_DUMP", "romou-dump in the current folder"),
    "ROMOU_FILL_CACHE": Variable("set by Romou itself for Mesa's compilers: wait until their cache is written", "0"),
    "ROMOU_MOBILE_COMPILERS": Variable("folder of `romou setup mobile-compilers`", "~/.cache/romou/mobile_compilers"),
    "ROMOU_NO_FALLBACK": Variable(
        "1: a kernel that cannot be built, or is wrong, is an error, instead of one in parts, of TVM's, or the host;"
        " for tests",
        "0",
    ),
    "ROMOU_OPENCL_BUILD_OPTIONS": Variable("options for the OpenCL driver's compiler"),
    "ROMOU_OPENCL_DEVICE": Variable(
        "part of an OpenCL device's or platform's name, or its number: devices that match come first; an error if none"
        " does",
        "all, GPUs first, then the faster driver of the CPU",
    ),
    "ROMOU_OPENCL_DUMP_DIR": Variable(
        "folder for the sources of kernels that the OpenCL driver refuses",
        "a new private folder romou-opencl-* in TMPDIR",
    ),
    "ROMOU_OPENCL_LIBRARY": Variable("OpenCL library to load, without a fallback", "the system's loader"),
    "ROMOU_OPENCL_PERF_HINT": Variable(
        "high: contexts of Qualcomm's driver request the highest clock (cl_qcom_perf_hint), as for tuning"
    ),
    "ROMOU_PROGRAM_CACHE_MB": Variable(
        "megabytes of compiled programs that are kept below ROMOU_CACHE_DIR; 0: none", "256"
    ),
    "ROMOU_QUIRKS_OFF": Variable(
        "names of driver quirks, separated by commas, whose workarounds are left out; `romou doctor` lists them"
    ),
    "ROMOU_RPC_KEY": Variable(
        "key of an RPC server, for `romou serve`, `romou phone start`, the phone's server, and addresses without a key"
    ),
    "ROMOU_SESSION_CACHE_MB": Variable(
        "megabytes of models that `romou.Session` compiled and keeps below ROMOU_CACHE_DIR; 0: none", "1024"
    ),
    "ROMOU_VULKAN_DEVICE": Variable(
        "part of a Vulkan device's name, or its number: devices that match come first; an error if none does",
        "all, GPUs first",
    ),
    "ROMOU_VULKAN_LIBRARY": Variable("Vulkan loader to load, without a fallback", "the system's loader"),
    "ROMOU_VULKAN_VALIDATE": Variable(
        "1: Vulkan's validation layer checks every call and barrier; what it says is an error at the next wait", "0"
    ),
    "ROMOU_VULKAN_WITHOUT": Variable(
        "Vulkan extensions that a driver gets wrong and that are left unused, separated by commas; unified_memory"
        " counts as one"
    ),
    "SOURCE_URL": Variable(
        "address of the checkout's files, for links of the package page, while a wheel is built", "no links"
    ),
    "TMPDIR": Variable("folder for temporary files", "/tmp"),
    "XDG_CACHE_HOME": Variable("folder of caches, without ROMOU_CACHE_DIR", "~/.cache"),
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked values of Romou's variables. `unknown` has complaints about ROMOU_ names that nothing reads."""

    is_debug: bool = False
    has_device_lock: bool = True
    opencl_device: str | None = None
    cache_dir: Path = Path("~/.cache/romou")
    program_cache_mb: int = 256
    session_cache_mb: int = 1024
    quirks_off: tuple[str, ...] = ()
    mobile_compilers: Path = Path(VARIABLES["ROMOU_MOBILE_COMPILERS"].default)
    adreno_compiler: Path | None = None
    unknown: tuple[str, ...] = ()


def variable(name: str) -> str | None:
    """Return the text of a declared variable. None if it is not set or is empty."""
    assert name in VARIABLES, f"{name} is not declared in VARIABLES"
    return os.environ.get(name) or None


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the environment, `os.environ` by default. Raises UsageError for a value that cannot be read."""
    env = os.environ if environment is None else environment
    unknown = [_complaint(name) for name in sorted(env) if name.startswith("ROMOU_") and name not in VARIABLES]
    return Settings(
        is_debug=_flag("ROMOU_DEBUG", env),
        has_device_lock=_flag("ROMOU_DEVICE_LOCK", env),
        opencl_device=env.get("ROMOU_OPENCL_DEVICE") or None,
        cache_dir=Path(env.get("ROMOU_CACHE_DIR") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "romou"),
        program_cache_mb=_count("ROMOU_PROGRAM_CACHE_MB", env, Settings.program_cache_mb),
        session_cache_mb=_count("ROMOU_SESSION_CACHE_MB", env, Settings.session_cache_mb),
        quirks_off=tuple(name.strip() for name in env.get("ROMOU_QUIRKS_OFF", "").split(",") if name.strip()),
        mobile_compilers=Path(env.get("ROMOU_MOBILE_COMPILERS") or Settings.mobile_compilers),
        adreno_compiler=Path(path).absolute() if (path := env.get("ROMOU_ADRENO_COMPILER")) else None,
        unknown=tuple(unknown),
    )


def _flag(name: str, env: Mapping[str, str]) -> bool:
    text = (env.get(name) or VARIABLES[name].default).strip().lower()
    if text not in _TRUE + _FALSE:
        raise UsageError(f"{name}={env[name]!r}: must be 1 or 0", name=name, value=env[name])
    return text in _TRUE


def _count(name: str, env: Mapping[str, str], default: int) -> int:
    text = env.get(name, "").strip() or str(default)
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{name}={env[name]!r}: must be a whole number", name=name, value=env[name])
    return int(text)


def _complaint(name: str) -> str:
    own = [entry for entry in VARIABLES if entry.startswith("ROMOU_")]
    near = nearest_name(name, own)
    return f"{name} is set but Romou does not read it" + (
        f"; did you mean {near}?" if near else f"; it reads {', '.join(own)}"
    )
