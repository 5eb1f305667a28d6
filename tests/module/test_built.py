"""The saved data of a built model: names and values of romou.json that an earlier Romou wrote are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from romou.devices.targets import Target
from romou.runtime.module import BuiltModel

# As format 3 has it, by Romou before `BuiltModel`
PLAIN: dict[str, Any] = {
    "target": Target("opencl").to_json(),
    "inputs": {"x": [[1, 3, 8, 8], "float32"], "ids": [[4], "int64"]},
    "outputs": ["y"],
    "output_types": {"y": [[1, 5], "int32"]},
    "settled": [],
}


@pytest.mark.parametrize("more", [{}, {"short_outputs": {"y": "int8"}}, {"entry": "main_2"}])
def test_saved_data_is_read_and_written_again(more: dict[str, Any]) -> None:
    built = BuiltModel.from_dict({**PLAIN, **more}, Path("m.so"))
    assert list(built.inputs.items()) == [("x", ((1, 3, 8, 8), "float32")), ("ids", ((4,), "int64"))]
    assert built.stored_outputs == {"y": ((1, 5), more.get("short_outputs", {"y": "int32"})["y"])}
    assert built.library == Path("m.so")
    written = built.to_dict()
    assert written == {**PLAIN, **more}
    assert BuiltModel.from_dict(written, Path("m.so")) == built


@pytest.mark.parametrize("damage", [{"inputs": {"x": [[-1], "float32"]}}, {"outputs": 3}, {"entry": 1}])
def test_other_data_is_an_error(damage: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        BuiltModel.from_dict({**PLAIN, **damage}, Path("m.so"))
