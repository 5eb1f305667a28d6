"""mypy sees every package from outside: no type turns into Any at a border, and nothing but named third parties is
exempt.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import romou

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # mypy brings it there

ROOT = Path(__file__).parents[2]


def public_functions(module: Path) -> list[str]:
    """Return the names of a module's public functions, without passes, which a decorator of TVM's creates."""
    nodes = [
        node
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    return [
        node.name
        for node in nodes
        if not any(ast.unparse(made).startswith(("tvm.", "tirx.")) for made in node.decorator_list)
    ]


def probe_text() -> tuple[str, list[tuple[str, str]]]:
    """Return a program that reveals every public function and all that `romou` exports, and (package, function) for
    each of them.
    """
    lines, revealed = ["import romou", "import tvm", "reveal_type(tvm.compile)"], [("tvm", "tvm.compile")]
    for root in ("romou", "tvm_patches", "archprobe"):
        for module in sorted((ROOT / root).rglob("*.py")):
            parts = module.relative_to(ROOT).with_suffix("").parts
            dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            package = ".".join(parts[:-1])
            for name in public_functions(module):
                alias = f"f{len(revealed)}"
                lines += [f"from {dotted} import {name} as {alias}", f"reveal_type({alias})"]
                revealed.append((package, f"{dotted}.{name}"))
    for name in romou.__all__:
        lines += [f"reveal_type(romou.{name})"]
        revealed.append(("romou", f"romou.{name}"))
    return "\n".join(lines) + "\n", revealed


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return mypy's output for the whole project and the program, and function -> (package, revealed type)."""
    folder = tmp_path_factory.mktemp("types")
    text, revealed = probe_text()
    (folder / "across_borders.py").write_text(text)
    files = [
        *tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"],
        str(folder / "across_borders.py"),
    ]
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", *files]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MYPYPATH": str(folder)}, capture_output=True, text=True, check=False
    )
    found = re.findall(r'across_borders\.py:\d+: note: Revealed type is "(.*)"', done.stdout)
    assert len(found) == len(revealed), done.stdout[-3000:] + done.stderr
    others = "\n".join(line for line in done.stdout.splitlines() if "note: Revealed type" not in line)
    return others, {name: (package, shown) for (package, name), shown in zip(revealed, found, strict=True)}


def test_nothing_is_wrong(report: tuple[str, dict[str, tuple[str, str]]]) -> None:
    assert report[0] == ""


def test_no_function_is_any_across_a_border(report: tuple[str, dict[str, tuple[str, str]]]) -> None:
    types = dict(report[1])
    # A library without types has to be reported as a blind spot.
    assert types.pop("tvm.compile")[1] == "Any"
    assert not [name for name, (_, shown) in types.items() if shown == "Any"]
    packages = {package for package, _ in types.values()}
    seen = {package for package, shown in types.values() if not shown.endswith("-> Any")}
    assert packages == seen
    assert {"romou.compiler.operators", "tvm_patches", "romou.compiler", "romou.base", "archprobe.probes"} <= packages


def test_only_third_parties_are_exempt() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert "ignore_missing_imports" not in settings
    for override in settings["overrides"]:
        assert set(override) == {"module", "ignore_missing_imports"}
        assert not [
            m
            for m in override["module"]
            if m.split(".")[0] in ("romou", "archprobe", "*", "tests", "scripts", "benchmarks")
        ]


def test_a_wrong_option_is_an_error_of_types(report: tuple[str, dict[str, tuple[str, str]]], tmp_path: Path) -> None:
    """Keywords of a function with options are as good as written out. `report` has filled mypy's cache."""
    (tmp_path / "calls.py").write_text(
        "import romou\nromou.tune('m', trials='3')\nromou.compile('m', shape={})\nromou.bench(model='m', repeats=8)\n"
        "romou.compare(baseline='a', current='b', fail_over=0.1)\nromou.write_report('a', 'b', outpt='c')\n"
    )
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", str(tmp_path / "calls.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.rpartition("  [")[2] for line in errors] == ["arg-type]", "call-arg]", "call-arg]"], (
        done.stdout + done.stderr
    )
    assert "calls.py:3:" in errors[1]
    assert "calls.py:6:" in errors[2]
