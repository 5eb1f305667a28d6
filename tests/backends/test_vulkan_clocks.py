"""NVIDIA's clocks stay up while kernels are timed through Vulkan, by a CUDA context of the same GPU. A stand-in
replaces CUDA's driver.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import romou
from romou.devices.backends.vulkan import BACKEND, clocks
from romou.tuner.measure import run_job
from support.models.small_networks import NetworkBuilder

# A driver with two GPUs that writes the ordinals of the retained contexts.
DRIVER = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
static const char *kNames[] = {"NVIDIA RTX", "NVIDIA H200"};
static bool is_begun = false;
extern "C" {
int cuInit(unsigned) { is_begun = true; return getenv("NO_GPU") ? 100 : 0; }
int cuDeviceGetCount(int *count) { *count = 2; return is_begun ? 0 : 3; }
int cuDeviceGet(int *device, int ordinal) { *device = 7 + ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, kNames[device - 7], size); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
  std::FILE *file = std::fopen(getenv("RETAINED"), "a");
  std::fprintf(file, "%d ", device - 7);
  std::fclose(file);
  *context = file;
  return 0;
}
}
"""


@pytest.fixture
def retained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    library, source, found = tmp_path / "libcuda.so.1", tmp_path / "cuda.cc", tmp_path / "retained"
    source.write_text(DRIVER)
    subprocess.run([os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-o", library, source], check=True)
    found.touch()
    monkeypatch.setattr(clocks, "_LIBRARY", str(library))
    monkeypatch.setenv("RETAINED", str(found))
    clocks.hold.cache_clear()
    yield found
    clocks.hold.cache_clear()


def test_the_context_is_that_of_the_gpu_and_kept_once(retained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"platform": "NVIDIA", "name": "NVIDIA H200"}
    monkeypatch.setattr(BACKEND, "list_devices", lambda: [facts | {"platform": "Mesa"}, facts])
    BACKEND.hold_clocks(0)
    assert retained.read_text() == ""
    BACKEND.hold_clocks(1)
    BACKEND.hold_clocks(1)
    assert retained.read_text() == "1 "


def test_without_a_gpu_or_a_driver_nothing_happens(retained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GPU", "1")
    assert clocks.hold("NVIDIA H200") == 0
    monkeypatch.setattr(clocks, "_LIBRARY", "libcuda-of-nobody.so.1")
    assert clocks.hold("NVIDIA RTX") == 0
    assert retained.read_text() == ""


def test_whoever_times_holds_them(monkeypatch: pytest.MonkeyPatch, vulkan_device: object) -> None:
    held = []
    monkeypatch.setattr(BACKEND, "hold_clocks", held.append)
    run_job._device("vulkan:0")
    assert held == [0]
    graph = NetworkBuilder({"x": (1, 8)})
    model = romou.compile(graph.model(graph.add("Relu", "x")), target="vulkan", verify=False)
    model.times(repeat=1)
    # Held once more while the way to launch the model is decided.
    assert len(held) > 1
    assert set(held) == {0}
