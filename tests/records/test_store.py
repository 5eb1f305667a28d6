"""Records: appended, repaired, locked, never mixed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.base.space import Config, Space
from romou.tuner.records import FILE_NAME, SCHEMA, Record, RecordStore
from romou.tuner.records.database import TunedSchedule

DEVICE = {"kind": "opencl", "name": "a GPU", "driver": "1", "platform": "p", "is_host_cpu": False}


def record(
    key: str = "a" * 16,
    time_s: float | None = 1.0,
    outcome: Outcome = Outcome.OK,
    device: dict[str, object] | None = None,
    **config: int,
) -> Record:
    times = () if time_s is None else (time_s, time_s * 1.5, time_s * 1.1)
    return Record(
        task_key=key, task_name="conv", config=dict(config), device=device or DEVICE, outcome=outcome, times_s=times
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = [record(tile=i, time_s=0.001 * (i + 1)) for i in range(5)] + [
        record(time_s=None, outcome=Outcome.TIMEOUT, tile=9)
    ]
    with RecordStore(tmp_path) as store:
        for r in written:
            store.append(r)
    with RecordStore(tmp_path) as store:
        assert list(store) == written
        assert len(store) == 6
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert [json.loads(line)["config"]["tile"] for line in lines] == [0, 1, 2, 3, 4, 9]
    assert all(json.loads(line)["schema"] == SCHEMA for line in lines)


def test_lines_from_before_a_field_was_added_are_read() -> None:
    old = json.loads(record(tile=1).to_line())
    assert old.pop("clock_ratio", "missing") is None
    assert Record.from_line(json.dumps(old)) == record(tile=1)
    assert Record.from_line(json.dumps({**old, "clock_ratio": 1.25})).clock_ratio == 1.25


def test_choices_have_todays_names() -> None:
    """Records, databases, given configs: what was `unroll=turn` before 0.2.0 is `unroll=iteration`."""
    new = dataclasses.replace(record(), config={"unroll": "iteration"})
    old = new.to_line().replace("iteration", "turn")
    assert "turn" in old
    in_database = TunedSchedule(record=new, family="conv2d").to_line().replace("iteration", "turn")
    assert Record.from_line(old) == TunedSchedule.from_line(in_database).record == new
    space = Space()
    space.define_knob("unroll", ("lanes", "turn"))
    assert Config({"unroll": "turn"}) == Config({"unroll": "iteration"}) == space.completed({"unroll": "turn"})
    assert space.index_of({"unroll": "turn"}) == 1


def test_the_median_of_all_repeats_counts() -> None:
    assert record(time_s=2.0).time_s == pytest.approx(2.2)
    assert record(time_s=None, outcome=Outcome.WRONG_RESULT).time_s is None


def test_best_of_this_device_alone(tmp_path: Path) -> None:
    with RecordStore(tmp_path) as store:
        for r in (
            record(time_s=3.0, tile=1),
            record(time_s=2.0, tile=2),
            record(time_s=None, outcome=Outcome.RUN_ERROR, tile=3),
        ):
            store.append(r)
        store.append(record(time_s=0.1, tile=4, device={**DEVICE, "driver": "2"}))
        best = store.best("a" * 16, DEVICE)
        assert best is not None
        assert best.config == {"tile": 2}
        assert len(store.of("a" * 16, DEVICE)) == 3
        assert store.best("b" * 16, DEVICE) is None


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_cut_off_last_line_is_repaired(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    with RecordStore(tmp_path) as store:
        for i in range(3):
            store.append(record(tile=i))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    kept = 3 if cut == 1 else 2  # without only its newline, the line is still whole
    with RecordStore(tmp_path) as store:
        assert [r.config["tile"] for r in store] == list(range(kept))
        store.append(record(tile=7))
    assert ("cut off" in caplog.text) == (cut > 1)
    assert (tmp_path / f"{FILE_NAME}.damaged").exists() == (cut > 1)
    with RecordStore(tmp_path) as store:
        assert [r.config["tile"] for r in store] == [*range(kept), 7]


def test_garbage_at_the_end_is_moved_away(tmp_path: Path) -> None:
    with RecordStore(tmp_path) as store:
        store.append(record(tile=1))
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b"\x00" * 300)
    with RecordStore(tmp_path) as store:
        assert len(store) == 1
    assert (tmp_path / f"{FILE_NAME}.damaged").read_bytes() == b"\x00" * 300 + b"\n"


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with RecordStore(tmp_path) as store:
        for i in range(3):
            store.append(record(tile=i))
    path = tmp_path / FILE_NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "oops\n" + lines[2])
    with pytest.raises(RecordError, match=r"records\.jsonl, line 2: no record: not JSON"):
        RecordStore(tmp_path)
    assert path.read_text() == lines[0] + "oops\n" + lines[2]


@pytest.mark.parametrize("position", [0, 1])
def test_a_newer_schema_is_refused(tmp_path: Path, position: int) -> None:
    lines = [record(tile=i).to_line() for i in range(2)]
    lines[position] = json.dumps({**json.loads(lines[position]), "schema": SCHEMA + 1})
    (tmp_path / FILE_NAME).write_text("".join(line + "\n" for line in lines))
    with pytest.raises(RecordError, match=f"line {position + 1}: written by a newer Romou"):
        RecordStore(tmp_path)


def test_unknown_fields_of_the_same_schema_are_passed_over(tmp_path: Path) -> None:
    line = json.dumps({**json.loads(record(tile=1).to_line()), "temperature": 40})
    (tmp_path / FILE_NAME).write_text(line + "\n")
    with RecordStore(tmp_path) as store:
        assert [r.config for r in store] == [{"tile": 1}]


def test_writers_of_one_folder_lose_nothing_and_keep_nothing_twice(tmp_path: Path) -> None:
    """Processes that append at the same time, to a file that ends in a line of one that was killed: each config is
    there once.
    """
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_store import record
from romou.tuner.records import RecordStore
with RecordStore({str(tmp_path)!r}) as store:
    print("open", flush=True)
    input()
    for tile in range(int(sys.argv[1]), 60, 2):
        if not any(one.config == {{"tile": tile}} for one in store):
            store.append(record(tile=tile))
"""
    starts = (0, 1, 0, 1)  # two of each: they race for the same configs
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for first in starts
    ]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
    (tmp_path / FILE_NAME).write_text(record(tile=60).to_line()[:50])
    for other in others:
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
    for other in others:
        other.communicate()
        assert other.returncode == 0
    with RecordStore(tmp_path) as store:
        assert sorted(one.config["tile"] for one in store) == list(range(60))
    assert (tmp_path / f"{FILE_NAME}.damaged").read_text().splitlines() == [record(tile=60).to_line()[:50]]


