"""Tuned schedules out of the records of a user, in the form of the database that ships with Romou."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from romou.base import environment
from romou.base.errors import RecordError
from romou.base.schema import shown
from romou.compiler.task import by_keys
from romou.tuner.records import FILE_NAME, RecordStore
from romou.tuner.records.database import (
    TunedSchedule,
    best_schedules,
    merged,
    read_schedules,
    write_schedules,
)
from romou.tuner.records.recording import Recording
from romou.tuner.records.task_files import other_tasks


def contribute_schedules(path: Path, work_dir: Path | None, recording: Path | None = None) -> tuple[int, int]:
    """Write the best config of each kernel to a file of the database. Faster schedules that the file has stay.

    Return the number of kernels in the records, and of schedules in the file.

    work_dir: folder of the records. None for all folders in the user's cache.
    recording: a file of `romou phone record`, which takes the place of records.

    Raises
    ------
    RecordError
        There are no times in the records, or they are of several devices.
    """
    cache = environment.from_environment().cache_dir.expanduser() / "records"
    folders = [work_dir] if work_dir is not None else [file.parent for file in sorted(cache.rglob(FILE_NAME))]
    schedules = (
        [schedule for folder in folders for schedule in _schedules_in(folder)]
        if recording is None
        else _schedules_of(Recording.load(recording))
    )
    before = read_schedules(path)
    if not schedules:
        raise RecordError(
            f"no config with a time in {recording or work_dir or cache}",
            hint="Tune a model first, or give --work-dir or --recording.",
        )
    # A file is found by the device's name.
    devices = sorted({str(schedule.record.device.get("name")) for schedule in (*before, *schedules)})
    if len(devices) > 1:
        raise RecordError(
            f"{path} would hold schedules of {len(devices)} devices: {shown(', '.join(devices))}; expected one",
            hint="Give another file, or --work-dir with a folder of one device.",
        )
    total = merged(before, schedules)
    write_schedules(path, total)
    return len({schedule.record.task_key for schedule in schedules}), len(total)


def _schedules_in(folder: Path) -> list[TunedSchedule]:
    with RecordStore(folder) as store:
        records = list(store)
    tasks = other_tasks(folder, Counter(record.task_key for record in records))
    return best_schedules(records, by_keys(tasks))


def _schedules_of(recording: Recording) -> list[TunedSchedule]:
    """Return the fastest config of each operator of a recording, among those with a steady clock."""
    records = [trial.record for trial in recording.trials if recording.is_steady(trial)]
    source = "romou phone record, {} configs"
    return best_schedules(records, recording.tasks(), source)
