"""The layers of pyproject.toml, [tool.importlinter]: no import up, no circle, lazy imports included."""

import shutil
import subprocess
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
    """The check can fail: a package of two layers whose lower one imports the upper one inside a function."""
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
    """Scripts stand above everything: they import packages, and no package imports them."""
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    for package in ("romou", "tvm_patches", "archprobe"):
        for path in (ROOT / package).rglob("*.py"):
            lines = [
                line.split() for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))
            ]
            assert not {words[1].split(".")[0] for words in lines} & scripts, path
