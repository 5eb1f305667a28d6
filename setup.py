"""Builds Romou: its Python packages, and the OpenCL and Vulkan runtimes of tvm_patches.

Metadata, dependencies and tool settings are in pyproject.toml. tvm_patches/setup.py builds the runtimes.
SOURCE_URL=https://host/owner/romou/blob/v0.2.0 is the address of the checkout's files, for links of a package page.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
from pathlib import Path

from setuptools import find_packages, setup

SOURCE_URL = os.environ.get("SOURCE_URL", "").rstrip("/")


def package_page() -> str:
    """Return README.md for a package index, which has no other file of the checkout.

    [words](docs/a.md) -> [words](SOURCE_URL/docs/a.md), or `words` if the address is not set; a picture is left out.
    """

    def absolute(link: re.Match[str]) -> str:
        mark, words, path = link.groups()
        if not SOURCE_URL:
            return "" if mark else words
        return f"{mark}[{words}]({SOURCE_URL}/{path}{'?raw=true' if mark else ''})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)", absolute, Path("README.md").read_text(encoding="utf-8"))


def urls() -> dict[str, str]:
    """Return the links beside a package page."""
    files = {"Documentation": "docs/guide/getting-started.md", "Changelog": "CHANGELOG.md", "Source": "README.md"}
    own = {name: f"{SOURCE_URL}/{path}" for name, path in files.items()} if SOURCE_URL else {}
    return {**own, "Paper": "https://doi.org/10.1145/3495243.3517020"}


patches = runpy.run_path("tvm_patches/setup.py")


class WithFiles(patches["COMMANDS"]["build_py"]):
    """Add the headers that the phone's runtime is built with, and the pages that `romou docs` prints."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "tvm_patches/third_party")
            shutil.copytree(patches["THIRD_PARTY"], target, dirs_exist_ok=True)
            for page in (path for room in ("guide", "evidence") for path in Path("docs", room).glob("*.md")):
                self.mkpath(f"{self.build_lib}/romou/{page.parent}")
                self.copy_file(str(page), f"{self.build_lib}/romou/{page}")


data = ("sh", "json", "onnx", "ubj.gz", "cl", "html", "md", "txt", "kt", "kts", "pro", "xml")

setup(
    license="Apache-2.0",
    long_description=package_page(),
    long_description_content_type="text/markdown",
    project_urls=urls(),
    # Data that stands beside the code. MANIFEST.in says what else is in the source archive.
    include_package_data=False,
    package_data={
        "romou": [*(f"**/*.{suffix}" for suffix in data), "py.typed"],
        "schedules": ["*.jsonl", "README.md"],
        # Sources of the phone's runtime.
        "tvm_patches": ["README.md", "*.sh", *(f"*_runtime/**/*.{suffix}" for suffix in ("cc", "c", "h", "hpp"))],
        "archprobe": ["**/*.json", "templates/*.html", "README.md"],
    },
    packages=find_packages(include=["romou*", "tvm_patches*", "archprobe*", "schedules"]),
    ext_modules=[patches["runtime"](kind) for kind in patches["KINDS"]],
    cmdclass={**patches["COMMANDS"], "build_py": WithFiles},
)
