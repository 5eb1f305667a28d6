"""Long tests of which a run takes a share, another one for each content of the checkout.

`long_tests.json` holds the tests that take half a second of processor time or more, with their times. They are six
sevenths of the suite's time and a fifth of its tests. A test that is not in the file always runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_name("long_tests.json")
LONG_S = 0.5
SHARE = 1 / 8


def long_tests() -> dict[str, float]:
    """Return the processor time in seconds of each long test, by its node id."""
    return {
        f"{file}::{name}": seconds for file, of in json.loads(FILE.read_text()).items() for name, seconds in of.items()
    }


def not_drawn(times: Mapping[str, float], seed: str, share: float = SHARE) -> set[str]:
    """Return the tests that a run leaves out. The others take `share` of the time of all."""
    by_chance = sorted(times, key=lambda test: hashlib.sha256(f"{seed} {test}".encode()).digest())
    used = itertools.accumulate((times[test] for test in by_chance), initial=0.0)
    return {test for test, before in zip(by_chance, used, strict=False) if before >= share * sum(times.values())}


def write(times: Mapping[str, float]) -> None:
    """Write the times of a whole run, of which the long tests are kept."""
    by_file: dict[str, dict[str, float]] = {}
    for test, seconds in sorted(times.items()):
        if seconds >= LONG_S:
            file, _, name = test.partition("::")
            by_file.setdefault(file, {})[name] = round(seconds, 1)
    FILE.write_text(json.dumps(by_file, indent=1) + "\n")
