"""Long tests of which a run takes a share, another one for each content of the checkout.

`long_tests.json` holds the tests that take half a second of processor time or more, with their times. Tests that share
a fixture of half a second or more for each of them are in the file too, and are drawn together: the first one that runs
pays for the fixture. A test that is not in the file always runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("long_tests.json")
LONG_S = 0.5
SHARE = 1 / 10


def long_tests() -> dict[str, dict[str, float]]:
    """Return the processor time in seconds of each long test by its node id, in groups that are drawn together.

    A group has the name of the fixture that its tests share, or of its only test.
    """
    groups: dict[str, dict[str, float]] = {}
    for file, of in json.loads(FILE.read_text()).items():
        for name, times in of.items():
            if isinstance(times, dict):
                groups.setdefault(name, {}).update({f"{file}::{test}": seconds for test, seconds in times.items()})
            else:
                groups[f"{file}::{name}"] = {f"{file}::{name}": times}
    return groups


def not_drawn(groups: Mapping[str, Mapping[str, float]], seed: str, share: float = SHARE) -> set[str]:
    """Return the tests that a run leaves out. The others take `share` of the time of all."""
    times = {group: sum(tests.values()) for group, tests in groups.items()}
    by_chance = sorted(times, key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).digest())
    used = itertools.accumulate((times[group] for group in by_chance), initial=0.0)
    limit = share * sum(times.values())
    left_out = [group for group, before in zip(by_chance, used, strict=False) if before >= limit]
    return {test for group in left_out for test in groups[group]}


def write(times: Mapping[str, float], fixture_of: Mapping[str, str], left_out: Collection[str] = ()) -> None:
    """Write the times of the long tests of a run. What the file has of other files' tests stays.

    fixture_of: test -> the long fixture that it shares with others, for tests that have one.
    left_out: tests that were not drawn. They keep their times.
    """
    run = {test.partition("::")[0] for test in times}
    group_of, seconds_of = dict(fixture_of), {test: s for test, s in times.items() if s >= LONG_S or test in fixture_of}
    for group, tests in long_tests().items() if FILE.exists() else ():
        for test, seconds in tests.items():
            if test in left_out or test.partition("::")[0] not in run:
                seconds_of[test] = seconds
                if group != test:
                    group_of.setdefault(test, group)
    by_file: dict[str, dict[str, Any]] = {}
    for test, seconds in sorted(seconds_of.items()):
        file, _, name = test.partition("::")
        tests = by_file.setdefault(file, {})
        if test in group_of:
            tests = tests.setdefault(group_of[test], {})
        tests[name] = round(seconds, 1)
    FILE.write_text(json.dumps(by_file, indent=1) + "\n")
