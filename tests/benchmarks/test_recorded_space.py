"""Recorded spaces: a round trip, a whole file after a writer was killed, and a small size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from record_spaces import is_same_space
from romou.base.errors import RecordError
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace


def recorded() -> RecordedSpace:
    return RecordedSpace(
        name="dense",
        task={"key": "0"},
        knobs={"tile": (1, 2, 4), "is_flat": (True, False)},
        device={"name": "made up"},
        context={"seed": 3},
    )


def configs() -> list[RecordedConfig]:
    return [
        RecordedConfig(index=4, outcome="ok", times_s=(2e-6, 1e-6, 4e-6), build_s=0.25, run_s=0.5),
        RecordedConfig(index=1, outcome="run_error", error="out of resources"),
        RecordedConfig(index=5, outcome="ok", times_s=(3e-6,), again_s=(2.5e-6, 2.25e-6)),
    ]


def test_there_and_back(tmp_path: Path) -> None:
    made, path = recorded(), RecordedSpace.path_in(tmp_path, "dense")
    made.start(path)
    made.append(path, configs()[:2])
    made.append(path, configs()[2:])
    assert RecordedSpace.load(path) == made
    assert [c.time_s for c in made.configs.values()] == [2e-6, None, pytest.approx(2.375e-6)]
    assert dict(made.space().at(4)) == {"tile": 4, "is_flat": True}
    size = path.stat().st_size
    made.start(path)
    assert path.stat().st_size < size
    assert RecordedSpace.load(path) == made
    assert [p.name for p in tmp_path.iterdir()] == ["dense.json.gz"]


def test_a_later_result_replaces_the_first(tmp_path: Path) -> None:
    made, path = recorded(), tmp_path / "a.json.gz"
    made.start(path)
    made.append(path, configs())
    later = dataclasses.replace(configs()[0], again_s=(1.5e-6,))
    made.append(path, [later])
    assert RecordedSpace.load(path).configs[4] == later


def test_a_killed_writer_loses_its_last_piece_only(tmp_path: Path) -> None:
    made, path = recorded(), tmp_path / "a.json.gz"
    made.start(path)
    made.append(path, configs()[:2])
    whole = path.stat().st_size
    made.append(path, configs()[2:])
    data = path.read_bytes()
    for end in range(whole, len(data)):
        path.write_bytes(data[:end])
        assert list(RecordedSpace.load(path).configs) == [4, 1]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(b"no such thing")
    with pytest.raises(RecordError, match=r"a\.json\.gz: cannot read this as a recorded space"):
        RecordedSpace.load(path)
    with pytest.raises(RecordError, match="missing"):
        RecordedSpace.load(tmp_path / "missing")


def test_what_may_share_a_file() -> None:
    assert is_same_space(recorded(), dataclasses.replace(recorded(), context={}))
    assert not is_same_space(recorded(), dataclasses.replace(recorded(), device={"name": "another"}))
    assert not is_same_space(
        recorded(), dataclasses.replace(recorded(), knobs=dict(reversed(recorded().knobs.items())))
    )
