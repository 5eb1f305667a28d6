"""Files of recordings: appended to, continued, refused if they are something else, and offered as schedules."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.cli import main
from romou.compiler.single_operator import conv
from romou.devices.targets import Target
from romou.tuner.records import Origin, Record
from romou.tuner.records.database import read_schedules
from romou.tuner.records.recording import RECORDING_SCHEMA, RecordedTrial, Recording, recordable_task
from support.devices.made_up_device import FINGERPRINT

WORK = conv(8, (6, 6), 8, (1, 1))
TASK = recordable_task(WORK.to_dict())
ORIGIN = Origin(device=FINGERPRINT.to_dict(), romou="1", tvm="2")
HEADER = {"target": "opencl -device=adreno640", "timing": {"clock_limit": 1.15}}


def trial(number: int, time_s: float | None = 1e-3, clock_s: tuple[float, ...] = (1.0, 1.0)) -> RecordedTrial:
    config = {**TASK.default_config(Target(HEADER["target"])), "unroll": f"number {number}"}  # type: ignore[arg-type]
    record = Record(
        task_key=TASK.key,
        task_name=TASK.name,
        config=config,
        device=ORIGIN.device,
        outcome=Outcome.OK if time_s else Outcome.INVALID,
        times_s=(time_s,) if time_s else (),
    )
    return RecordedTrial(
        record=record,
        family=TASK.family,
        workload=WORK.to_dict(),
        chosen_by="random",
        clock_s=clock_s if time_s else (),
    )


def begun(path: Path, *trials: RecordedTrial) -> Recording:
    recording = Recording.begin(path, ORIGIN, HEADER)
    for each in trials:
        recording.append(each.to_line())
    return recording


def test_all_lines_come_back(tmp_path: Path) -> None:
    recording = begun(tmp_path / "phone.json", trial(0), trial(1, None))
    recording.append(json.dumps({"archprobe": {"ArchProbe": {"IsComplete": False}}}))
    recording.append(json.dumps({"archprobe": {"ArchProbe": {"IsComplete": True}}}))
    recording.append(json.dumps({"time": "now", "clocks": {"kgsl-3d0": 840_000_000}, "temperatures": {}}))
    again = Recording.load(recording.path)
    for either in (recording, again):
        assert [t.record.outcome for t in either.trials] == ["ok", "invalid"]
        assert either.archprobe == {"ArchProbe": {"IsComplete": True}}
        assert [s["clocks"] for s in either.sensors] == [{"kgsl-3d0": 840_000_000}]
    assert again.trials == [RecordedTrial.from_line(t.to_line()) for t in recording.trials]
    assert again.origin == ORIGIN
    assert list(again.tasks()) == [TASK.key]
    # Each line of a trial is a line of records, too.
    assert Record.from_line(again.trials[0].to_line()) == again.trials[0].record


def test_an_operator_of_another_version_has_no_task(tmp_path: Path) -> None:
    other = trial(0)
    other = dataclasses.replace(other, record=dataclasses.replace(other.record, task_key="0" * 16))
    assert begun(tmp_path / "phone.json", other).tasks() == {}


def test_a_cut_off_line_is_dropped_and_the_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    begun(path, trial(0), trial(1))
    whole = path.read_bytes()
    for cut in (1, 30, len(trial(1).to_line())):
        path.write_bytes(whole[:-cut])
        assert len(Recording.load(path).trials) == 1
        assert len(begun(path, trial(2)).trials) == 2
        assert [t.record.config["unroll"] for t in Recording.load(path).trials] == ["number 0", "number 2"]


def test_a_clock_that_was_slow_is_told_by_the_best_of_the_whole_file(tmp_path: Path) -> None:
    """The first candidate ran before the clock was up, which shows when the best time is known."""
    path = tmp_path / "phone.json"
    recording = begun(path, trial(0, clock_s=(2.0, 2.0)))
    assert recording.is_steady(recording.trials[0])
    for number, clock_s in enumerate(((1.0, 1.1), (1.0, 1.2), (1.2, 1.0)), 1):
        recording.append(trial(number, clock_s=clock_s).to_line())
    assert [recording.clock_ratio(t) for t in recording.trials] == [2.0, 1.1, 1.2, 1.2]
    assert [recording.is_steady(t) for t in recording.trials] == [False, True, False, False]
    assert not recording.is_steady(trial(9, None))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no recording of a phone"),
        ('{"schema": 1}\n', "no recording of a phone"),
        ("not JSON\n", "no recording of a phone"),
        ("[1]\n", "no recording of a phone"),
        ("\x00\xff", "no recording of a phone"),
        (json.dumps({"recording": RECORDING_SCHEMA + 1, "origin": dataclasses.asdict(ORIGIN)}) + "\n", "newer Romou"),
        (json.dumps({"recording": 1, "origin": dataclasses.asdict(ORIGIN), **HEADER}) + '\n{"other": 1}\n', "line 2"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "phone.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(RecordError, match=message):
        Recording.load(path)
    if content:
        with pytest.raises(RecordError, match=message):
            Recording.begin(path, ORIGIN, HEADER)
        assert path.read_text(encoding="latin-1") == content


def test_a_file_of_another_device_or_version(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    begun(path, trial(0))
    for change, message in (
        ({"device": {**ORIGIN.device, "name": "another"}}, "this device is 'another'"),
        ({"device": {**ORIGIN.device, "driver": "2"}}, "driver '1', this one is '2'"),
        ({"romou": "0"}, "measured with Romou 1"),
    ):
        with pytest.raises(RecordError, match=message):
            Recording.begin(path, dataclasses.replace(ORIGIN, **change), HEADER)
    with pytest.raises(RecordError, match="cannot keep a recording here"):
        Recording.begin(path / "below", ORIGIN, HEADER)


def test_the_best_config_with_a_steady_clock_is_offered(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    begun(path, trial(0, 3e-3), trial(1, 2e-3), trial(2, 1e-3, (1.0, 1.9)), trial(3, None))
    database = tmp_path / "made_up.jsonl"
    done = CliRunner().invoke(main, ["records", "--contribute", str(database), "--recording", str(path)])
    assert done.exit_code == 0, done.output
    (schedule,) = read_schedules(database)
    assert (schedule.time_s, schedule.record.config["unroll"]) == (2e-3, "number 1")
    assert (schedule.family, schedule.workload["in_channels"]) == (TASK.family, 8)
    assert schedule.source == "romou phone record, 2 configs"
