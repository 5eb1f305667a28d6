"""Every environment variable that Romou reads is declared in one table, and Python code reads it only through the
table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from romou.base import environment
from romou.base.environment import VARIABLES

ROOT = Path(__file__).parents[2]
# These read the environment without the table: the table itself, a copy of it for children, and code that runs before
# Romou is installed, without it, or under an emulator.
READERS = {
    "setup.py",
    "archprobe/devices/opencl.py",
    "archprobe/devices/order.py",
    "romou/base/environment.py",
    "romou/base/interpreter.py",
    "romou/runtime/deploy/run_model.py",
    "romou/devices/mobile_compilers/driver.py",
    "tvm_patches/setup.py",
}
# Set by compilers and shells, and read by the scripts that start them.
OF_THE_SHELL = {"ROMOU_VERSION", "ROMOU_TARGET"}


def python_files() -> Iterator[Path]:
    yield ROOT / "setup.py"
    for folder in ("romou", "tvm_patches", "scripts", "benchmarks", "tests/stress", "archprobe"):
        yield from (ROOT / folder).rglob("*.py")


def reads(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each read of the environment in a module: os.environ[...], os.environ.get(...), os.getenv(...)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
            yield node


def test_python_reads_it_through_the_table() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in python_files()
        if any(reads(ast.parse(path.read_text(encoding="utf-8"))))
    }
    # A script that changes the environment of the programs that it calls reads no variable.
    changing = {
        *(
            f"benchmarks/{name}.py"
            for name in ("bench_models", "bench_reports", "bench_start", "kernel_references", "tvm_search")
        ),
        *(f"tests/stress/{name}.py" for name in ("check_kernels", "check_kills", "fuzz_c_api")),
    }
    assert found - changing == READERS


def test_the_names_that_are_read_are_declared() -> None:
    named: set[str] = set()
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"""(?:variable|environ\.get|getenv|env\.get|_flag)\(\s*["'](\w+)["']""", text))
        named |= set(re.findall(r"""environ\[["'](\w+)["']\]""", text))
    for path in (ROOT / "tvm_patches").rglob("*"):
        if path.suffix in (".cc", ".h"):
            named |= set(re.findall(r'getenv\("(\w+)"\)', path.read_text(encoding="utf-8")))
    assert {
        "ROMOU_OPENCL_LIBRARY",
        "ROMOU_OPENCL_BUILD_OPTIONS",
        "ROMOU_OPENCL_DUMP_DIR",
        "ANDROID_NDK_HOME",
        "CXX",
    } <= named
    assert named <= set(VARIABLES)


def test_a_name_of_ours_is_declared_wherever_it_stands() -> None:
    for path in (ROOT / "scripts").glob("*.sh"):
        assert set(re.findall(r"\bROMOU_[A-Z_]+", path.read_text(encoding="utf-8"))) <= set(VARIABLES) | OF_THE_SHELL, (
            path
        )


@pytest.mark.parametrize("name", [name for name in VARIABLES if name.startswith("ROMOU_")])
def test_doctor_knows_what_is_read(name: str) -> None:
    assert environment.from_environment({name: "1"}).unknown == ()


def test_what_is_not_declared_cannot_be_read() -> None:
    with pytest.raises(AssertionError, match="ROMOU_NEW is not declared"):
        environment.variable("ROMOU_NEW")
