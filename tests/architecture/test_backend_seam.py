"""A device kind is named only in its own folder: all other code calls its backend."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from romou.devices.backends import backend, installed

ROMOU = Path(__file__).parents[2] / "romou"


def named_kinds(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with a kind as a value or an import from its folder. Defaults of parameters and options may name
    one.
    """
    defaults: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            defaults |= {default for default in (*node.defaults, *node.kw_defaults) if default is not None}
        if isinstance(node, ast.keyword) and node.arg == "default":
            defaults.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in installed() and node not in defaults:
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            tuple(f"romou.devices.backends.{kind}" for kind in installed())
        ):
            yield node.lineno


def test_no_other_file_names_a_kind() -> None:
    folders = [ROMOU / "devices/backends" / kind for kind in installed()]
    found = [
        f"{path.relative_to(ROMOU)}:{line}"
        for path in sorted(ROMOU.rglob("*.py"))
        if not any(path.is_relative_to(folder) for folder in folders)
        for line in named_kinds(ast.parse(path.read_text(encoding="utf-8")))
    ]
    # The default kind.
    assert [place for place in found if not place.startswith("devices/backends/__init__.py:")] == []
    assert len(found) == 1


@pytest.mark.parametrize(
    "text",
    [
        "if kind == 'cuda': pass",
        "suffix = {'opencl': 'cl'}[kind]",
        "match kind:\n    case 'opencl': pass",
        "from romou.devices.backends.cuda import nvrtc",
        "device = session.device('opencl', 0)",
    ],
)
def test_a_branch_on_a_kind_is_found(text: str) -> None:
    assert list(named_kinds(ast.parse(text)))


@pytest.mark.parametrize("kind", ["opencl", "cuda", "null", "vulkan"])
def test_every_backend_has_a_folder_and_says_what_it_is(kind: str) -> None:
    found = backend(kind)
    assert found.name == kind
    assert (ROMOU / "devices/backends" / kind / "__init__.py").is_file()
    assert found.has_kernels == bool(found.language) == bool(found.source_suffix)
    assert {"device", "host"} <= {option.name for option in found.options}
