"""Errors keep their fields and hint, also across a process border."""

from __future__ import annotations

import pickle

import pytest

from romou.base import errors


def test_fields_and_hint_survive_pickling() -> None:
    error = errors.DeviceError("no device 3", hint="`romou devices` lists them.", index=3)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is errors.DeviceError
    assert str(back) == str(error) == "no device 3\n`romou devices` lists them."
    assert back.index == 3
    assert (
        back.to_dict()
        == error.to_dict()
        == {
            "type": "DeviceError",
            "message": "no device 3",
            "hint": "`romou devices` lists them.",
            "exit_code": 3,
            "fields": {"index": 3},
        }
    )


def test_unknown_field_is_named() -> None:
    with pytest.raises(AttributeError, match=r"UsageError has no field 'nme'; it has \['name'\]"):
        _ = errors.UsageError("x", name="y").nme


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.UsageError, 2),
        (errors.DeviceError, 3),
        (errors.ModelError, 1),
        (errors.RecordError, 1),
        (errors.BuildError, 1),
        (errors.CompatError, 1),
        (errors.InvalidConfigError, 1),
        (errors.SpaceEmptyError, 1),
    ],
)
def test_exit_codes(cls: type[errors.RomouError], code: int) -> None:
    assert issubclass(cls, errors.RomouError)
    assert cls("x").exit_code == code


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("adreno_640", "adreno640"), ("ADRENO640", "adreno640"), ("mali-g76", "mali_g76"), ("intel", None)],
)
def test_nearest_name(name: str, nearest: str | None) -> None:
    assert errors.nearest_name(name, ["adreno630", "adreno640", "mali_g76"]) == nearest
