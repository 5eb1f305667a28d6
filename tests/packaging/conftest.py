"""A copy of the checkout, its source archive, the wheel that is built of that, and fresh environments to install in."""

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
def archive(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source archive of `python -m build --sdist`, built without a separate environment."""
    folder = tmp_path_factory.mktemp("archive")
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=source, check=True, capture_output=True)
    (packed,) = folder.glob("romou-*.tar.gz")
    with tarfile.open(packed) as file:
        file.extractall(folder, filter="data")
    return folder / packed.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(archive: Path, compiler: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from the source archive: files missing there are missing here too."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(archive),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env={**os.environ, **compiler})
    (found,) = folder.glob("*.whl")
    return found
