"""Builds Romou: its Python packages, and the OpenCL and Vulkan runtimes of tvm_patches.

Metadata, dependencies and tool settings are in pyproject.toml. tvm_patches/setup.py builds the runtimes.
"""

from __future__ import annotations

import runpy

from setuptools import find_packages, setup

patches = runpy.run_path("tvm_patches/setup.py")
data = ("json", "onnx", "ubj.gz", "cl", "html", "md", "txt", "kt", "kts", "xml")

setup(
    license="Apache-2.0",
    # Data that stands beside the code. MANIFEST.in says what else is in the source archive.
    include_package_data=False,
    package_data={
        "romou": [*(f"**/*.{suffix}" for suffix in data), "py.typed"],
        "schedules": ["*.jsonl", "README.md"],
        "tvm_patches": ["README.md"],
        "archprobe": ["**/*.json", "README.md"],
    },
    packages=find_packages(include=["romou*", "tvm_patches*", "archprobe*", "schedules"]),
    ext_modules=[patches["runtime"](kind) for kind in patches["KINDS"]],
    cmdclass=patches["COMMANDS"],
)
