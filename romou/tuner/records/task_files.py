"""Task files beside the records of a folder. A search for another model uses them to learn from these records.

A file holds a task's JSON and, on a second line, the SHA-256 of the first: TVM reads past the end of arrays for some
damaged texts.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from romou.base.errors import RecordError
from romou.base.files import digest_of, read_file, replacing
from romou.base.foreign import refused
from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

FOLDER_NAME = "tasks"
# Most tasks to read, starting with the task with the most records. Reading each takes time at the start.
_MOST = 64


def keep_tasks(folder: Path, tasks: Iterable[TunableTask]) -> None:
    """Write each task to its file unless the file is there. A folder that is not writable is no error."""
    with contextlib.suppress(OSError):
        for task in tasks:
            path = _file_of(folder, task.key)
            try:
                _text_in(path)
            except RecordError:
                text = TunableTask.to_json(task).encode()
                with replacing(path) as fresh:
                    fresh.write_bytes(text + b"\n" + digest_of(text))


def other_tasks(folder: Path, counts: Counter[str]) -> list[TunableTask]:
    """Return the tasks with records in a folder. Tasks that this version cannot read are left out.

    counts: task key -> number of records
    """
    tasks = []
    for key, _ in counts.most_common(_MOST):
        if not _file_of(folder, key).exists():
            continue
        try:
            tasks.append(kept_task(folder, key))
        except RecordError as error:
            logger.info("not learnt from: %s", error)
    return tasks


def kept_task(folder: Path, key: str) -> TunableTask:
    """Return the task with a key. RecordError if its file is missing, damaged or of another version."""
    path = _file_of(folder, key)
    text = _text_in(path)
    try:
        task = TunableTask.from_json(text)
    except Exception as error:  # TVM reads what another version wrote by many types of exceptions
        raise RecordError(f"{path}: no task of this version: {error}") from error
    if key not in (task.key, task.structure):
        raise RecordError(f"{path}: no task of this version: its key is {task.key}")
    return task


def _file_of(folder: Path, key: str) -> Path:
    return folder / FOLDER_NAME / f"{key}.json"


def _text_in(path: Path) -> str:
    """Return the JSON in a file. RecordError if it is missing or damaged."""
    with refused(RecordError, f"{path}: no task", hint="Give a folder that a search wrote."):
        text, _, digest = read_file(path).partition(b"\n")
        if digest != digest_of(text):
            raise ValueError("its SHA-256 is not that of what was written")
        return text.decode()
