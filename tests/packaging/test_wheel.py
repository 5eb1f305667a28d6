"""The source archive holds everything that builds and tests need. The wheel that is built from it, installed in a fresh
environment, tunes from another folder.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from support.models.small_networks import short_net
from support.servers.android_ndk import write_ndk

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def python(wheel: Path, fresh_environment: Callable[[], tuple[str, Path]]) -> str:
    """Return the Python of an environment that has Romou only from the wheel."""
    inside, site = fresh_environment()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return inside


def files_in(folder: Path, *under: str) -> set[str]:
    """Return the files of a copy of the checkout, without build products."""
    found = (
        path
        for name in under
        for path in (folder / name).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    )
    return {str(path.relative_to(folder)) for path in found}


def test_the_archive_is_a_checkout(source: Path, archive: Path) -> None:
    """Everything is in it that a build or a test reads, and nothing twice."""
    folders = (
        "romou",
        "tvm_patches",
        "third_party",
        "schedules",
        "archprobe",
        "tests",
        "scripts",
        "benchmarks",
        "docs",
        ".ci",
        ".github",
    )
    assert files_in(archive, *folders) == files_in(source, *folders)
    assert {p.name for p in source.glob("*.*") if p.is_file() and p.name != ".gitignore"} <= {
        p.name for p in archive.iterdir()
    }


def test_a_test_runs_in_the_archive(archive: Path, python: str) -> None:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/targets/test_errors.py"]
    done = subprocess.run(command, cwd=archive, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_what_is_in_it(archive: Path, wheel: Path) -> None:
    files = (name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/"))
    names = {name for name in files if ".dist-info/" not in name}
    every = files_in(archive, "tvm_patches")
    sources = {name for name in every if "_runtime/" in name} | {"tvm_patches/build_phone_runtime.sh"}
    headers = {f"tvm_patches/{name}" for name in files_in(archive, "third_party")}
    python = {name for name in every if name.endswith(".py")} - {"tvm_patches/setup.py"} | sources | headers
    runtimes = {f"tvm_patches/{kind}_runtime/libtvm_runtime_{kind}.so" for kind in ("opencl", "vulkan")}
    pages = {f"romou/{name}" for name in files_in(archive, "docs/guide", "docs/evidence") if name.endswith(".md")}
    code = files_in(archive, "romou", "schedules", "archprobe") | python | runtimes
    assert names == code | pages | {"tvm_patches/README.md"}
    assert "romou/api/tune.py" in names


def test_it_runs_wherever_its_c_library_does(wheel: Path) -> None:
    """auditwheel finds a manylinux policy that it keeps to, which is its tag. No library had to be added."""
    assert re.fullmatch(r"romou-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tag = wheel.name.removesuffix(".whl").rpartition("-")[2]
    assert f'platform tag: "{tag}"' in " ".join(done.stdout.split()), done.stdout
    assert not any("romou.libs" in name for name in zipfile.ZipFile(wheel).namelist())


def test_its_page_links_to_the_files(wheel: Path, source: Path) -> None:
    """A package page has no other file of the checkout: every link is absolute, and leads to a file that there is."""
    file = zipfile.ZipFile(wheel)
    (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
    fields = email.message_from_bytes(file.read(name))
    page = str(fields.get_payload())
    labels = dict(label.split(", ", 1) for label in fields.get_all("Project-URL", []))
    base = labels["Source"].removesuffix("README.md")
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) > 5
    assert [link for link in links if not link.startswith("https://")] == []
    own = [link.removeprefix(base) for link in links if link.startswith(base)]
    assert [path for path in own if not (source / re.split("[?#]", path)[0]).is_file()] == []
    pictures = [path for path in own if path.endswith("?raw=true")]
    assert pictures == ["docs/tune.svg?raw=true", "docs/report.png?raw=true"]
    assert fields["Description-Content-Type"] == "text/markdown"
    assert labels["Changelog"] == f"{base}CHANGELOG.md"
    assert labels["Paper"].startswith("https://doi.org/")


def test_without_an_address_its_page_has_no_dead_link(source: Path) -> None:
    code = "import runpy, setuptools; setuptools.setup = dict; print(runpy.run_path('setup.py')['package_page']())"
    variables = {name: value for name, value in ENVIRONMENT.items() if name != "SOURCE_URL"}
    done = subprocess.run([sys.executable, "-c", code], cwd=source, env=variables, capture_output=True, text=True)
    assert "Getting started" in done.stdout, done.stderr
    assert re.findall(r"\]\((?!https:)[^)]*\)", done.stdout.rpartition("# Romou\n")[2]) == []


def test_it_tunes_from_another_folder_without_a_compiler(python: str, tmp_path: Path) -> None:
    """Of a machine's programs, a linker is enough. `test_bare_python.py` does without one, too."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ld").symlink_to(shutil.which("ld") or "/usr/bin/ld")
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "CXX"} | {"PATH": str(tools)}
    onnx.save(short_net(), tmp_path / "small.onnx")
    code = """
import pathlib, sys
import tvm
assert tvm.opencl(0).exist
import romou
assert pathlib.Path(romou.__file__).is_relative_to(sys.prefix), romou.__file__
tuned = romou.tune("small.onnx", target="opencl -device=host", trials=2)
assert tuned.summary().is_right
tuned.save("small.romou")
"""
    subprocess.run([python, "-c", code], check=True, cwd=tmp_path, env=environment)
    command = [python, "-m", "romou.cli", "run", "small.romou", "--json"]
    done = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [1, 8, 8, 8]


