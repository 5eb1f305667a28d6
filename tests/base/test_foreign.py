"""Bounds on what others wrote: sizes, depth, numbers, and the schema that annotations are."""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from romou.base import foreign
from romou.base.errors import RecordError
from romou.base.files import read_file, replacing
from romou.base.foreign import MOST_DEPTH, parsed, refused, unzipped
from romou.base.outcome import Outcome
from romou.base.schema import FileName, Range, made_of


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[1,", "not JSON"),
        (b"\xff", "not JSON: 'utf-8' codec"),
        ("[NaN]", "NaN is no number"),
        ("1e999", "beyond the numbers of float64"),
        ("1" + "0" * 400, "401 digits; expected at most 64 bits"),
        (str(2**64), "20 digits; expected at most 64 bits"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "nested deeper than 64 levels"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ('{"a":' * 100_000, "nested deeper than 64 levels"),
        ('"\\ud800"', "surrogates not allowed"),
    ],
)
def test_json_beyond_the_bounds_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parsed(text)


def test_json_within_the_bounds_is_read() -> None:
    assert parsed('{"a": 1, "a": [18446744073709551615, -1.5, "\\ud83d\\ude00"]}') == {"a": [2**64 - 1, -1.5, "😀"]}
    assert parsed("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    assert parsed("[-Infinity]", has_constants=True) == [float("-inf")]


def test_gzip_unpacks_to_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_MOST_MEMBERS", 100)
    whole = gzip.compress(b"abc") * 3
    assert unzipped(whole) == b"abc" * 3
    assert unzipped(whole, most_bytes=9) == b"abc" * 3
    assert unzipped(whole[:-5], is_cut_off=True) == b"abc" * 2
    for data, reason in (
        (whole[:-5], "ends too early"),
        (whole + b"x", "damaged"),
        (b"x" * 99, "damaged"),
        (gzip.compress(bytes(10)), "more than 0 MiB"),
        (gzip.compress(b"") * 101, "more than 100 members"),
    ):
        with pytest.raises(ValueError, match=reason):
            unzipped(data, most_bytes=9)


def test_a_file_has_a_bounded_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(9))
    assert len(read_file(tmp_path / "file", most_bytes=9)) == 9
    with pytest.raises(OSError, match="has more than 0 MiB"):
        read_file(tmp_path / "file", most_bytes=8)


@dataclasses.dataclass(frozen=True)
class _Again:
    time_s: float


@dataclasses.dataclass(frozen=True)
class _Trial:
    name: FileName
    times_s: tuple[Annotated[float, Range(0)], ...] = ()
    outcome: Outcome = Outcome.OK
    unit: Literal["ms", "s"] = "s"
    config: dict[str, int | str | bool] = dataclasses.field(default_factory=dict)
    again: _Again | None = None


def test_annotations_are_the_schema() -> None:
    data = {
        "name": "a",
        "times_s": [1, 2.5],
        "outcome": "timeout",
        "config": {"a": True},
        "again": {"time_s": 1},
        "x": 1,
    }
    made = made_of(_Trial, data)
    assert made == _Trial("a", (1.0, 2.5), Outcome.TIMEOUT, config={"a": True}, again=_Again(1.0))
    assert [type(time) for time in made.times_s] == [float, float]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], r"the value is \[\]; expected an object"),
        ({}, "name is missing"),
        ({"name": "../a"}, "name is '../a'; expected the plain name of a file"),
        ({"name": "a/b"}, "plain name"),
        ({"name": "a\0"}, "plain name"),
        ({"name": ".a"}, "plain name"),
        ({"name": 5}, "name is 5; expected a text"),
        ({"name": "a", "times_s": 1}, "times_s is 1; expected a list"),
        ({"name": "a", "times_s": [1, -2]}, r"times_s\[1\] is -2; expected at least 0"),
        ({"name": "a", "times_s": [float("nan")]}, r"times_s\[0\] is nan"),
        ({"name": "a", "times_s": [True]}, r"times_s\[0\] is True; expected a number"),
        ({"name": "a", "times_s": [10**400]}, r"times_s\[0\] is 1000.*\.\.\.; expected at most"),
        ({"name": "a", "outcome": "fine"}, "outcome is 'fine'; expected one of ok"),
        ({"name": "a", "outcome": []}, r"outcome is \[\]; expected one of ok"),
        ({"name": "a", "unit": "h"}, "unit is 'h'; expected 'ms' or 's'"),
        ({"name": "a", "config": {"a": 1.5}}, r"config.a is 1.5; expected a whole number or a text or true or false"),
        ({"name": "a", "again": {"time_s": "x"}}, "again.time_s is 'x'; expected a number"),
    ],
)
def test_a_misfit_is_named_with_its_place(data: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        made_of(_Trial, data)


def test_damage_is_one_error_and_others_pass() -> None:
    for error, reason in (
        (ValueError("no"), "no"),
        (KeyError("a"), "'a' is missing"),
        (ZeroDivisionError("z"), "damaged: z"),
    ):
        with pytest.raises(RecordError, match=f"^file: {reason}\nhint$"), refused(RecordError, "file", hint="hint"):
            raise error
    with pytest.raises(RecordError, match="^itself$"), refused(RecordError, "file"):
        raise RecordError("itself")


def test_nothing_but_a_regular_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, place in (("pipe", "pipe"), ("folder", "folder"), ("link", "pipe")):
        if name == "link":
            (tmp_path / name).symlink_to(place)
        before = (tmp_path / name).lstat()
        with pytest.raises(OSError, match="is no regular file"), replacing(tmp_path / name) as partial:
            partial.write_text("new")
        assert (tmp_path / name).lstat().st_ino == before.st_ino
    (tmp_path / "file").write_text("old")
    (tmp_path / "other").symlink_to("file")
    with replacing(tmp_path / "other") as partial:
        partial.write_text("new")
    assert (tmp_path / "other").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
