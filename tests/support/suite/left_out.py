"""Leaves tests out of a run: exhaustive ones (`exhaustive`), and long ones that were not drawn (`drawn`). Prints their
numbers, and the run's processor time, as its last lines.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.suite import drawn
from support.suite.exhaustive import in_turn_of

# The numbers of exhaustive tests and of tests that were not drawn.
_LEFT_OUT = pytest.StashKey[tuple[int, int]]()
_TIMES = pytest.StashKey[dict[str, float]]()
# The times of fixtures that several tests share, and the names of those that each test has.
_FIXTURES = pytest.StashKey[dict[str, float]]()
_SHARED = pytest.StashKey[dict[str, list[str]]]()
# The time of such fixtures in the test that runs.
_SET_UP = pytest.StashKey[float]()
_PROCESS = os.getpid()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="Run the exhaustive tests too, which check by many cases what others check by a few.",
    )
    parser.addoption(
        "--draw",
        metavar="SEED",
        help=f"Of the long tests ({drawn.FILE.name}) run a share of their time, chosen by SEED.",
    )
    parser.addoption(
        "--update-long-tests", action="store_true", help=f"Write the times of the files that run to {drawn.FILE.name}."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exhaustive: left out without --exhaustive")
    config.addinivalue_line("markers", "in_turn: most combinations of its parameters are exhaustive")
    config.stash[_LEFT_OUT] = (0, 0)
    config.stash[_TIMES], config.stash[_FIXTURES], config.stash[_SHARED] = {}, {}, {}
    if not hasattr(config, "workerinput"):
        # Registered first, so that it is called last at the exit, when children have ended and are counted.
        atexit.register(_tell, config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect exhaustive tests and long ones that are not drawn, after all other selections, and count them."""
    if config.getoption("--exhaustive"):
        return
    _mark_combinations(items)
    exhaustive = {item for item in items if item.get_closest_marker("exhaustive")}
    seed = config.getoption("--draw")
    names = set() if seed is None else drawn.not_drawn(drawn.long_tests(), seed)
    others = {item for item in items if item.nodeid in names} - exhaustive
    if config.getoption("--update-long-tests"):
        config.stash[_SHARED] = {item.nodeid: _shared_fixtures(item) for item in items if item not in exhaustive}
    left_out = exhaustive | others
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    config.stash[_LEFT_OUT] = (len(exhaustive), len(others))


def _mark_combinations(items: list[pytest.Item]) -> None:
    """Mark the combinations of parameters that `in_turn` leaves out as exhaustive."""
    kept = [item for item in items if not item.get_closest_marker("exhaustive")]
    for _, of_test in itertools.groupby(kept, lambda item: item.nodeid.partition("[")[0]):
        combinations = list(of_test)
        if combinations[0].get_closest_marker("in_turn"):
            for item, is_kept in zip(combinations, in_turn_of([_values(item) for item in combinations]), strict=True):
                if not is_kept:
                    item.add_marker("exhaustive")


def _values(item: Any) -> list[tuple[int, ...]]:
    """Return the identities of a test's parameters, those of each list together."""
    lists = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return [
        tuple(id(item.callspec.params[name.strip()]) for name in (one.split(",") if isinstance(one, str) else one))
        for one in lists
    ]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the processor time of a test without its shared fixtures, its child processes included."""
    stash = item.config.stash
    before, stash[_SET_UP] = _used_s(item.config), 0.0
    yield
    stash[_TIMES][item.nodeid] = _used_s(item.config) - before - stash[_SET_UP]


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the processor time of a fixture that several tests share, without the fixtures that it uses."""
    before = _used_s(request.config)
    yield
    if fixturedef.scope != "function":
        times, name, seconds = request.config.stash[_FIXTURES], _name_of(fixturedef), _used_s(request.config) - before
        times[name] = max(times.get(name, 0.0), seconds)
        request.config.stash[_SET_UP] += seconds


def _shared_fixtures(item: pytest.Item) -> list[str]:
    """Return the names of a test's shared fixtures, without fixtures of the whole suite, which every run sets up."""
    fixtures = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]  # type: ignore[attr-defined]
    return [_name_of(one) for one in fixtures if one.scope != "function" and one.baseid not in ("", "tests")]


def _name_of(fixturedef: pytest.FixtureDef[Any]) -> str:
    return f"{fixturedef.baseid}::{fixturedef.argname}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    stash = config.stash
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = stash[_LEFT_OUT]
        config.workeroutput["times"] = stash[_TIMES], stash[_FIXTURES], stash[_SHARED]
    elif config.getoption("--update-long-tests"):
        users = Counter(name for names in stash[_SHARED].values() for name in names)
        long = {name for name, seconds in stash[_FIXTURES].items() if seconds >= drawn.LONG_S * users[name] > 0}
        shared = {test: long.intersection(names) for test, names in stash[_SHARED].items()}
        longest = {test: max(names, key=stash[_FIXTURES].__getitem__) for test, names in shared.items() if names}
        part = {name: stash[_FIXTURES][name] / users[name] for name in long}
        times = {test: seconds + sum(part[name] for name in shared[test]) for test, seconds in stash[_TIMES].items()}
        drawn.write(times, longest, shared.keys() - times.keys())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the counts of a pytest-xdist worker: every worker collects all tests, and the first process none."""
    output = getattr(node, "workeroutput", {})
    if "left_out" in output:
        node.config.stash[_LEFT_OUT] = tuple(output["left_out"])
        times, fixtures, shared = output["times"]
        node.config.stash[_TIMES].update(times)
        node.config.stash[_SHARED].update(shared)
        of_all = node.config.stash[_FIXTURES]
        of_all.update({name: max(seconds, of_all.get(name, 0.0)) for name, seconds in fixtures.items()})


def _used_s(config: pytest.Config) -> float:
    """Return the processor seconds of this process and of all its descendants, running ones included.

    Workers are forked by a process that keeps running (`nursery`). The search for them takes time, so only a run that
    writes its times does it.
    """
    if not config.getoption("--update-long-tests"):
        return 0.0
    children: dict[int, list[tuple[int, int]]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            fields = file.read_text().rpartition(")")[-1].split()
            # Ticks of the process and of its children that ended.
            children.setdefault(int(fields[1]), []).append((int(file.parent.name), sum(map(int, fields[11:15]))))
    used, parents = 0, [os.getpid()]
    for parent in parents:
        for child, ticks in children.get(parent, ()):
            used += ticks
            parents.append(child)
    return _processor_s() + used / os.sysconf("SC_CLK_TCK")


def _processor_s() -> float:
    """Return the processor seconds of this process and of its ended children."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _tell(config: pytest.Config) -> None:
    if os.getpid() != _PROCESS:  # a fork
        return
    # Under scripts/test.sh, this includes the script's earlier work, because the script becomes this process.
    print(f"processor time of this run and of all that it started: {_processor_s():.0f} s", flush=True)
    exhaustive, others = config.stash[_LEFT_OUT]
    if others:
        print(f"{others} long tests were not drawn this time; to run them as well: scripts/test.sh tests", flush=True)
    if exhaustive:
        print(
            f"{exhaustive} exhaustive tests were left out; to run them as well: scripts/test.sh --exhaustive",
            flush=True,
        )
