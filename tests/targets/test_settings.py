"""The environment is checked: wrong values fail, unknown ROMOU_ names are reported with the nearest one."""

from __future__ import annotations

from pathlib import Path

import pytest

from romou.base import environment
from romou.base.errors import UsageError


def test_values() -> None:
    found = environment.from_environment(
        {"ROMOU_DEBUG": "1", "ROMOU_OPENCL_DEVICE": "pocl", "ROMOU_MOBILE_COMPILERS": "/opt/mesa", "OTHER": "x"}
    )
    assert found == environment.Settings(is_debug=True, opencl_device="pocl", mobile_compilers=Path("/opt/mesa"))
    assert environment.from_environment({}) == environment.Settings()


def test_wrong_value() -> None:
    with pytest.raises(UsageError) as caught:
        environment.from_environment({"ROMOU_DEBUG": "maybe"})
    assert str(caught.value) == "ROMOU_DEBUG='maybe': must be 1 or 0"


def test_unknown_name() -> None:
    (text,) = environment.from_environment({"ROMOU_OPENCL_DEVICES": "x"}).unknown
    assert text == "ROMOU_OPENCL_DEVICES is set but Romou does not read it; did you mean ROMOU_OPENCL_DEVICE?"