def test_an_append_reads_what_others_appended(tmp_path: Path) -> None:
    with RecordStore(tmp_path) as one, RecordStore(tmp_path) as other:
        one.append(record(tile=1))
        one.append(record(tile=2))
        other.append(record(tile=2, time_s=7.0))  # came second: the first one counts
        assert [r.config["tile"] for r in other] == [1, 2]
        other.append(record(tile=2, time_s=7.0))  # its own business, as it knew
        other.append(record(tile=3))
        one.append(record(tile=4))
        assert [(r.config["tile"], r.times_s[0]) for r in one] == [(1, 1.0), (2, 1.0), (2, 7.0), (3, 1.0), (4, 1.0)]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot keep records here"):
        RecordStore(tmp_path / "file")


def test_a_full_disk_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RecordStore(tmp_path)
    store.append(record(tile=1))
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(RecordError, match="cannot write.*the 1 records before are kept"):
        store.append(record(tile=2))
    monkeypatch.undo()
    store.append(record(tile=3))
    store.close()
    with RecordStore(tmp_path) as again:
        assert [r.config["tile"] for r in again] == [1, 3]


def test_an_outcome_is_its_text_in_a_line_and_no_other_text_is_one() -> None:
    for outcome in Outcome:
        line = record(time_s=None, outcome=outcome).to_line()
        assert f'"outcome":"{outcome.value}"' in line
        assert Record.from_line(line).outcome is outcome
    with pytest.raises(RecordError, match="no record: outcome is 'fine'; expected one of ok, "):
        Record.from_line(line.replace(f'"{outcome.value}"', '"fine"'))


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_one_error(kind: str, tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    {
        "folder": lambda: path.mkdir(),
        "link": lambda: path.symlink_to(tmp_path / "gone" / "file"),
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    with pytest.raises(RecordError, match=str(tmp_path)):
        RecordStore(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(("function", "error"), [("open", errno.EACCES), ("fstat", errno.EIO)])
def test_a_disk_that_refuses_is_one_error(
    function: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object) -> int:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        with pytest.raises(RecordError, match=os.strerror(error)):
            RecordStore(tmp_path)
    RecordStore(tmp_path).close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", 5),
        ("config", {"tile": [1]}),
        ("config", None),
        ("device", "mine"),
        ("device", [1]),
        ("times_s", [-1.0]),
        ("times_s", [float("nan")]),
        ("times_s", [float("inf")]),
        ("times_s", ["1"]),
        ("times_s", 1.0),
        ("task_key", 5),
        ("error", 5),
        ("is_again", 1),
        ("seed", True),
        ("build_s", "1"),
        ("outcome", "fine"),
        ("outcome", []),
    ],
)
def test_a_field_of_another_type_is_a_damaged_line(field: str, value: object, tmp_path: Path) -> None:
    good = record().to_line()
    data = json.loads(good)
    assert field in data
    (tmp_path / "records.jsonl").write_text(f"{good}\n{json.dumps({**data, field: value})}\n{good}\n")
    content = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(RecordError, match=r"records.jsonl, line 2: (no record|not JSON)"):
        RecordStore(tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == content
