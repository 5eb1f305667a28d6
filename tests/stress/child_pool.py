"""Cases run in child processes that survive each other's crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import TypeVar

from romou.runtime.workers.child import ChildProcess

T = TypeVar("T")
Of = TypeVar("Of")


def in_children(name: str, run: Callable[[ChildProcess, Of], T], cases: Iterable[Of], *, jobs: int) -> list[T]:
    """Return the results of `run` for each case, in order.

    jobs: child processes at a time
    name: the name of the processes in errors
    """
    children: Queue[ChildProcess] = Queue()
    for _ in range(jobs):
        children.put(ChildProcess(name))

    def run_one(case: Of) -> T:
        child = children.get()
        try:
            return run(child, case)
        finally:
            children.put(child)

    try:
        with ThreadPoolExecutor(jobs) as threads:
            return list(threads.map(run_one, cases))
    finally:
        for _ in range(jobs):
            children.get().kill()
