"""A copy of the checkout, and fresh environments to install it in."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: building leaves folders behind, and the checkout may be read at the same time."""
    copy = tmp_path_factory.mktemp("copy") / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


@pytest.fixture(scope="module")
def fresh_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[str, Path]]:
    """Make an environment without Romou; its dependencies are those of this one, to spare the downloads. Gives Python and site folder."""

    def make() -> tuple[str, Path]:
        folder = tmp_path_factory.mktemp("venv")
        venv.create(folder, with_pip=False)
        inside = str(folder / "bin" / "python")
        ask = [inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
        # A plain path, read after the environment's own packages; .pth files in it, such as that of an editable Romou, are not followed.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n")
        return inside, site

    return make


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (found,) = folder.glob("*.whl")
    return found
