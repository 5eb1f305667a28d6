"""Exhaustive tests are left out by default, and long ones that were not drawn; each run reports both and its cost."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.docs.documents import ROOT
from support.suite.drawn import SHARE, long_tests, not_drawn
from support.suite.exhaustive import few, in_turn_of

TESTS = """
import subprocess, sys
import pytest
from support.suite.exhaustive import exhaustive, few, in_turn

@pytest.mark.parametrize(("a", "b"), few([(1, 2), (3, 4), (5, 6)], 1))
def test_sampled(a, b):
    assert (a, b) == (3, 4)

@in_turn
@pytest.mark.parametrize(("a", "b"), [(1, 2), (3, 4)])
@pytest.mark.parametrize("c", "xyz")
def test_combined(a, b, c):
    assert (a, c) in [(1, "x"), (3, "y"), (1, "z")]

@exhaustive
def test_whole():
    assert False, "it was run"

def be_busy():
    subprocess.run([sys.executable, "-c", "import time; begin = time.process_time()\\nwhile time.process_time() < begin + 1.2: pass"], check=True)

def test_busy():
    be_busy()
"""  # noqa: E501
SHARED = """
import pytest
from test_it import be_busy

@pytest.fixture(scope="module")
def busy():
    be_busy()

def test_without():
    pass

@pytest.mark.parametrize("x", [1, 2])
def test_short(busy, x):
    pass
"""


CONFTEST = """
from pathlib import Path
from support.suite import drawn
drawn.FILE = Path(__file__).with_name("long_tests.json")
pytest_plugins = ["support.suite.left_out"]
"""


def run(folder: Path, *options: str) -> list[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS)
    (folder / "test_shared.py").write_text(SHARED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--strict-markers",
        *options,
        str(folder),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


def test_the_last_lines_say_what_was_left_out_and_what_it_cost(tmp_path: Path) -> None:
    """The time of each process counts, with and without workers."""
    *_, passed, time, left_out = run(tmp_path, "-n", "2")
    assert "8 passed" in passed
    # pytest in three processes, and a second in a fourth.
    assert int(time.removeprefix("processor time of this run and of all that it started: ").removesuffix(" s")) >= 2
    assert left_out == "6 exhaustive tests were left out; to run them as well: scripts/test.sh --exhaustive"
    assert run(tmp_path, "-k", "busy or whole")[-1].startswith("1 exhaustive tests were left out")


def test_they_are_run_when_asked_for(tmp_path: Path) -> None:
    *_, passed, time = run(tmp_path, "--exhaustive", "-k", "not busy")
    assert "6 failed, 7 passed" in passed
    assert time.startswith("processor time")


def left_out_by(last_lines: list[str]) -> int:
    """Return the number of tests that were not drawn, from the last lines of a run."""
    end = " long tests were not drawn this time; to run them as well: scripts/test.sh tests"
    return next(int(line.removesuffix(end)) for line in last_lines if line.endswith(end))


def test_long_tests_are_measured_and_then_drawn(tmp_path: Path) -> None:
    run(tmp_path, "-n", "2", "--update-long-tests")
    file = tmp_path / "long_tests.json"
    times = json.loads(file.read_text())
    assert list(times) == ["test_it.py", "test_shared.py"]
    assert list(times["test_it.py"]) == ["test_busy"]
    assert 1.2 <= times["test_it.py"]["test_busy"] < 5
    # The tests of a long fixture are drawn together.
    assert list(times["test_shared.py"]) == ["test_shared.py::busy"]
    shared = times["test_shared.py"]["test_shared.py::busy"]
    assert list(shared) == ["test_short[1]", "test_short[2]"]
    assert 1.2 <= sum(shared.values()) < 15
    # Tests that were not drawn keep their times.
    kept = {"test_it.py": {"test_busy": 30.0}, "test_shared.py": {"test_shared.py::busy": dict.fromkeys(shared, 15.0)}}
    file.write_text(json.dumps(kept))
    is_busy_left_out = left_out_by(run(tmp_path, "--draw", "a seed", "--update-long-tests")) == 1
    now = json.loads(file.read_text())
    assert [now[name] == kept[name] for name in kept] == [is_busy_left_out, not is_busy_left_out]


def test_other_files_keep_their_times(tmp_path: Path) -> None:
    file = tmp_path / "long_tests.json"
    file.write_text(json.dumps({"test_it.py": {"test_busy": 30.0}, "test_other.py": {"test_other.py::x": {"y": 0.1}}}))
    run(tmp_path, "-k", "short", "--update-long-tests")
    *others, shared = json.loads(file.read_text()).items()
    assert dict(others) == {"test_it.py": {"test_busy": 30.0}, "test_other.py": {"test_other.py::x": {"y": 0.1}}}
    assert shared[0] == "test_shared.py"


def test_a_seed_draws(tmp_path: Path) -> None:
    file = tmp_path / "long_tests.json"
    file.write_text(json.dumps({"test_it.py": {"test_busy": 1.0, "test_sampled[3-4]": 1.0, "test_whole": 1.0}}))
    *_, passed, _, _, exhaustive = lines = run(tmp_path, "-n", "2", "--draw", "a seed")
    # Of three tests one is drawn, which may be the exhaustive one.
    left_out = left_out_by(lines)
    assert left_out in (1, 2)
    assert f"{8 - left_out} passed" in passed
    assert exhaustive.startswith("6 exhaustive tests")


def test_a_share_of_the_time_is_drawn_and_in_the_end_all() -> None:
    groups = long_tests()
    times = {test: seconds for tests in groups.values() for test, seconds in tests.items()}
    whole, longest = sum(times.values()), max(sum(tests.values()) for tests in groups.values())
    every = [times.keys() - not_drawn(groups, str(seed)) for seed in range(200)]
    # Sums of floats depend on their order.
    least, most = SHARE * whole - 1e-3, SHARE * whole + longest + 1e-3
    assert all(least <= sum(times[test] for test in drawn) <= most for drawn in every)
    assert all(not tests.keys() & drawn or tests.keys() <= drawn for drawn in every for tests in groups.values())
    assert set.union(*every) == times.keys()
    assert len(set(map(frozenset, every))) == 200
    assert not_drawn(groups, "1") == not_drawn(groups, "1")


@pytest.mark.parametrize("kept", [(), (0, 1, 2), (0, 0), (3,)])
def test_a_sample_is_a_sample(kept: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        few("abc", *kept)


def test_each_value_of_the_longest_list_is_in_the_sample_once() -> None:
    every = list(itertools.product("ab", "xy", "1234"))
    kept = [one for one, is_kept in zip(every, in_turn_of(every), strict=True) if is_kept]
    assert sorted(kept) == [("a", "x", "1"), ("a", "y", "3"), ("b", "x", "4"), ("b", "y", "2")]
