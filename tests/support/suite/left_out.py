"""Prints the number of exhaustive tests that a run left out, and the run's processor time, as its last lines
(`exhaustive`).
"""

from __future__ import annotations

import atexit
import itertools
import os
import resource
from typing import Any

import pytest

from support.suite.exhaustive import in_turn_of

_LEFT_OUT = pytest.StashKey[int]()
_PROCESS = os.getpid()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="Run the exhaustive tests too, which check by many cases what others check by a few.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exhaustive: left out without --exhaustive")
    config.addinivalue_line("markers", "in_turn: most combinations of its parameters are exhaustive")
    config.stash[_LEFT_OUT] = 0
    if not hasattr(config, "workerinput"):
        # Registered first, so that it is called last at the exit, when children have ended and are counted.
        atexit.register(_tell, config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect exhaustive tests, after all other selections, and count them."""
    if config.getoption("--exhaustive"):
        return
    kept = [item for item in items if not item.get_closest_marker("exhaustive")]
    for _, of_test in itertools.groupby(kept, lambda item: item.nodeid.partition("[")[0]):
        combinations = list(of_test)
        if combinations[0].get_closest_marker("in_turn"):
            for item, is_kept in zip(combinations, in_turn_of([_values(item) for item in combinations]), strict=True):
                if not is_kept:
                    item.add_marker("exhaustive")
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left_out)
    config.stash[_LEFT_OUT] = len(left_out)


def _values(item: Any) -> list[tuple[int, ...]]:
    """Return the identities of a test's parameters, those of each list together."""
    lists = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return [
        tuple(id(item.callspec.params[name.strip()]) for name in (one.split(",") if isinstance(one, str) else one))
        for one in lists
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[_LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the count of a pytest-xdist worker: every worker collects all tests, and the first process none."""
    config = node.config
    config.stash[_LEFT_OUT] = max(config.stash[_LEFT_OUT], getattr(node, "workeroutput", {}).get("left_out", 0))


def _tell(config: pytest.Config) -> None:
    if os.getpid() != _PROCESS:  # a fork
        return
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    # Under scripts/test.sh, this includes the script's earlier work, because the script becomes this process.
    print(f"processor time of this run and of all that it started: {sum(u.ru_utime + u.ru_stime for u in used):.0f} s")
    if left_out := config.stash[_LEFT_OUT]:
        print(
            f"{left_out} exhaustive tests were left out; to run them as well: scripts/test.sh --exhaustive", flush=True
        )
