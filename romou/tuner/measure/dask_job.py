"""The job of a dask worker: builds one candidate as on this machine, in a child process of the worker."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import platform
import threading
import uuid
from pathlib import Path
from typing import Any

from romou.base.errors import CompatError
from romou.base.folders import HeldFolder
from romou.base.outcome import Outcome
from romou.base.version import __version__
from romou.devices.targets import Target
from romou.tuner.measure.build_processes import BuildProcesses, Built

_HINT = (
    "Workers have to run the tuner's Romou, from the same environment, image or checkout; then start the same call"
    " again."
)


def build(expected: dict[str, str], job: tuple[Any, ...], entry: str, limit_s: float) -> tuple[Built, bytes]:
    """Build one candidate in a child process, so that a crash, a hang or a leak affects only the candidate.

    Return the result and the bytes of its library.

    expected: `identity` of the tuner. CompatError if this worker's identity differs.
    job: see `FolderBuilder._build`.
    """
    check_same(expected, identity(job[-1]), f"dask worker {platform.node()}, process {os.getpid()},")
    folder, processes = _processes()
    library = folder / f"{uuid.uuid4().hex}.so"
    try:
        built = processes.build((*job, str(library), entry, None), limit_s, limit_s)
        assert built is not None, "the limit is that of a build"
        return built, library.read_bytes() if built[0] == Outcome.OK else b""
    finally:
        library.unlink(missing_ok=True)


def check_same(ours: dict[str, str], theirs: dict[str, str], where: str) -> None:
    """Raise CompatError if two identities differ, so that the worker `where` would build other kernels."""
    differences = [
        f"{name} is {theirs.get(name, 'missing')}, here {value}"
        for name, value in ours.items()
        if theirs.get(name) != value
    ]
    if differences:
        raise CompatError(f"{where} would build other kernels: {'; '.join(differences)}", hint=_HINT)


def identity(target_json: str) -> dict[str, str]:
    """Return everything that a built candidate depends on besides task, config and target.

    This is the versions, Romou's source, the device's file, and the machine.
    """
    target = Target.from_json(target_json)
    facts = {"romou": f"{__version__} (source {_source()})"}
    facts |= {name: importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
    # PoCL was seen to report another image size to the next process. If kernels may use images, the limits contain it.
    spec = dataclasses.replace(target.spec, max_image_width_texels=None, max_image_height_texels=None)
    facts[f"the device file of {target.device_name or 'the target'}"] = _digest(repr((spec, target.limits)).encode())
    return facts if target.host is not None else {**facts, "the machine": platform.machine()}


@functools.cache
def _source() -> str:
    # A checkout's version stays the same for a long time. Its schedules do not.
    package = Path(__file__).resolve().parents[2]
    files = sorted(package.rglob("*.py"))
    return _digest(b"".join(str(file.relative_to(package)).encode() + file.read_bytes() for file in files))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


_lock = threading.Lock()


def _processes() -> tuple[Path, BuildProcesses]:
    with _lock:
        return _made()


@functools.cache
def _made() -> tuple[Path, BuildProcesses]:
    folder = HeldFolder("dask")
    processes = BuildProcesses(folder.path)
    atexit.register(folder.cleanup)
    atexit.register(processes.close)
    return folder.path, processes
