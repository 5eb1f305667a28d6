"""Mistakes in code come out as themselves. Limits of a model, and refusals, do not count as mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

import romou
from romou.base.errors import BuildError
from romou.base.fault import mistake, own_fault

ROMOU = Path(romou.__file__).parent


def raised_in(path: str | Path, code: str) -> Exception:
    """Return the exception that this code raises if it stands in that file."""
    try:
        exec(compile(code, str(path), "exec"), {"BuildError": BuildError})
    except Exception as error:
        return error
    raise AssertionError("it raises nothing")


@pytest.mark.parametrize(
    ("path", "code", "is_mistake"),
    [
        ("/home/me/my_pass.py", "{}['axis']", True),
        ("/home/me/my_pass.py", "(1).missing", True),
        ("/home/me/my_pass.py", "raise ValueError('no such layout')", False),
        ("/home/me/my_pass.py", "raise BuildError('no')", False),
        (ROMOU / "compiler/passes/nan.py", "forgotten", True),
        (ROMOU / "compiler/passes/nan.py", "import no_such_module", True),
        # TVM passes a NameError on as a RuntimeError.
        (ROMOU / "compiler/passes/nan.py", "raise RuntimeError(\"name 'x' is not defined\")", True),
        (ROMOU / "compiler/passes/nan.py", "(1).missing", False),
        # A converter may refuse a node by any exception.
        (ROMOU.parent / "tvm_patches/onnx_converters/nodes.py", "{}['axis']", False),
    ],
)
def test_what_is_a_mistake(path: str | Path, code: str, is_mistake: bool) -> None:
    error = raised_in(path, code)
    wrapped = BuildError("the model cannot be built")
    wrapped.__cause__ = error
    for outer in (error, wrapped):
        assert mistake(outer) is (error if is_mistake else None)


def test_a_fault_that_is_no_mistake_has_its_place() -> None:
    error = raised_in(ROMOU / "compiler/passes/nan.py", "(1).missing")
    assert own_fault(error) == "romou/compiler/passes/nan.py:1"
