"""T4 files: a round trip through Kernel Tuner's schema, and refusal of foreign entries."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.cli import main
from romou.tuner.records import Origin, Record, RecordStore, export_t4, from_t4, import_t4, to_t4

DEVICE = {"kind": "opencl", "name": "a GPU", "driver": "1", "platform": "p", "is_host_cpu": False}
HERE = Origin(device=DEVICE, romou="1.0", tvm="0.27")
# What T4's schema 1.0.0 demands of a results file (github.com/odgaard/TuningSchema, T4/results-schema.json).
SCHEMA = {
    "type": "object",
    "required": ["schema_version", "results"],
    "properties": {
        "schema_version": {"type": "string", "pattern": "^[0-9]{1,}.[0-9]{1,}.[0-9]{1,}$"},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["configuration", "times", "invalidity", "correctness"],
                "properties": {
                    "timestamp": {"type": "string"},
                    "configuration": {"type": "object"},
                    "objectives": {"type": "array"},
                    "times": {
                        "type": "object",
                        "properties": {"compilation_time": {"type": "number"}, "runtimes": {"type": "array"}},
                    },
                    "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
                    "correctness": {"type": "number"},
                    "measurements": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "name": {"type": "string"},
                                "value": {"type": ["number", "string", "array"]},
                                "unit": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
}


def records(count: int = 6, **changes: object) -> list[Record]:
    made = []
    # T4 has one word for wrong numbers, be they so always or at times.
    for tile, outcome in enumerate([one for one in Outcome if one is not Outcome.UNSTABLE][:count]):
        times = (1.25e-5, 1.5e-5, 1.3e-5) if outcome == "ok" else ()
        error = None if outcome == "ok" else f"{outcome}: no"
        fields = {
            "task_key": "a" * 16,
            "task_name": "conv",
            "target": "opencl",
            "romou": "1.0",
            "tvm": "0.27",
            "time": "2026-01-02T03:04:05+00:00",
            **changes,
        }
        config = {"tile": tile, "data": "image", "is_flat": True}
        ratio = 1.25 if outcome == "ok" else None
        made.append(
            Record(
                config=config, device=DEVICE, outcome=outcome, times_s=times, error=error, clock_ratio=ratio, **fields
            )
        )  # type: ignore[arg-type]
    return made


def assert_same(found: list[Record], wanted: list[Record]) -> None:
    assert [dataclasses.replace(r, times_s=()) for r in found] == [dataclasses.replace(r, times_s=()) for r in wanted]
    assert [r.times_s for r in found] == [pytest.approx(r.times_s) for r in wanted]


def test_there_and_back_by_the_schema(tmp_path: Path) -> None:
    import jsonschema

    paths = list(export_t4(records(), tmp_path))
    assert [path.name for path in paths] == ["a" * 16 + ".t4.json"]
    data = json.loads(paths[0].read_text())
    jsonschema.validate(data, SCHEMA)
    assert data["results"][0]["measurements"][0] == {"name": "time", "value": pytest.approx(0.013), "unit": "ms"}
    assert_same(import_t4(paths[0], task_key="a" * 16, origin=HERE), records())


def test_numbers_that_change_come_back_as_wrong_ones(tmp_path: Path) -> None:
    (path,) = export_t4(
        [dataclasses.replace(records(1)[0], outcome=Outcome.UNSTABLE, times_s=(), error="unstable: no")], tmp_path
    )
    assert [record.outcome for record in import_t4(path, task_key="a" * 16, origin=HERE)] == [Outcome.WRONG_RESULT]


def test_a_file_for_each_task_and_origin(tmp_path: Path) -> None:
    paths = export_t4([*records(), *records(1, task_key="b" * 16), *records(2, romou="1.1")], tmp_path)
    assert [len(import_t4(path)) for path in paths] == [6, 1, 2]
    assert [path.name for path in paths] == ["a" * 16 + ".t4.json", "b" * 16 + ".t4.json", "a" * 16 + "-2.t4.json"]


def test_of_kernel_tuner_itself() -> None:
    data = {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds"},
        "results": [
            {
                "configuration": {"tile": 4},
                "times": {"compilation": 250.0, "runtimes": []},
                "invalidity": "correct",
                "correctness": 1,
                "measurements": [{"name": "time", "value": 2.0, "unit": "ms"}],
            }
        ],
    }
    (found,) = from_t4(data, task_key="a" * 16, origin=HERE)
    assert (found.config, found.time_s, found.build_s, found.device) == ({"tile": 4}, 2e-3, 0.25, DEVICE)
    with pytest.raises(RecordError, match="does not say which kernel, device and versions"):
        from_t4(data)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"task_key": "b" * 16}, "results of kernel b+, not of a+"),
        ({"device": {**DEVICE, "name": "another"}}, "measured on 'another'"),
        ({"device": {**DEVICE, "driver": "2"}}, "measured with driver '2'"),
        ({"romou": "0.9"}, "measured with Romou 0.9"),
        ({"tvm": "0.1"}, "measured with TVM 0.1"),
        ({"schema": 99}, "schema 99"),
    ],
)
def test_what_does_not_belong_is_refused_with_the_reason(change: dict[str, object], text: str) -> None:
    data = to_t4(records())
    data["metadata"]["romou"].update(change)
    with pytest.raises(RecordError, match=text):
        from_t4(data, task_key="a" * 16, origin=HERE)


@pytest.mark.parametrize(
    "data", [{}, {"schema_version": "2.0.0", "results": []}, {"schema_version": "1.0.0", "results": 3}]
)
def test_what_is_no_t4_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(
        RecordError, match="no T4 document: (schema_version is (missing|'2.0.0'; expected results in T4)|results is 3)"
    ):
        from_t4(data)


def test_a_damaged_result_is_refused() -> None:
    data = to_t4(records())
    del data["results"][2]["times"]
    with pytest.raises(RecordError, match=r"no T4 document: results\[2\].times is missing"):
        from_t4(data)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = export_t4(records(2), tmp_path)
    before = path.read_text()

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RecordError, match="No space left"):
        export_t4(records(), tmp_path)
    assert path.read_text() == before


def test_commands(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "one") as store:
        for record in records():
            store.append(record)
    run = CliRunner()
    told = run.invoke(main, ["records", "export", str(tmp_path / "one"), str(tmp_path / "t4"), "--json"])
    assert told.exit_code == 0, told.output
    (file,) = json.loads(told.stdout)["files"]
    for added in (6, 0):
        told = run.invoke(main, ["records", "import", str(tmp_path / "two"), file, "--any-device", "--json"])
        assert json.loads(told.stdout) == {"read": 6, "added": added}
    with RecordStore(tmp_path / "two") as store:
        assert_same(list(store), records())
    refused = run.invoke(main, ["records", "import", str(tmp_path / "two"), file])
    assert refused.exit_code == 1
    assert "measured on 'a GPU'" in refused.output + refused.stderr
