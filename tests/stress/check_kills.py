#!/usr/bin/env python3
"""Kills (-9) a process that tunes while it measures a trial or writes its record. Checks that no record is lost or
duplicated, and that nothing stays behind.

    python tests/stress/check_kills.py                      100 kills of `romou.tune` on one small convolution
    python tests/stress/check_kills.py --kills 10 --seed 1

Each process continues from the records of the one before, and is killed at a random moment after its first new record.
Its workers then have to end on their own, and the next process has to remove its files from the temporary folder. The
last one is not killed and has to leave nothing there. The exit code is 1 at the first violation.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.tuner.records import RecordStore

# Longer than a trial of the model takes on an idle machine, so a kill hits any moment of one.
_LONGEST_S = 0.6
_PATIENCE_S = 120.0
# Arguments: model, folder of the records, trials in total. Prints each config once its record is kept.
TUNER = """
import json, sys
import romou

def tell(trial):
    print(json.dumps(dict(trial.config), sort_keys=True), flush=True)

measure = {"repeat": 1, "min_repeat_ms": 1, "build_workers": 1}
romou.tune(sys.argv[1], trials=int(sys.argv[3]), work_dir=sys.argv[2], explorer="random", callback=tell, measure=measure)
"""  # noqa: E501


def network() -> onnx.ModelProto:
    """Return one convolution, with more configs than all processes together measure."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 24, 9, 9)) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((24, 24, 3, 3), dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], "one", values[:1], values[1:], [weight]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class TuningFolder:
    """A folder with a model, records and a temporary folder, and the processes that tune there. tuner: their code, see
    `TUNER`.
    """

    def __init__(self, folder: Path, tuner: str = TUNER) -> None:
        self.tuner = tuner
        self.model, self.records, self.temporary = folder / "model.onnx", folder / "records", folder / "tmp"
        onnx.save(network(), self.model)
        self.temporary.mkdir()

    def start(self, trials: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", self.tuner, str(self.model), str(self.records), str(trials)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(self.temporary)}
        )

    def left(self) -> set[str]:
        """Return the names in the temporary folder, without the file that onnxruntime creates once and keeps."""
        return {path.name for path in self.temporary.iterdir()} - {".ses"}

    def configs(self) -> list[str]:
        """Return the configs of the records, oldest first, without the configs that a search measures once more at its
        end.
        """
        with RecordStore(self.records) as store:
            return [json.dumps(dict(record.config), sort_keys=True) for record in store if not record.is_again]

    def running(self) -> set[int]:
        """Return the processes that use this place's temporary folder."""
        found, wanted = set(), f"TMPDIR={self.temporary}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            if any(variable == wanted or variable.startswith(wanted + b"/") for variable in variables):
                found.add(int(path.parent.name))
        return found

    def wait_for_workers(self) -> None:
        """Wait until no process of a killed tuner runs any more."""
        stop_at = time.monotonic() + _PATIENCE_S
        while still := self.running():
            expect(time.monotonic() < stop_at, f"processes {sorted(still)} outlive their tuner")
            time.sleep(0.02)


def expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise SystemExit(f"not so: {otherwise}")


def kill_one(
    place: TuningFolder, rng: random.Random, before: list[str], longest_s: float = _LONGEST_S
) -> tuple[list[str], int]:
    """Start a tuner and kill it within `longest_s` after its first record. Return (all records now, the number of its
    records that it did not print).

    SystemExit if a record is lost or duplicated, or if a killed process leaves anything behind.
    """
    left = place.left()
    tuner = place.start(10**6)
    assert tuner.stdout is not None
    told = [tuner.stdout.readline()]
    expect(told[0] != "", f"the tuner ended by itself with {tuner.poll()}")
    expect(
        not left & place.left(),
        f"{sorted(left & place.left())} outlive a tuner that was killed and the start of the next",
    )
    time.sleep(rng.uniform(0, longest_s))
    tuner.kill()
    told += [line for line in tuner.stdout if line.endswith("\n")]
    tuner.wait()
    place.wait_for_workers()
    now, own = place.configs(), [line.strip() for line in told]
    expect(now[: len(before)] == before, "records of an earlier process changed")
    expect(len(set(now)) == len(now), "a record is there twice")
    expect(
        now[len(before) : len(before) + len(own)] == own,
        f"the tuner told of {len(own)} trials, the records have {len(now) - len(before)}, or others",
    )
    untold = len(now) - len(before) - len(own)
    expect(untold <= 1, f"{untold} records that the tuner did not tell of")
    return now, untold


@click.command()
@click.option("--kills", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the moments.")
def main(kills: int, seed: int) -> None:
    """Print the result."""
    started, rng, untold, left = time.monotonic(), random.Random(seed), 0, 0
    records: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = TuningFolder(Path(folder))
        for number in range(1, kills + 1):
            before = len(records)
            records, late = kill_one(place, rng, records)
            untold += late
            left += len(place.left())
            print(
                f"{number}/{kills}: {len(records) - before} trials, {len(records)} in all", file=sys.stderr, flush=True
            )
        damaged = place.records / "records.jsonl.damaged"
        cut_off = len(damaged.read_bytes().splitlines()) if damaged.exists() else 0
        with place.start(len(records) + 1) as last:
            last.communicate()
        expect(last.returncode == 0, f"the last tuner ended with {last.returncode}")
        expect(
            len(place.configs()) == len(records) + 1,
            f"the last tuner added {len(place.configs()) - len(records)} records",
        )
        expect(not place.left(), f"{sorted(place.left())} are left in the temporary folder")
    print(
        f"{kills} kills of seed {seed}: {len(records)} records, none lost, none twice; {untold} written and not told"
        f" of, {cut_off} cut off; {left} temporary folders were left by kills, none after the next start;"
        f" {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
