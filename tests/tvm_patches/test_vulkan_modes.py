"""The Vulkan runtime under the validation layer with its checks of synchronisation: silent over all that it does, and
not blind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tvm

from support.kernels import glsl

HERE = Path(__file__).parent


@pytest.mark.parametrize("without", ["", "unified_memory,VK_KHR_push_descriptor"], ids=["as it is", "like an old card"])
def test_the_validation_layer_is_silent(vulkan_device: tvm.runtime.Device, without: str) -> None:
    """Over all tests of the runtime: on a device with the host's memory, and on one that copies through staging and
    has pools of descriptors.
    """
    variables = {**os.environ, "ROMOU_VULKAN_VALIDATE": "1", "ROMOU_VULKAN_WITHOUT": without}
    in_this_process = "not forked and not another_process and not rpc"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "test_vulkan_runtime.py"),
        "-k",
        in_this_process,
    ]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


_FORGETS_A_BARRIER = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np, tvm
from support.kernels import glsl
device = tvm.device("vulkan", 0)
liar = glsl.module(scale=glsl.entry(glsl.SCALE, ("buffer:r", "buffer:{said}", "scalar:float32")))["scale"]
a, b = (tvm.runtime.tensor(np.zeros(64, "float32"), device) for _ in range(2))
device.sync()
for given, made in ((a, b), (b, a)):
    glsl.launch(liar, given, made, 1.0, 1, 64)
device.sync()
"""


@pytest.mark.parametrize(("said", "is_told"), [("r", True), ("w", False)])
def test_a_missing_barrier_is_told(vulkan_device: tvm.runtime.Device, said: str, is_told: bool) -> None:
    """A kernel that writes a tensor declared as read-only gets no barrier: the next wait raises the layer's message."""
    done = glsl.run_python(_FORGETS_A_BARRIER.format(tests=str(HERE.parent), said=said), ROMOU_VULKAN_VALIDATE="1")
    assert (done.returncode != 0) == is_told, done.stderr
    assert ("SYNC-HAZARD" in done.stderr) == is_told, done.stderr
    assert ("Vulkan's validation layer (ROMOU_VULKAN_VALIDATE) says" in done.stderr) == is_told, done.stderr
