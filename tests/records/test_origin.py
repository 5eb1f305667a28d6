"""Records of another device, driver or version do not count, and say why."""

from __future__ import annotations

import dataclasses

import pytest

from romou.tuner.records import Origin

HERE = Origin(
    device={"kind": "opencl", "name": "a GPU", "driver": "1", "platform": "p", "is_host_cpu": False},
    romou="1.0",
    tvm="0.27",
)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"device": {**HERE.device, "name": "another"}},
            r"measured on 'another' \(opencl, p, driver 1\), this device is 'a GPU'",
        ),
        ({"device": {**HERE.device, "driver": "2"}}, "measured with driver '2', this one is '1'"),
        ({"romou": "0.9"}, "measured with Romou 0.9, this is 1.0"),
        ({"tvm": ""}, "measured with TVM of an unknown version, this is 0.27"),
    ],
)
def test_the_reason_is_told(change: dict[str, object], text: str) -> None:
    import re

    reason = HERE.refusal(dataclasses.replace(HERE, **change))  # type: ignore[arg-type]
    assert reason is not None
    assert re.match(text, reason)


def test_the_same_origin_counts() -> None:
    assert HERE.refusal(dataclasses.replace(HERE)) is None
