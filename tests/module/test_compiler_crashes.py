"""A driver's compiler that crashes is one clear error that names the kernel, and ends no process but its own."""

from __future__ import annotations

import hashlib
import json
import re
import signal
from pathlib import Path

import pytest
import tvm

import romou
from romou.base.errors import DeviceError
from support.devices import platforms, standin
from support.models.small_networks import prime_net
from support.servers import forked
from support.servers.program_starts import CRASHES, outputs_of, starts
from support.suite.exhaustive import few

_APART = """
import romou.devices.backends.base as base
from romou.devices.hardware.quirks import DriverRules
base.rules_for = lambda facts: DriverRules(compiles_apart=True)
"""


@pytest.fixture
def crashing(saved: Path) -> tuple[str, dict[str, str]]:
    """Return a kernel of the model, and an environment with a driver that crashes when it compiles that kernel, as
    STANDIN specifies.
    """
    name = sorted(romou.load(saved).sources())[1]
    return name, {"ROMOU_OPENCL_LIBRARY": str(standin.library()), "STANDIN_SOURCE": f"{name}("}


def assert_names(text: str, kernel: str) -> Path:
    """Assert that the error names the kernel. Return the file that it says to remove."""
    assert f"clBuildProgram failed: CL_BUILD_PROGRAM_FAILURE (-11); kernel {kernel};" in text
    assert "the driver's compiler ended the processes that compiled this kernel" in text
    (named,) = re.findall(r"to try again remove (\S+);", text)
    return Path(named)


@pytest.mark.parametrize("quirks_off", ["", "pocl_headers"], ids=["together", "one_by_one"])
def test_a_compiler_that_crashes_ends_one_process(
    quirks_off: str, saved: Path, right_file: Path, cache: Path, crashing: tuple[str, dict[str, str]]
) -> None:
    """The next start compiles in another process and reports the kernel. All later starts do the same, until the user
    has it tried again. Kernels that are one program are then compiled one by one.
    """
    kernel, environment = crashing
    environment["ROMOU_QUIRKS_OFF"] = quirks_off
    lines = starts(CRASHES, saved, right_file, *["crashes on source"] * 3, "", **environment)
    codes, texts = zip(*map(json.loads, lines), strict=True)
    assert codes == (-signal.SIGABRT, 2, 2, 2)
    files = {assert_names(text, kernel) for text in texts[1:]}
    assert not list(cache.glob("*.try"))
    files.pop().unlink()
    assert not files
    (line,) = starts(CRASHES, saved, right_file, "", **environment)
    code, report = json.loads(line)
    assert (code, report[2]) == (0, [])


@pytest.mark.parametrize("quirks_off", ["", "pocl_headers"], ids=["together", "one_by_one"])
def test_a_process_that_was_killed_refuses_no_kernel(
    quirks_off: str, saved: Path, right_file: Path, cache: Path, crashing: tuple[str, dict[str, str]]
) -> None:
    """If a process is killed while it compiles a kernel, another process compiles the kernel again."""
    environment = {**crashing[1], "ROMOU_QUIRKS_OFF": quirks_off}
    lines = starts(CRASHES, saved, right_file, "crashes on source", "", "", **environment)
    codes, reports = zip(*map(json.loads, lines), strict=True)
    assert codes == (-signal.SIGABRT, 0, 0)
    assert reports[1][0] == reports[2][0] > 1
    assert [report[1:3] for report in reports[1:]] == [[0, []]] * 2
    assert not list(cache.glob("*.try"))


@pytest.mark.parametrize("megabytes", few(["64", "0"], 0))
def test_a_compiler_that_is_known_to_crash_ends_no_process(
    megabytes: str, saved: Path, right_file: Path, cache: Path, crashing: tuple[str, dict[str, str]]
) -> None:
    kernel, environment = crashing
    lines = starts(
        _APART + CRASHES, saved, right_file, "crashes on source", **environment, ROMOU_PROGRAM_CACHE_MB=megabytes
    )
    code, text = json.loads(lines[0])
    assert code == 2
    named = assert_names(text, kernel)
    assert (named.exists(), cache.exists()) == (megabytes != "0",) * 2
    named.unlink(missing_ok=True)
    lines = starts(_APART + CRASHES, saved, right_file, "", "", **environment, ROMOU_PROGRAM_CACHE_MB=megabytes)
    assert [json.loads(line)[0] for line in lines] == [0, 0]


_REDUCE = """
import numpy as np, onnx, romou
from onnx import helper, numpy_helper
x, y = helper.make_tensor_value_info("x", 1, [7, 3, 2, 5]), helper.make_tensor_value_info("y", 1, None)
axes = numpy_helper.from_array(np.array([0, 1, 2, -1]), "axes")
graph = helper.make_graph([helper.make_node("ReduceL1", ["x", "axes"], ["y"], keepdims=0)], "g", [x], [y], [axes])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
try:
    compiled = romou.compile(model, verify=False, target="opencl -device=host", precision="float16")
    print("right", abs(float(compiled.run({"x": np.ones((7, 3, 2, 5), "float32")})[0]) - 210) < 1)
except romou.RomouError as error:
    print(error)
"""


def test_intels_compiler_crashes_without_the_caller(request: pytest.FixtureRequest, cache: Path) -> None:
    """Release 2026.22 crashes on this model. If another release does not, its outputs are right."""
    platforms.INTEL.require(request.config)
    done = forked.run("-c", _REDUCE, env=platforms.INTEL.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("right True") or assert_names(done.stdout, "fused_tir_abs_sum_kernel").exists(), (
        done.stdout
    )


def test_vulkans_compiler_is_not_asked_again(cache: Path, tmp_path: Path, vulkan_device: tvm.runtime.Device) -> None:
    """The cache entry records that two processes ended while they compiled the pipeline."""
    saved = romou.compile(prime_net(), target="vulkan -device=host", verify=False).save(tmp_path / "m.romou")
    shaders = set(cache.glob("*.program"))
    right = outputs_of(romou.load(saved))
    path = min(set(cache.glob("*.program")) - shaders)
    head, reason = (
        b"ROMOUPC1" + path.stem.encode() + b"r",
        b"the driver's compiler ended the processes that compiled this kernel",
    )
    path.write_bytes(head + hashlib.sha256(head + reason).hexdigest().encode() + reason)
    for _ in range(2):
        with pytest.raises(
            DeviceError,
            match=rf"vkCreateComputePipelines failed: .*; kernel \w+; .*{reason.decode()}; to try again remove {path}",
        ):
            outputs_of(romou.load(saved))
    path.unlink()
    assert outputs_of(romou.load(saved)) == right
