"""kill -9 while a trial is measured or written: nothing that was acknowledged is lost, nothing is there twice, and no temporary folder stays.

KILLS=100 in the environment kills as many processes.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from romou.records import RecordStore

KILLS = int(os.environ.get("KILLS", "12"))

# A tuner without a device: takes up where the records end, measures into temporary folders, and tells of each record that is on disk.
_TUNER = """
import os, sys
from pathlib import Path
from romou.core.folders import HeldFolder
from romou.core.outcome import Outcome
from romou.records import Record, RecordStore

with RecordStore(sys.argv[1]) as store, HeldFolder("build") as built, HeldFolder("run"):
    done = {record.config["number"] for record in store}
    print("ready", flush=True)
    for number in range(10**9):
        if number not in done:
            Path(built, f"{number}.so").write_bytes(os.urandom(20_000))
            store.append(Record(task_key="a", task_name="a", config={"number": number}, device={"name": "x" * 2000}, outcome=Outcome.OK, times_s=(1.0,)))
            print(number, flush=True)
"""


def test_killed_tuners_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    rng = random.Random(0)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    told: set[int] = set()
    for _ in range(KILLS):
        tuner = subprocess.Popen([sys.executable, "-c", _TUNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment)
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "ready\n"
        # What the one before left is gone; these are its own.
        assert len(list(temporary.iterdir())) == 2
        time.sleep(rng.uniform(0, 0.05))
        tuner.kill()
        told |= {int(line) for line in tuner.stdout if line.endswith("\n")}
        tuner.wait()
        with RecordStore(tmp_path) as store:
            numbers = [record.config["number"] for record in store]
        assert len(set(numbers)) == len(numbers)
        assert told <= set(numbers)
        # A record may be on disk that the tuner had no time to tell of, but only the last one of each.
        assert set(numbers) == set(range(len(numbers)))
    assert len(told) > KILLS
    assert len(list(temporary.iterdir())) == 2
    subprocess.run([sys.executable, "-c", "from romou.core.folders import HeldFolder; HeldFolder('build').cleanup()"], env=environment, check=True)
    assert list(temporary.iterdir()) == []