def test_it_builds_the_runtime_of_a_phone(python: str, tmp_path: Path) -> None:
    """All sources come from the wheel. The compiler only records what it is to compile."""
    variables = {"ANDROID_NDK_HOME": str(write_ndk(tmp_path / "ndk")), "HOME": str(tmp_path)}
    command = [python, "-m", "romou.cli", "phone", "build", "--out", "out"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**ENVIRONMENT, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    texts = [path.read_text() for path in (tmp_path / "out").glob("libtvm_runtime*.so")]
    sources = [Path(line.split('"')[1]) for text in texts for line in text.splitlines()]
    site = Path(python).parents[1]
    own = {source for source in sources if "tvm_patches" in source.parts}
    assert len(own) > 10
    assert all(source.is_file() and source.is_relative_to(site) for source in own)
    # The headers that our sources name are there, too.
    calls = (tmp_path / "ndk/toolchains/llvm/prebuilt/linux-x86_64/bin/calls").read_text()
    (folder,) = set(re.findall(r"-isystem(\S+/third_party/vulkan)", calls))
    assert (Path(folder) / "vulkan/vulkan_core.h").is_file()
    assert Path(folder).is_relative_to(site)


@pytest.mark.parametrize("extra", ["archprobe", ""])
def test_archprobe_needs_its_extra_only(python: str, tmp_path: Path, extra: str) -> None:
    """ArchProbe measures, shows and draws with the packages of its extra, and names the extra without them."""
    code = """
import importlib.metadata, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

needed, queue = set(), ["romou"]
while queue:
    if (name := canonicalize_name(queue.pop())) not in needed:
        needed.add(name)
        required = map(Requirement, importlib.metadata.requires(name) or ())
        of = {"extra": sys.argv[1] if name == "romou" else ""}
        queue += [one.name for one in required if one.marker is None or one.marker.evaluate(of)]
owners = importlib.metadata.packages_distributions()

class OnlyNeeded:
    def find_spec(self, name, path=None, target=None):
        if (of := owners.get(name.partition(".")[0])) and not needed.intersection(map(canonicalize_name, of)):
            raise ModuleNotFoundError(f"romou does not require {name}", name=name)

sys.meta_path.insert(0, OnlyNeeded())
from archprobe.cli import app
for words in (["run", "--quick", "--only", "launch", "-o", "r.json"], ["show", "r.json"], ["plot", "r.json"]):
    app(words, standalone_mode=False)
"""
    done = subprocess.run([python, "-c", code, extra], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert (tmp_path / "plots/index.html").exists() == bool(extra), done.stdout + done.stderr
    assert (done.returncode == 0) == bool(extra), done.stdout + done.stderr
    assert extra or "jsonschema is not installed" in done.stderr
    assert extra or "pip install 'romou[archprobe]'" in done.stderr
    # What the hint says: pip asks no index for Romou, which is on none.
    hint = [python, "-m", "pip", "install", "--dry-run", "--no-index", "romou[archprobe]"]
    followed = subprocess.run(hint, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "Requirement already satisfied: romou[archprobe]" in followed.stdout


def test_it_works_inside_a_checkout(python: str, tmp_path: Path) -> None:
    """The folder romou/ of the checkout must not replace the installed package, not even in the child processes that
    build and run candidates.
    """
    onnx.save(short_net(), tmp_path / "short.onnx")
    code = "import sys; sys.path = [p for p in sys.path if p]; from romou.cli import main; main()"
    words = [
        "tune",
        str(tmp_path / "short.onnx"),
        "--target",
        "null",
        "--trials",
        "1",
        "--no-records",
        "--json",
        "-o",
        str(tmp_path / "short.romou"),
    ]
    done = subprocess.run([python, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["summary"]["outcomes"] == {"ok": 1}


def test_python_in_the_root_of_a_checkout(python: str, source: Path) -> None:
    """Python finds the folder romou/ of the checkout before the installed package. Its runtime was not built, so the
    installed one is used.
    """
    code = """
import pathlib, sys
import tvm
assert tvm.opencl(0).exist
import romou
from tvm_patches import RUNTIMES, compat
compat.check_versions()
assert pathlib.Path(romou.__file__).is_relative_to(pathlib.Path.cwd()), romou.__file__
assert all(runtime.exists() and runtime.is_relative_to(sys.prefix) for runtime in RUNTIMES.values()), RUNTIMES
"""
    done = subprocess.run([python, "-c", code], cwd=source, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
