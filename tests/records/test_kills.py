"""kill -9 while a trial is measured or written: nothing that was acknowledged is lost, nothing is there twice, and no
temporary folder stays.

tests/stress/check_kills.py does the same to real tuners.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from check_kills import TuningFolder, kill_one

KILLS = 12

# A tuner without a device: it continues from the existing records, measures into temporary folders, and reports each
# record that is on disk.
_TUNER = """
import json, os, sys, tempfile
from pathlib import Path
from romou.base.folders import HeldFolder
from romou.base.outcome import Outcome
from romou.tuner.records import Record, RecordStore

with RecordStore(sys.argv[2]) as store, HeldFolder("build") as built, HeldFolder("run"):
    done = {record.config["number"] for record in store}
    for number in range(int(sys.argv[3])):
        if number not in done:
            Path(built, f"{number}.so").write_bytes(os.urandom(20_000))
            store.append(Record(task_key="a", task_name="a", config={"number": number}, device={"name": "x" * 2000}, outcome=Outcome.OK, times_s=(1.0,)))
            print(json.dumps({"number": number}), flush=True)
"""  # noqa: E501


def test_killed_tuners_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    rng, place = random.Random(0), TuningFolder(tmp_path, _TUNER)
    records: list[str] = []
    for _ in range(KILLS):
        records, _ = kill_one(place, rng, records, 0.05)
        assert len(place.left()) == 2
    assert len(records) > KILLS
    with place.start(len(records)) as last:
        last.communicate()
    assert not place.left()


FAULTS = {
    "tells before it has written": (
        ("store.append", "pass; late = lambda: store.append"),
        r"told of \d+ trials, the records have 0",
    ),
    "writes twice": (("print(", "store.append(list(store)[-1]); print("), "a record is there twice"),
    "leaves a folder": (
        ('HeldFolder("run")', "tempfile.TemporaryDirectory()"),
        "outlive a tuner that was killed and the start of the next",
    ),
    "leaves a worker": (
        ("print(", "__import__('subprocess').Popen(['sleep', '2'], stdin=-3, stdout=-3); print("),
        "outlive their tuner",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_planted_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of tests/stress/check_kills.py finds planted faults."""
    monkeypatch.setattr("check_kills._PATIENCE_S", 0.2)
    (old, new), found = FAULTS[fault]
    place, rng = TuningFolder(tmp_path, _TUNER.replace(old, new)), random.Random(0)
    with pytest.raises(SystemExit, match=found):
        kill_one(place, rng, kill_one(place, rng, [], 0.0)[0], 0.0)
