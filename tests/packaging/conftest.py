"""A copy of the checkout, its source archive and wheel as scripts/build_wheel.sh makes them, and fresh environments."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The address of the files that links of the package page lead to.
SOURCE_URL = "https://example.org/romou/blob/v1"


@pytest.fixture(scope="session")
def compiler() -> dict[str, str]:
    """Return the environment of a build. One compilation serves all builds, including scripts/test.sh's. Without
    scripts/test.sh nothing is optimized.
    """
    return {"CXX": shlex.join([sys.executable, str(Path(__file__).with_name("cached_compiler.py")), "--quick"])}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout: building leaves folders behind, and the checkout may be read at the same time."""
    copy = tmp_path_factory.mktemp("copy") / "source"
    if not (ROOT / ".git").exists():  # an unpacked source archive
        shutil.copytree(
            ROOT,
            copy,
            symlinks=True,
            ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", "build", "dist", ".*_cache"),
        )
        return copy
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def fresh_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[str, Path]]:
    """Return a function that makes an environment without Romou and returns its Python and site folder.

    Its dependencies are this environment's, which saves the downloads.
    """

    def make() -> tuple[str, Path]:
        folder = tmp_path_factory.mktemp("venv")
        venv.create(folder, with_pip=False)
        inside = str(folder / "bin" / "python")
        ask = [inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
        # A plain path, read after the environment's own packages. The .pth files in it, such as an editable Romou's,
        # are not followed.
        (site / "dependencies.pth").write_text(
            sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n"
        )
        return inside, site

    return make


@pytest.fixture(scope="module")
def packed(source: Path, compiler: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that scripts/build_wheel.sh fills, without a separate environment for the build.

    The wheel is built from the source archive: files missing there are missing here too.
    """
    folder = tmp_path_factory.mktemp("dist")
    command = [str(source / "scripts/build_wheel.sh"), str(folder), "--no-build-isolation"]
    environment = {**os.environ, **compiler, "PYTHON": sys.executable, "SOURCE_URL": SOURCE_URL}
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)
    return folder


@pytest.fixture(scope="module")
def archive(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source archive."""
    (file,) = packed.glob("romou-*.tar.gz")
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(file) as opened:
        opened.extractall(folder, filter="data")
    return folder / file.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(packed: Path) -> Path:
    """Return the wheel."""
    (file,) = packed.glob("*.whl")
    return file
