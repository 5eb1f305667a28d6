"""The examples of own-kernels.md: a developer's own kernels, tuned on OpenCL and Vulkan, compiled for CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import romou
from romou.compiler.assembly.kernel import build_task
from romou.compiler.compilation import Compilation
from romou.devices.targets import Target
from support.docs.documents import ROOT, blocks

PAGE = ROOT / "docs/guide/own-kernels.md"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """The names that the page defines, without its searches."""
    space: dict[str, Any] = {}
    for block in blocks("python"):
        if block.path == PAGE:
            lines = block.text.splitlines()
            code = [line for line in lines if not line.startswith(("tuned = ", "outputs = "))]
            exec(compile("\n".join(code), str(PAGE), "exec"), space)
    return space


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


def relative_error(output: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(output - right) / np.linalg.norm(right))


def tuned_for(
    operator: romou.operators.OperatorModel, target: str, monkeypatch: pytest.MonkeyPatch
) -> romou.TunedModel:
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    tuned = romou.tune_operator(operator, target=target, trials=2, work_dir=False)
    summary = tuned.summary()
    assert summary.outcomes == {"ok": 2}, "each candidate agrees with the computation"
    return tuned


def test_a_number_is_added_to_an_image(
    example: dict[str, Any], opencl_device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = tuned_for(example["operator"], "opencl -device=adreno640", monkeypatch)
    x = random(1, 3, 7, 5, 4)
    np.testing.assert_array_equal(tuned.run({"a": x})[0], x + np.float32(3))
    (inspected,) = romou.inspect(example["operator"], target="opencl -device=adreno640", kernel="add_constant")
    assert dict(inspected.config) == {"set_image": True, "autobroadcast": True, "group": 16}
    assert "__read_only image2d_array_t a_ptr, __write_only image2d_array_t b_ptr" in inspected.source
    shown = next(block.text for block in blocks("text") if block.path == PAGE).splitlines()
    assert [line for line in shown if line not in map(str.strip, inspected.source.splitlines())] == []


def test_the_first_example(opencl_device: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It runs as it stands: Romou's own schedule, and the search."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec(next(block.text for block in blocks("python") if block.path == PAGE), space)
    assert space["tuned"].summary().outcomes == {"ok": 4}
    np.testing.assert_array_equal(space["outputs"][0], np.full((1, 3, 7, 5, 4), 4, "float32"))


@pytest.mark.parametrize("target", ["opencl", "vulkan"])
def test_one_source_is_right_where_it_runs(
    target: str,
    example: dict[str, Any],
    opencl_device: object,
    vulkan_device: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = random(37, 29), random(29, 31)
    tuned = tuned_for(example["product"], target, monkeypatch)
    assert relative_error(tuned.run({"a": a, "b": b})[0], a.astype("float64") @ b) < 1e-4


def test_one_source_is_compiled_for_cuda(example: dict[str, Any]) -> None:
    target = Target("cuda -device=nvidia_h200")
    compiled = romou.compile(example["product"], target=target, verify=False)
    assert compiled.sources()["matmul_kernel"].count("__shared__") == 2
    (task,) = Compilation.of(example["product"], target).lowered().tasks
    for config in task.space(target).sample(np.random.default_rng(0), 3):
        build_task(task, config, target)  # NVRTC compiles it
