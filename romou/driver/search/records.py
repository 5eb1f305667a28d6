"""Records of a tuning run: their folder, and the fastest config of each task."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from romou.base import environment
from romou.base.arguments import path_of
from romou.base.errors import RecordError, UsageError
from romou.base.space import Config
from romou.compiler.task import by_keys
from romou.devices.targets import Target
from romou.tuner.measure import DeviceFingerprint
from romou.tuner.records import Record, Records, RecordStore, fastest

if TYPE_CHECKING:
    from romou.compiler.compilation import Compilation
    from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")


@contextlib.contextmanager
def open_records(
    work_dir: str | Path | Literal[False] | None, compilation: Compilation, target: Target
) -> Iterator[tuple[Records, Path | None]]:
    """Yield the records of a tuning run, and their folder.

    work_dir: the folder. None: a folder of the user's cache, `ROMOU_CACHE_DIR`/records/<kernels>/<target>, so a second
    run of the same model and target continues, with any weights. False, or a cache that cannot be used: the
    records end with the process, and the folder is None.
    """
    if work_dir is False:
        yield [], None
        return
    if work_dir is not None and path_of("work_dir", work_dir).exists() and not Path(work_dir).is_dir():
        raise UsageError(f"work_dir {str(work_dir)!r} is a file; give a folder")
    folder = _cache_folder(compilation, target) if work_dir is None else Path(work_dir)
    try:
        store = RecordStore(folder)
    except RecordError as error:
        if work_dir is not None:
            raise
        # The user did not name this folder, so the run goes on without it.
        logger.warning("records are not kept: %s; work_dir or ROMOU_CACHE_DIR names another folder", error.message)
        yield [], None
        return
    with store:
        yield store, folder


def _cache_folder(compilation: Compilation, target: Target) -> Path:
    cache = environment.from_environment().cache_dir.expanduser()

    def folder(keys: Iterable[str]) -> Path:
        kernels = hashlib.sha256(" ".join(sorted(keys)).encode()).hexdigest()[:16]
        return cache / "records" / kernels / re.sub(r"[^\w.]+", "-", str(target)).strip("-")

    # Versions before 0.2.0 had other keys. Drop their folder in 0.3.0.
    former = folder(task.structure for task in compilation.tasks)
    return former if former.exists() else folder(task.key for task in compilation.tasks)


def recorded_configs(
    work_dir: str | Path | None, compilation: Compilation, target: Target, device: DeviceFingerprint | None = None
) -> tuple[dict[str, float], dict[str, Config | None]]:
    """Return (task key -> seconds, task key -> config) of each task's fastest record, joined tasks included.

    Only configs in the task's space on `target` count.

    device: only its records count. None for records of all devices.
    """
    if work_dir is None:
        return {}, {}
    if not path_of("work_dir", work_dir).is_dir():
        raise UsageError(f"work_dir {str(work_dir)!r} is no folder; give the one that `tune` wrote")
    records: dict[str, list[Record]] = {}
    tasks = by_keys(compilation.candidates)
    spaces = {task.key: task.space(target) for task in compilation.candidates}
    left_out = 0
    with RecordStore(work_dir) as store:
        for record in store:
            measured_on = record.device.get("kind"), record.device.get("name")
            is_of_device = device is None or measured_on == (device.kind, device.name)
            if record.task_key not in tasks or not is_of_device:
                continue
            key = tasks[record.task_key].key
            if spaces[key].knows(record.config):
                records.setdefault(key, []).append(record)
            else:
                left_out += 1
    if left_out:
        logger.warning(
            "%d records in %s do not count: made for other knobs than this version and target have", left_out, work_dir
        )
    seconds: dict[str, float] = {}
    configs: dict[str, Config | None] = {}
    for key, measured in records.items():
        best = fastest(measured)
        if best is not None and best.time_s is not None:
            configs[key], seconds[key] = spaces[key].completed(best.config), best.time_s
    return seconds, configs


def valid_configs(
    tasks: Sequence[TunableTask], configs: Mapping[str, Config], target: Target
) -> dict[str, Config | None]:
    """Return task key -> config, for configs in the space of their task. Others are logged."""
    valid: dict[str, Config | None] = {}
    for task in tasks:
        if task.key in configs:
            space = task.space(target)
            if space.knows(configs[task.key]):
                valid[task.key] = space.completed(configs[task.key])
            else:
                text = "%s: the baseline's config is none of its space any more; the default is taken"
                logger.warning(text, task.name)
    return valid
