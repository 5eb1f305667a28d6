"""Work spread over processes."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any


@contextlib.contextmanager
def mapping(jobs: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a `map` over `jobs` new processes, or over this process if `jobs` is 1."""
    if jobs == 1:
        yield map
        return
    # Not forked: TVM has started threads.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.map
