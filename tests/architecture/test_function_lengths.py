"""Functions fit on a screen: at most 60 lines, without the docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 60


def lengths(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the lines of each function, without its docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, docstring = node.body[0], 0
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstring = (first.end_lineno or 0) - first.lineno + 1
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring


@pytest.mark.parametrize("folder", ["romou", "tvm_patches", "archprobe", "benchmarks", "scripts", "tests/stress"])
def test_functions_are_short(folder: str) -> None:
    longer = {
        f"{path.relative_to(ROOT).as_posix()}:{name}": length
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, length in lengths(path.read_text(encoding="utf-8"))
        if length > LIMIT
    }
    assert not longer


def test_a_docstring_does_not_count() -> None:
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'
    assert list(lengths(text)) == [("f", 2)]
