"""Dumps: `ROMOU_DUMP` and `romou inspect --stages` write the module after every stage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.cli import main
from romou.compiler import pipeline
from romou.compiler.assembly.kernel import build_task
from romou.compiler.stages import Stage
from romou.devices.targets import Target
from support.kernels.operators import conv, task_of
from support.models.small_networks import NetworkBuilder

PHONE = Target("opencl -device=adreno640")


def files_of(stages: Sequence[Stage]) -> set[str]:
    return {f"{stage.file_name}.txt" for stage in stages}


KERNEL_FILES = files_of((*pipeline.KERNEL, *pipeline.HOST, *pipeline.DEVICE, pipeline.SOURCE))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    g = NetworkBuilder({"image": (1, 8, 12, 12)})
    path = tmp_path / "small.onnx"
    # A scale of two constants is folded.
    scale = g.add("Exp", g.constant(np.zeros(1, "float32")))
    onnx.save(g.model(g.add("Mul", g.add("Relu", g.conv("image", 8, 16, (1, 1))), scale)), path)
    return path


def build(monkeypatch: pytest.MonkeyPatch, folder: Path, names: str) -> None:
    task = task_of(conv(8, (12, 12), 16, (1, 1)))
    monkeypatch.setenv("ROMOU_DUMP", names)
    monkeypatch.setenv("ROMOU_DUMP_DIR", str(folder))
    build_task(task, task.default_config(PHONE), PHONE)


def test_every_stage_of_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build(monkeypatch, tmp_path / "out", "all")
    folder = tmp_path / "out" / "kernel-main"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kernel-main"]
    assert {path.name for path in folder.iterdir()} == KERNEL_FILES
    assert all(path.read_text().strip() for path in folder.iterdir())
    text = {path.stem.split("-", 1)[1]: path.read_text() for path in folder.iterdir()}
    assert "main_kernel" not in text["MergeSharedMemoryAllocations"]
    assert "main_kernel" in text["SplitHostDevice"]
    assert "__kernel " in (folder / f"{pipeline.SOURCE.file_name}.txt").read_text()


def test_chosen_stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build(monkeypatch, tmp_path / "out", "source, widen_fp16")
    names = sorted(path.name.split("-", 1)[1] for path in (tmp_path / "out").rglob("*.txt"))
    assert names == ["source.txt", "widen_fp16.txt"]


def test_a_misspelt_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(romou.UsageError, match=r"unknown stage 'widen_fp61'(.|\n)*Did you mean 'widen_fp16'"):
        build(monkeypatch, tmp_path / "out", "source,widen_fp61")
    assert not (tmp_path / "out").exists()


def test_every_stage_of_a_model(model: Path, tmp_path: Path) -> None:
    given = ["inspect", str(model), "--target", str(PHONE), "--stages", "--output", str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    written = {Path(path) for path in json.loads(result.stdout)["stages"]}
    assert written == set((tmp_path / "out").rglob("*.txt"))
    names = {path.name for path in (tmp_path / "out").glob("*.txt")}
    assert names - files_of(pipeline.ONNX) == files_of((*pipeline.GRAPH, *pipeline.MODULE))
    # Of the stages of ONNX, those that changed the model.
    assert {name.split("-")[-1] for name in names & files_of(pipeline.ONNX)} == {"fold.txt"}
    kernels = list((tmp_path / "out").glob("kernel-*"))
    assert any("conv2d" in folder.name for folder in kernels)
    for folder in kernels:
        assert {path.name for path in folder.iterdir()} == KERNEL_FILES
        assert "__kernel " in (folder / f"{pipeline.SOURCE.file_name}.txt").read_text()


def test_a_misspelt_stage_of_the_command(model: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["inspect", str(model), "--stages", "fuse_ops", "--output", str(tmp_path / "out")]
    )
    assert result.exit_code != 0
    assert "unknown stage 'fuse_ops'" in result.output
    assert not (tmp_path / "out").exists()
