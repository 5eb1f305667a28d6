"""Task files beside the records of a folder. A search for another model uses them to learn from these records."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from romou.base.files import read_file, replacing
from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

FOLDER_NAME = "tasks"
# Most tasks to read, starting with the task with the most records. Reading each takes time at the start.
_MOST = 64


def keep_tasks(folder: Path, tasks: Iterable[TunableTask]) -> None:
    """Write each task to `folder`/tasks/KEY.json unless the file exists. A folder that is not writable is no error."""
    with contextlib.suppress(OSError):
        for task in tasks:
            path = folder / FOLDER_NAME / f"{task.key}.json"
            if not path.exists():
                with replacing(path) as fresh:
                    fresh.write_text(TunableTask.to_json(task), encoding="utf-8")


def other_tasks(folder: Path, counts: Counter[str]) -> list[TunableTask]:
    """Return the tasks with records in a folder. Tasks that this version cannot read are left out.

    counts: task key -> number of records
    """
    tasks = []
    for key, _ in counts.most_common(_MOST):
        path = folder / FOLDER_NAME / f"{key}.json"
        try:
            task = TunableTask.from_json(read_file(path).decode())
        except FileNotFoundError:
            continue
        except Exception as error:  # TVM reads what another version wrote by many types of exceptions
            logger.info("%s is not learnt from: %s", path, error)
            continue
        if task.key == key:
            tasks.append(task)
    return tasks
