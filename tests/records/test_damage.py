"""Damaged files of records, schedules, T4, AutoTVM and recordings: one RecordError, and no call is poisoned."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fuzz_files
from file_kinds import DEVICE, KINDS, WORK
from fuzz_files import FAULTS, READ, REFUSED, fuzz
from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.cli import main
from romou.driver.search.contribution import contribute_schedules
from romou.tuner.records import Record, RecordStore
from romou.tuner.records.autotvm import read_autotvm
from romou.tuner.records.database import read_schedules
from romou.tuner.records.recording import Recording
from support.data.autotvm_logs import ARGUMENTS, knobs_of, log_line
from support.suite.exhaustive import exhaustive

T4: dict[str, Any] = {
    "schema_version": "1.0.0",
    "metadata": {"romou": {"schema": 1, "task_key": "k", "device": DEVICE, "romou": "1", "tvm": "2"}},
    "results": [{"configuration": {"tile": 4}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}],
}
RECORD = Record(task_key="k", task_name="n", config={"a": 4}, device=DEVICE, outcome=Outcome.OK, times_s=(1e-3,))
HEADER = {"recording": 1, "origin": {"device": DEVICE, "romou": "1", "tvm": "2"}, "timing": {"clock_limit": 1.15}}
TRIAL = {
    **json.loads(RECORD.to_line()),
    "family": "f",
    "workload": {},
    "chosen_by": "x",
    "clock_s": [1.0],
    "attempts": 1,
}


# A dozen of each kind take some seconds of processor time, most of it the first of each.
@pytest.mark.parametrize("cases", [12, pytest.param(300, marks=exhaustive)])
def test_damaged_files_of_every_kind_are_read_or_refused(cases: int) -> None:
    seed = 7
    print(f"seed {seed}: python tests/stress/fuzz_files.py --seed {seed} --cases {cases}")
    results = fuzz(list(KINDS), range(cases), seed=seed)
    assert not [result for result in results if result.outcome in FAULTS]
    counts = Counter(result.outcome for result in results)
    assert min(counts[READ], counts[REFUSED]) > len(results) / 10


def test_the_fuzzer_sees_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    for planted, expected in (
        (ZeroDivisionError("z"), fuzz_files.OTHER),
        (RecordError("KeyError: x"), fuzz_files.UNCLEAR),
        (RecordError("no"), REFUSED),
    ):

        def read(path: Path, planted: Exception = planted) -> None:
            raise planted

        monkeypatch.setitem(KINDS, "records", dataclasses.replace(KINDS["records"], read=read))
        assert fuzz_files._outcome(KINDS["records"], Path())[0] == expected


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("results", 0, "times", "runtimes"), [-1.0]),
        (("results", 0, "times", "runtimes"), [float("nan")]),
        (("results", 0, "configuration"), {"tile": 1.5}),
        (("results", 0, "measurements"), [{"name": "seed", "value": "x"}]),
        (("metadata", "romou", "device"), "x"),
        (("metadata", "romou", "task_key"), "../k"),
        (("metadata",), [1]),
        (("metadata", "romou", "schema"), True),
    ],
)
def test_what_is_imported_is_what_later_calls_read(place: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    data = json.loads(json.dumps(T4))
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "t4.json").write_text(json.dumps(data))
    arguments = ["records", "import", str(tmp_path / "work"), str(tmp_path / "t4.json"), "--any-device", "--json"]
    result = CliRunner().invoke(main, arguments)
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["type"]) == (1, "RecordError"), result.output
    assert "t4.json" in error["message"]
    assert not (tmp_path / "work" / "records.jsonl").exists()


@pytest.mark.parametrize("value", [10**400, 2**64, float("inf"), -1, "x"])
def test_numbers_that_no_time_has(value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = json.dumps({**json.loads(RECORD.to_line()), "times_s": [value]}) + "\n"
    (tmp_path / "records.jsonl").write_text(line)
    with pytest.raises(RecordError, match=r"records\.jsonl, line 1: no record"):
        RecordStore(tmp_path)
    (tmp_path / "made_up.jsonl").write_text(line + RECORD.to_line() + "\n")
    assert [schedule.record for schedule in read_schedules(tmp_path / "made_up.jsonl")] == [RECORD]
    assert "made_up.jsonl:1: this tuned schedule is skipped" in caplog.text
    (tmp_path / "log").write_text(log_line(knobs_of(), [value]) + "\n")
    with pytest.raises(RecordError, match="log:1: no measurements of AutoTVM"):
        read_autotvm(tmp_path / "log")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (log_line(knobs_of(), [1e-3], arguments=[*ARGUMENTS[:2], [0, 0], *ARGUMENTS[3:]]), "cannot read its arguments"),
        (log_line(knobs_of(), [1e-3], template="../../x"), "plain name of a file"),
        (log_line(knobs_of(), [1e-3], 99), "expected at most 8"),
        (log_line({**knobs_of(), "tile_fc": {"a": 1}}, [1e-3]), "entity"),
        ("[" * 100_000, "nested deeper"),
    ],
)
def test_logs_of_autotvm(line: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"# TopHub's files have comments\n{line}\n")
    with pytest.raises(RecordError, match=f"{tmp_path}/log:.*{reason}"):
        read_autotvm(tmp_path / "log", "adreno660")
    (tmp_path / "log").write_text(f"# a comment\n{log_line(knobs_of(), [1e-3])}\n")
    assert len(read_autotvm(tmp_path / "log", "adreno660")) == 1


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(bytes(1 << 24)) * 17)
    with pytest.raises(RecordError, match="log.gz: .* unpacks to more than 256 MiB"):
        read_autotvm(tmp_path / "log.gz")


@pytest.mark.parametrize(
    ("header", "line", "reason"),
    [
        ({**HEADER, "recording": "1"}, TRIAL, "its first line is no header"),
        ({name: value for name, value in HEADER.items() if name != "timing"}, TRIAL, "timing is missing"),
        ({**HEADER, "timing": {"clock_limit": 0}}, TRIAL, "timing.clock_limit is 0"),
        (HEADER, {**TRIAL, "clock_s": [0, 0]}, r"line 2: .*clock_s\[0\] is 0; expected at least"),
        (HEADER, {**TRIAL, "workload": 5}, "line 2: .*workload is 5; expected an object"),
        (HEADER, "[" * 100_000, "line 2: .*nested deeper"),
        (HEADER, {"archprobe": {"RegCount": 5}}, "line 2: .*RegCount is 5; expected an object"),
        (HEADER, {"temperatures": [], "time": "now", "clocks": {}}, "line 2: .*temperatures is"),
    ],
)
def test_recordings_of_phones(header: Any, line: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    lines = (json.dumps(header), line if isinstance(line, str) else json.dumps(line))
    path.write_text("".join(f"{each}\n" for each in lines))
    with pytest.raises(RecordError, match=reason):
        contribute_schedules(tmp_path / "out.jsonl", None, path)


def test_an_operator_of_no_family_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = {**WORK.to_dict(), "in_hw": [0, -5], "groups": 0}
    for workload in ({"other": 1}, broken, {**WORK.to_dict(), "stride": "x"}):
        path = tmp_path / "phone.json"
        path.write_text(f"{json.dumps(HEADER)}\n{json.dumps({**TRIAL, 'workload': workload})}\n")
        assert Recording.load(path).tasks() == {}
        assert "operator k is not in this version" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("command", ["--contribute", "import", "--recording", "--import-autotvm"])
def test_what_is_no_file_is_neither_read_nor_replaced(command: str, kind: str, tmp_path: Path) -> None:
    odd, work = tmp_path / "odd", tmp_path / "work"
    os.mkfifo(odd) if kind == "pipe" else odd.mkdir()
    with RecordStore(work) as store:
        store.append(RECORD)
    arguments = {
        "--contribute": ["--contribute", str(odd), "--work-dir", str(work)],
        "import": ["import", str(work), str(odd), "--any-device"],
        "--recording": ["--contribute", str(tmp_path / "out"), "--recording", str(odd)],
        "--import-autotvm": ["--import-autotvm", str(odd)],
    }[command]
    before = odd.lstat()
    result = CliRunner().invoke(main, ["records", *arguments])
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit)
    assert "odd" in result.output + result.stderr
    assert odd.lstat().st_ino == before.st_ino


def test_exported_records_are_counted_in_the_files(tmp_path: Path) -> None:
    """Second measurements at the end of a search are left out of T4, and of the count."""
    with RecordStore(tmp_path / "work") as store:
        for number in range(3):
            record = dataclasses.replace(RECORD, config={"a": number})
            store.append(record)
            store.append(dataclasses.replace(record, is_again=True))
    result = CliRunner().invoke(main, ["records", "export", str(tmp_path / "work"), str(tmp_path / "t4"), "--json"])
    told = json.loads(result.stdout)
    assert told["records"] == sum(len(json.loads(Path(file).read_text())["results"]) for file in told["files"]) == 3
