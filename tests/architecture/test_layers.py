"""The layers of pyproject.toml, [tool.importlinter]: no import up, no circle, lazy imports included."""

import ast
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = shutil.which("lint-imports", path=sysconfig.get_path("scripts"))
    assert command, "import-linter is missing: pip install '.[test]'"
    return subprocess.run([command, "--no-cache", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_import_leads_down() -> None:
    done = lint()
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_up_is_found(tmp_path: Path) -> None:
    """The check can fail: in a package of two layers, the lower one imports the upper one inside a function."""
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "upper.py").touch()
    (package / "lower.py").write_text("def f():\n    from house import upper\n")
    config = tmp_path / "layers.ini"
    contract = "[importlinter:contract:1]\nname = down\ntype = layers\ncontainers = house\nlayers =\n  upper\n  lower\n"
    config.write_text(f"[importlinter]\nroot_package = house\n{contract}")
    command = shutil.which("lint-imports", path=sysconfig.get_path("scripts"))
    assert command is not None
    arguments = [command, "--no-cache", "--config", str(config)]
    done = subprocess.run(
        arguments, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "house.lower -> house.upper" in done.stdout


def test_packages_import_no_script() -> None:
    """Scripts, benchmarks and stress tests import packages, and no package imports them."""
    folders = ("scripts", "benchmarks", "tests/stress")
    scripts = {path.stem for folder in folders for path in (ROOT / folder).glob("*.py")} | {"benchmarks", "support"}
    for package in ("romou", "tvm_patches", "archprobe"):
        for path in (ROOT / package).rglob("*.py"):
            lines = [
                line.split() for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))
            ]
            assert not {words[1].split(".")[0] for words in lines} & scripts, path


def test_tvm_patches_stands_on_tvm_and_numpy() -> None:
    """Only the converters import ONNX. Its setup.py is not part of the package. TVM's wheel requires ml_dtypes."""
    allowed = {"__future__", "tvm", "tvm_ffi", "tvm_patches", "numpy", "ml_dtypes"} | sys.stdlib_module_names
    for path in (ROOT / "tvm_patches").rglob("*.py"):
        if path.name == "setup.py" or "build" in path.parts:
            continue
        imports: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imports |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imports.add((node.module or "").split(".")[0])
        assert imports <= allowed | ({"onnx"} if path.parent.name == "onnx_converters" else set()), path
