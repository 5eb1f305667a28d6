"""The C++ runtimes have layers: a file includes only lower files, apart from its own header."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PATCHES = Path(__file__).parents[2] / "tvm_patches"
# Units from the bottom up. NAME is NAME.h with NAME.cc; units on one line do not include each other.
LAYERS = {
    "device_runtime": """
        image_shape recorded_run selection sha256 source_kernel stream
        memory_head program_cache
        device_api programs
    """,
    "opencl_runtime": """
        cl_api statistics imports kept_programs versions
        error
        loader
        owned
        device
        memory program recorder timer queries
        command_buffer mapping profile
        device_api module source_kernel
    """,
    "vulkan_runtime": """
        api statistics
        error
        loader
        device_features
        device
        heap kernel
        memory program queries
        commands
        queue
        allocation recording timer open_device
        copies
        device_api module source_kernel
    """,
    "phone_runtime": """
        process
        options sockets
        handshakes session tracker
        rpc_server
    """,
    "app_runtime": """
        choice romou
        failure
        files java_text shapes
        description
        model
        c_api jni romou_bench
    """,
}


def layers_of(folder: str) -> list[list[str]]:
    return [line.split() for line in LAYERS[folder].strip().splitlines()]


def includes_up(folder: Path, layers: list[list[str]]) -> list[str]:
    """Return "a.cc -> b.h" for each include of this folder's files that does not lead down."""
    height = {unit: index for index, layer in enumerate(layers) for unit in layer}
    return [
        f"{path.name} -> {name}.h"
        for path in sorted([*folder.glob("*.cc"), *folder.glob("*.h")])
        for name in re.findall(r'^#include "(\w+)\.h"', path.read_text(encoding="utf-8"), re.M)
        if (folder / f"{name}.h").exists() and name != path.stem and height[name] >= height[path.stem]
    ]


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_every_include_leads_down(name: str) -> None:
    folder, layers = PATCHES / name, layers_of(name)
    listed = [unit for layer in layers for unit in layer]
    assert sorted(listed) == sorted({path.stem for path in (*folder.glob("*.cc"), *folder.glob("*.h"))})
    assert includes_up(folder, layers) == []


def test_shared_files_include_no_runtime() -> None:
    folder = PATCHES / "device_runtime"
    for path in (*folder.glob("*.cc"), *folder.glob("*.h")):
        for name in re.findall(r'^#include "([\w.]+)"', path.read_text(encoding="utf-8"), re.M):
            assert (folder / name).exists(), (path, name)


def test_an_include_up_is_found(tmp_path: Path) -> None:
    (tmp_path / "upper.h").write_text('#include "lower.h"\n')
    (tmp_path / "lower.h").touch()
    (tmp_path / "lower.cc").write_text('#include "lower.h"\n#include "upper.h"\n')
    assert includes_up(tmp_path, [["lower"], ["upper"]]) == ["lower.cc -> upper.h"]
