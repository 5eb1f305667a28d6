"""What a build process does for one candidate."""

from __future__ import annotations

import time

from romou.measure.failures import outcome_of_build
from romou.measure.types import Toolchain, resolve, shorten
from romou.space import Config


def build(toolchain: Toolchain, task_json: str, config: dict[str, int | str | bool], target_json: str, library: str) -> tuple[str, float, str | None]:
    """Build one candidate into the shared library file `library`.

    Returns
    -------
    (outcome, seconds, error text or None), the outcome one of "ok", "invalid", "build_error".

    Raises
    ------
    Exception
        Whatever is no property of the candidate: a bug, a missing compiler, a full disk.
    """
    task = resolve(toolchain.load_task)(task_json)
    target = resolve(toolchain.load_target)(target_json)
    start = time.perf_counter()
    try:
        module = resolve(toolchain.build)(task, Config(config), target)
        module.export_library(library)
    except Exception as error:
        outcome = outcome_of_build(error)
        if outcome is None:
            raise
        return outcome, time.perf_counter() - start, shorten(f"{type(error).__name__}: {error}")
    return "ok", time.perf_counter() - start, None
