"""What a build process does for one candidate."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from romou.backends import backend
from romou.core.linking import export_library
from romou.core.outcome import Outcome
from romou.core.space import Config
from romou.measure.failures import outcome_of_build
from romou.measure.fingerprint import split_device
from romou.measure.types import StoredAs, Toolchain, resolve, shorten


def build(
    toolchain: Toolchain, task_json: str, config: dict[str, int | str | bool], target_json: str, library: str, entry: str, compile_for: str | None
) -> tuple[Outcome, float, str | None, tuple[str, ...], tuple[StoredAs | None, ...]]:
    """Build one candidate into the shared library file `library`, under the name `entry`.

    With `compile_for` ("opencl:0") its kernels also reach the driver's cache.

    Exception for whatever is no property of the candidate: a bug, a missing compiler, a full disk.

    Returns
    -------
    (outcome, seconds, error text or None, memory scope of each parameter, `BuildResult.stored`), the outcome OK, INVALID or BUILD_ERROR.
    """
    task = resolve(toolchain.load_task)(task_json)
    target = resolve(toolchain.load_target)(target_json)
    start = time.perf_counter()
    try:
        module = resolve(toolchain.build)(task, Config(config), target)
        export_library(module, library, host=target.host, entry=entry)
        if compile_for is not None:
            _compile(module, compile_for)
    except Exception as error:
        outcome = outcome_of_build(error)
        if outcome is None:
            raise
        return outcome, time.perf_counter() - start, shorten(f"{type(error).__name__}: {error}"), (), ()
    images = task.image_scopes(Config(config), target)
    # Without kernels the reference runs, which takes the weight as it is.
    weight = task.stored_weight(Config(config)) if target.backend.has_kernels else None
    names = [str(p.name) for p in task.func.params]
    scopes, stored = tuple(images.get(name, "global") for name in names), tuple(weight if weight and name == weight.name else None for name in names)
    return Outcome.OK, time.perf_counter() - start, None, scopes, stored


def _compile(module: Any, device: str) -> None:
    kind, index = split_device(device)
    # A kernel that the driver refuses is found again, and recorded, by the process that runs it.
    with contextlib.suppress(RuntimeError):
        backend(kind).compile_kernels(module, index)
