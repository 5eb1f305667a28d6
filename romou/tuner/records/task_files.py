"""The kernels that a folder's records tell of, as files beside them: a search for another model learns from them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from romou.base.files import read_file
from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

FOLDER_NAME = "tasks"
# Of a folder with more, those with most records: each costs a moment at the start.
_MOST = 64


def keep_tasks(folder: Path, tasks: Iterable[TunableTask]) -> None:
    """Write each task to `folder`/tasks/KEY.json, unless it is there. Where that cannot be done, others learn less."""
    with contextlib.suppress(OSError):
        (folder / FOLDER_NAME).mkdir(exist_ok=True)
        for task in tasks:
            path = folder / FOLDER_NAME / f"{task.key}.json"
            if not path.exists():
                # Never a torn file under the name.
                fresh = path.with_suffix(f".{os.getpid()}")
                try:
                    fresh.write_text(TunableTask.to_json(task), encoding="utf-8")
                    fresh.replace(path)
                except OSError:
                    fresh.unlink(missing_ok=True)
                    raise


def other_tasks(folder: Path, counts: Counter[str]) -> list[TunableTask]:
    """Return those tasks of other models that were tuned with this folder. One that another version wrote, and this one
    does not know, is left out.

    counts: task key -> how many records it has.
    """
    found = []
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
            found.append(task)
    return found
